"""A run that a guard stopped does not start again by itself.

A cluster's retries know no exit status: they would queue for the run's cards, launch, train from the last healthy save, and stop at the
same step, as often as they are allowed to. So the next start refuses, within seconds, until somebody has acted: changed the run's guards,
or laid the file ``go_on`` into its directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from genselect.errors import GenselectError
from genselect.formats import read_json
from genselect.provenance.run_directory import RunDirectory

#: Laid into the run directory by a person: start once more, although a guard stopped the last attempt. The next attempt takes it away.
GO_ON_FILE = "go_on"


def stopped_by_guard(directory: Path, step: int) -> bool:
    """Whether the guards' word on ``step``, the last that was trained, is to stop."""
    path = directory / "health.json"
    if not path.exists():
        return False
    health = read_json(path)
    return bool(health["step"] == step and health["level"] == "stop")


def refuse_after_guard(directory: RunDirectory, guards: Mapping[str, Any]) -> None:
    """Refuse the next attempt if a guard stopped the last one and nobody has acted since.

    Args:
        directory: Of the run, open.
        guards: The run's changes to the guards, now.

    Raises:
        GenselectError: That is so; the message has the guards' words.
    """
    attempts = directory.manifest()["attempts"]
    if not attempts or attempts[-1]["reason"] != "guard":
        return
    last = attempts[-1]
    if (directory.path / GO_ON_FILE).exists() or _guards_of(directory.path, last["attempt"]) != dict(guards):
        return
    health = read_json(directory.path / "health.json")
    said = "".join(f"\n  - {finding['message']}" for finding in health["findings"] if finding["level"] == "stop")
    save = directory.saves.last_complete_save()
    start = f"the save of step {save.step}" if save else "its beginning"
    raise GenselectError(
        f"{directory.path}: a guard stopped attempt {last['attempt']} at step {last['last_step']}, and nothing has changed since:{said}",
        f"Read docs/guards.md and {directory.path / 'health.json'}. Better settings are a new run that starts from a healthy save. If the "
        f"guard was wrong, change this run's guards. To go on as it is, from {start}: touch {directory.path / GO_ON_FILE}. Then start "
        "the same command again.",
    )


def _guards_of(directory: Path, attempt: int) -> dict[str, Any] | None:
    """The changes to the guards under which an attempt ran; None when its configuration is gone."""
    path = directory / "attempts" / f"{attempt}.verl.yaml"
    if not path.exists():
        return None
    return dict(yaml.safe_load(path.read_text(encoding="utf-8"))["genselect"]["guards"] or {})
