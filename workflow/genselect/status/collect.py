"""From a results folder to a :class:`Status`. Nothing is written, no lock is taken, and no file can end it."""

from __future__ import annotations

import datetime
from collections import Counter
from functools import partial
from pathlib import Path

from genselect.config import Config, load_config
from genselect.config.training import Run
from genselect.errors import GenselectError
from genselect.plan.runs import resolved_runs
from genselect.status.disk import disk
from genselect.status.evaluation import evaluation_stages
from genselect.status.experiment import Experiment
from genselect.status.model import RunNow, Stage, State, Status, Totals
from genselect.status.reading import Reader, folders
from genselect.status.runs import run_now
from genselect.status.stages import gate_stages, stages

#: What a results folder holds, some of it at least.
_KNOWN = ("data", "models", "runs", "rollouts", "evaluation", "report", "gates", "logs", "benchmarks")


def collect(results: Path | str, config: Path | None = None, *, now: datetime.datetime | None = None) -> Status:
    """How the results folder stands.

    Args:
        results: The folder; empty is allowed.
        config: A resolved configuration; None takes each ``data/<name>/config.yaml``.
        now: For ages; None is the clock's.

    Raises:
        GenselectError: ``results`` is no results folder.
    """
    root = Path(results)
    _check(root)
    moment = now or datetime.datetime.now(datetime.UTC)
    reader = Reader(root, moment.timestamp())
    experiments = _experiments(root, config, reader)
    found: list[Stage] = []
    parts = [partial(stages, experiment, reader) for experiment in experiments]
    parts.append(partial(_gates, root, experiments, reader))
    parts += [partial(evaluation_stages, experiment, reader) for experiment in experiments]
    for part in parts:
        try:
            found += part()
        except OSError as error:  # a folder of another user
            reader.unreadable(Path(error.filename or root), error.strerror or str(error))
    runs = _runs(root, experiments, reader)
    configured = {name: run for experiment in experiments for name, run in experiment.runs.items()}
    return Status(
        results=str(root),
        generated=moment.astimezone(datetime.UTC).isoformat(timespec="seconds"),
        stages=found,
        runs=runs,
        disk=disk(root, runs, configured),
        totals=_totals(found, runs),
        problems=reader.problems,
    )


def _check(root: Path) -> None:
    if not root.is_dir():
        raise GenselectError(
            f"{root}: there is no such folder",
            "Name the results folder with --results (`results` in your configuration), or run the workflow first.",
        )
    names = {path.name for path in root.iterdir()}
    if names and not names & set(_KNOWN):
        raise GenselectError(
            f"{root}: this is no results folder: it holds none of {', '.join(_KNOWN)}",
            "Name the folder that holds data/ and runs/ with --results (results: in the configuration).",
        )


def _experiments(root: Path, given: Path | None, reader: Reader) -> list[Experiment]:
    """One a configuration; one without it for each data folder that has none."""
    paths = [given] if given is not None else [root / "data" / name / "config.yaml" for name in folders(root / "data")]
    found = []
    for path in paths:
        config, runs = _configuration(path, reader)
        if config is None and path == given:
            continue
        name = config.dataset.name if config else path.parent.name
        found.append(Experiment(root, name, config, runs))
    return found or [Experiment(root, name, None, {}) for name in folders(root / "data")]


def _configuration(path: Path, reader: Reader) -> tuple[Config | None, dict[str, Run]]:
    if not path.exists():
        reader.problems.append(f"{reader.relative(path)} is missing: what is still to come is not known")
        return None, {}
    try:
        config = load_config(path)
        return config, resolved_runs(config)
    except GenselectError as error:
        reader.unreadable(path, error.message)
        return None, {}


def _gates(root: Path, experiments: list[Experiment], reader: Reader) -> list[Stage]:
    """A gate with a file and no configuration belongs to the first experiment."""
    judged = sorted(path.stem for path in (root / "gates").glob("*.json")) if (root / "gates").is_dir() else []
    named = {run for experiment in experiments for run in experiment.runs}
    found = []
    for position, experiment in enumerate(experiments):
        strays = [gate for gate in judged if gate not in named] if position == 0 else []
        found += gate_stages(experiment, reader, strays)
    return found


def _runs(root: Path, experiments: list[Experiment], reader: Reader) -> list[RunNow]:
    """Those of the configurations in their order, then folders that no configuration names."""
    found: dict[str, RunNow] = {}
    for experiment in experiments:
        for name, run in experiment.runs.items():
            if name not in found:
                found[name] = _run(name, run, experiment, reader.fresh())
    home = experiments[0] if experiments else Experiment(root, "", None, {})
    for name in folders(root / "runs"):
        if name not in found:
            found[name] = _run(name, None, home, reader.fresh())
    return list(found.values())


def _run(name: str, run: Run | None, experiment: Experiment, reader: Reader) -> RunNow:
    try:
        return run_now(name, run, experiment, reader)
    except OSError as error:  # a folder of another user
        reader.unreadable(experiment.root / "runs" / name, error.strerror or str(error))
        kind, steps = (run.kind, run.schedule.steps) if run else (None, None)
        return RunNow(name, kind, State.ABSENT, run is not None, 0, steps, problems=reader.problems)


def _totals(found: list[Stage], runs: list[RunNow]) -> Totals:
    gates = [stage for stage in found if stage.stage == "gate"]
    # A labelling job is part of its stage.
    others = [stage for stage in found if stage.stage != "gate" and not (stage.stage == "labels" and stage.item)]
    etas = [eta for eta in [*(stage.eta_s for stage in found), *(run.eta_s for run in runs)] if eta is not None]
    return Totals(
        stages_done=sum(stage.state is State.DONE for stage in others),
        stages=len(others),
        gates_passed=sum(stage.state is State.PASSED for stage in gates),
        gates_waived=sum(stage.state is State.WAIVED for stage in gates),
        gates=len(gates),
        runs=dict(Counter(run.state.value for run in runs)),
        eta_s=max(etas, default=None),
    )
