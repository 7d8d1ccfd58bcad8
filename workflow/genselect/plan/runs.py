"""Training runs as the plan sees them: resolved, compared with what they extend, in the order their starts demand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from genselect.config import Config
from genselect.config.training import Run
from genselect.errors import GenselectError
from genselect.provenance.difference import Change, check_expected, did_you_mean, difference, resolve_runs


def resolved_runs(config: Config) -> dict[str, Run]:
    """Every run with what it extends filled in and its ``set`` applied.

    Raises:
        GenselectError: A run extends, or starts from, one that is not there; a ``set`` key is unknown; or a run differs from what
            it extends in another way than it expects.
    """
    raw = {name: run.model_dump(exclude_unset=True) for name, run in config.runs.items()}
    resolved = {}
    for name, values in resolve_runs(raw).items():
        try:
            resolved[name] = Run.model_validate(values)
        except ValidationError as error:
            fault = error.errors()[0]
            key = ".".join(map(str, fault["loc"]))
            raise GenselectError(
                f"runs.{name}: {key}: {fault['msg']}", "config/README.md lists the keys of a run."
            ) from None
    for name, run in resolved.items():
        if run.start.run is not None and run.start.run not in resolved:
            raise GenselectError(
                f"runs.{name}.start.run: there is no run {run.start.run}", did_you_mean(run.start.run, resolved)
            )
        if run.layout.judge and config.judge.kind == "rule":
            raise GenselectError(
                f"runs.{name}.layout.judge: {run.layout.judge} of its cards would be kept for a judge that nobody asks: judge.kind is rule",
                "Set it to 0, or judge.kind to vllm or endpoints.",
            )
    for name in config.waived_gates:
        if name not in gates(resolved):
            raise GenselectError(f"waived_gates.{name}: no gate has that name", did_you_mean(name, gates(resolved)))
    for name, changes in differences(config, resolved).items():
        check_expected(name, changes, config.runs[name].expect_difference)
    return resolved


def differences(config: Config, resolved: dict[str, Run]) -> dict[str, list[Change]]:
    """For each run that extends another: how their identities differ."""
    return {
        name: difference(identity(resolved[run.extends]), identity(resolved[name]))
        for name, run in config.runs.items()
        if run.extends is not None
    }


def gates(resolved: Mapping[str, Run]) -> list[str]:
    """The runs that a formal run waits for."""
    return [name for name, run in resolved.items() if run.kind != "formal"]


def identity(run: Run) -> dict[str, Any]:
    """A resolved run's identity, without the keys that say how it was written down."""
    written = {"extends", "set", "expect_difference"}
    return {key: value for key, value in run.identity().items() if key not in written}
