"""A run for Weights & Biases: an offline folder that ``wandb sync`` sends later, or sent at once.

Figures are logged at their training step and nowhere else, so W&B's own step is the run's. Tables go into the summary, where W&B's table
panels look for them, so that they need no step. W&B is told nothing of the machine: no host, no command, no packages, no code, no git
remote; of its ``WANDB_*`` variables only the key and the server's address count, so that what stands in a user's shell does not decide
what is written.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from genselect.config.publish import Tracking
from genselect.errors import GenselectError
from genselect.publishing.tracked_run import TrackedRun

#: Where the key is read from, by W&B itself.
KEY = "WANDB_API_KEY"
#: Kept of the environment when a run is sent: the key, and the server of those who have their own.
_KEPT = (KEY, "WANDB_BASE_URL")


@dataclass(frozen=True)
class Sent:
    """A run at W&B."""

    url: str
    entity: str
    project: str


def write_offline(run: TrackedRun, tracking: Tracking, folder: Path) -> None:
    """Write the whole run into the empty ``folder``, as ``offline-run-<time>-<id>/``.

    Raises:
        GenselectError: wandb is not installed.
    """
    with _wandb(folder, online=False) as wandb:
        session = wandb.init(settings=_settings(wandb, run, run.id, tracking, folder, "offline"), config=run.config)
        _log(wandb, session, run, first=0)
        session.finish()
    (made,) = (folder / "wandb").glob("offline-run-*")
    made.rename(folder / made.name)
    for leftover in (folder / "wandb", folder / made.name / "logs", folder / made.name / "tmp"):
        shutil.rmtree(leftover, ignore_errors=True)  # W&B's own debugging: paths and times, and nothing that it sends


def send(
    run: TrackedRun,
    tracking: Tracking,
    run_id: str,
    resume: Literal["never", "allow", "must"],
    begun: Callable[[Sent], object],
) -> Sent:
    """Send the run to W&B, or what of its history is not yet there.

    Args:
        run: The run.
        tracking: Project and entity.
        run_id: Under which W&B knows it.
        resume: ``never``: it is new there. ``allow``: an earlier sending may not have ended. ``must``: it is there.
        begun: Called once W&B has the run, before any of its history is sent.

    Raises:
        GenselectError: wandb is not installed, there is no key, or W&B refuses.
    """
    if not os.environ.get(KEY):
        raise GenselectError(
            f"publish.tracking.mode is online, and the environment has no {KEY}",
            f"Set {KEY} (it is written nowhere), or publish.tracking.mode: offline.",
        )
    with tempfile.TemporaryDirectory(prefix="genselect-wandb-") as folder, _wandb(Path(folder), online=True) as wandb:
        try:
            settings = _settings(wandb, run, run_id, tracking, Path(folder), "online")
            settings.resume = resume
            session = wandb.init(settings=settings, config=run.config)
            sent = Sent(session.url, session.entity, session.project)
            begun(sent)
            session.config.update(run.config, allow_val_change=True)
            # The step behind the last that W&B has, 0 for a new run. It drops what is logged below.
            _log(wandb, session, run, first=session.starting_step)
            session.finish()
        except wandb.errors.Error as error:
            raise GenselectError(f"W&B refused {run_id}: {error}", _hint(resume)) from error
    return sent


def _hint(resume: str) -> str:
    if resume == "never":
        return (
            f"Check {KEY}, the entity and the network. If W&B has a run of that id and this results folder does not know of it, send this "
            "one under a new id with --new-run."
        )
    return (
        f"Check {KEY}, the entity and the network. If the run was deleted there, send it under a new id with --new-run."
    )


def _settings(wandb: Any, run: TrackedRun, run_id: str, tracking: Tracking, folder: Path, mode: str) -> Any:
    return wandb.Settings(
        mode=mode,
        project=tracking.project,
        entity=tracking.entity,
        run_id=run_id,
        run_name=run.name,
        run_group=run.experiment,
        run_job_type=run.kind,
        run_notes=run.notes,
        run_tags=run.tags,
        root_dir=str(folder),
        use_dot_wandb=False,
        git_commit=run.commit,
        disable_git=True,
        save_code=False,
        disable_code=True,
        disable_job_creation=True,
        console="off",
        host="",
        silent=True,
        symlink=False,
        # Told by `metrics.jsonl` already, or of a machine that has nothing to do with the training.
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
    )


def _log(wandb: Any, session: Any, run: TrackedRun, first: int) -> None:
    for point in run.history:
        if point.step >= first:
            session.log({**point.values, "attempt": point.attempt}, step=point.step)
    tables = {
        name: wandb.Table(columns=list(table.columns), data=[list(row) for row in table.rows], allow_mixed_types=True)
        for name, table in run.tables.items()
    }
    for name, table in tables.items():
        # Bound beforehand, a table is a file of the run. Else it becomes an artifact as well, in a new version each time, and offline by
        # an absolute path (wandb 0.31, `_log_table_artifact`).
        table.bind_to_run(session, name, "summary")
    session.summary.update({**run.summary, **tables})


@contextlib.contextmanager
def _wandb(folder: Path, *, online: bool) -> Iterator[Any]:
    """The package, with its own folders inside of ``folder``, out of sight of the user's ``WANDB_*``; its service ends with the block."""
    before = dict(os.environ)
    for name in before:
        if name.startswith("WANDB_") and not (online and name in _KEPT):
            del os.environ[name]
    with tempfile.TemporaryDirectory(prefix="genselect-wandb-") as scratch:
        os.environ |= {f"WANDB_{name}_DIR": str(Path(scratch) / name.lower()) for name in ("DATA", "CACHE", "CONFIG")}
        # Crashes of W&B would be told to its makers, offline too.
        os.environ["WANDB_ERROR_REPORTING"] = "false"
        try:
            try:
                import wandb
            except ImportError:
                raise GenselectError(
                    "publish.tracking.kind is wandb, which is not installed here",
                    "pip install wandb, or name another publish.tracking.kind.",
                ) from None
            try:
                yield wandb
            finally:
                wandb.teardown()
        finally:
            for name in set(os.environ) - set(before):
                del os.environ[name]
            os.environ |= before
