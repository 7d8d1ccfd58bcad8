"""Loaded by verl in each of its processes (``VERL_USE_EXTERNAL_MODULES=genselect.training.plugin``).

Importing torch or verl's trainer here would cost every process seconds, so each part waits until the module that it extends
is imported.
"""

from __future__ import annotations

import os
from typing import Any

import wrapt

#: Set by the launcher on a machine without cards.
CPU_FLAG = "GENSELECT_CPU"


@wrapt.when_imported("verl.workers.engine.fsdp.transformer_impl")
def _register_engines(_: Any) -> None:
    from genselect.training import engines

    engines.register()


@wrapt.when_imported("verl.trainer.ppo.v1")
def _register_trainer(_: Any) -> None:
    from genselect.training import trainer

    trainer.register()


if os.environ.get(CPU_FLAG) == "1":
    from genselect.training import cpu_platform

    cpu_platform.install()
