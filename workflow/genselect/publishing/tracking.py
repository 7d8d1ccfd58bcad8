"""Mirrors runs to a tracker. ``metrics.jsonl`` stays the truth; what is here can be made again from it at any time.

``results/tracking/<run>/run.json`` says what the tracker was told last. ``docs/tracking.md`` shows it from the user's side.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from genselect.base_model.folder import whole_folder
from genselect.config import Config
from genselect.config.publish import Tracking
from genselect.config.training import Run
from genselect.errors import GenselectError
from genselect.formats import read_json, write_json
from genselect.provenance.difference import did_you_mean
from genselect.publishing import event_files, trackio_runs, wandb_runs
from genselect.publishing.tracked_run import TrackedRun, read_tracked_run

FILE = "run.json"
SCHEMA_VERSION = 1

#: Writes the whole run into an empty folder.
Writer = Callable[[TrackedRun, Tracking, Path], None]
WRITERS: dict[str, Writer] = {
    "wandb": wandb_runs.write_offline,
    "tensorboard": event_files.write,
    "trackio": trackio_runs.write,
}

logger = logging.getLogger("genselect")


@dataclass(frozen=True)
class Online:
    """What W&B has of a run."""

    id: str
    project: str
    entity: str | None
    """As configured."""
    url: str
    state: Literal["sending", "sent"]
    """``sending`` until W&B has all of it."""
    last_step: int
    history_sha256: str
    """Of the history up to ``last_step``."""
    replaced: list[str]
    """Ids under which it has earlier histories of this run, parts of which were redone."""


@dataclass(frozen=True)
class Mirrored:
    """``run.json``: what a tracker was told of a run."""

    run: str
    kind: str
    mode: str
    project: str
    entity: str | None
    """W&B's, as it answered; offline, as configured."""
    id: str
    url: str | None
    """Where W&B shows it; None for what lies here alone."""
    folder: str | None
    """Of the files, relative to ``run.json``; None for a run that was sent."""
    last_step: int | None
    content_sha256: str
    """Of all that was told."""
    online: Online | None
    """What W&B has, whatever was written here since."""


def sync_run(config: Config, runs: Mapping[str, Run], name: str, results: Path, *, new_run: bool = False) -> Mirrored:
    """Tell the configured tracker of a run, while it trains or afterwards. Does nothing when the tracker knows all of it.

    Offline the run's folder is written anew, beside the old one, and takes its place when it is whole. Online only what W&B has not is
    sent: first all, later the steps behind the last, and of a run that is not over only steps that no later attempt redoes. Where steps
    that were sent have been redone all the same, the whole history is sent under a new id.

    Args:
        config: The configuration.
        runs: Resolved.
        name: The run's.
        results: The results folder.
        new_run: Send under a new id even if the old one could be gone on with.

    Returns:
        What ``run.json`` now holds.

    Raises:
        GenselectError: There is no such run, it has not begun or its metrics contradict each other; the tracker is not installed, or
            refuses; there is no key.
    """
    if name not in runs:
        raise GenselectError(f"there is no run {name}", did_you_mean(name, runs))
    tracking = config.publish.tracking
    online = tracking.mode == "online"
    if online and tracking.kind != "wandb":
        raise GenselectError(
            f"publish.tracking: {tracking.kind} is written into a folder and has no mode online",
            "Set mode: offline, or kind: wandb.",
        )
    run = read_tracked_run(config, runs, name, results, settled=online)
    path = results / "tracking" / name / FILE
    before = read_mirrored(path)
    if before is not None and not new_run and _knows_all(run, tracking, before, path.parent):
        logger.info("%s: nothing new for %s since the last time (%s)", name, tracking.kind, before.url or path.parent)
        return before
    if online:
        return _send(run, tracking, before, path, new_run)
    with whole_folder(path.parent / tracking.kind) as staged:
        WRITERS[tracking.kind](run, tracking, staged)
    found = Mirrored(
        run=name,
        kind=tracking.kind,
        mode=tracking.mode,
        project=tracking.project,
        entity=tracking.entity,
        id=run.id,
        url=None,
        folder=tracking.kind,
        last_step=run.last_step,
        content_sha256=run.content_sha256,
        online=before.online if before else None,
    )
    _write(path, found)
    logger.info("%s: %d steps, to step %s: %s", name, len(run.history), run.last_step, path.parent / tracking.kind)
    return found


def read_mirrored(path: Path) -> Mirrored | None:
    """``run.json``, or None when there is none yet.

    Raises:
        GenselectError: It is damaged, or of another version.
    """
    if not path.is_file():
        return None
    values = read_json(path)
    try:
        if values.pop("schema_version") != SCHEMA_VERSION:
            raise ValueError("another schema version")
        online = values.pop("online")
        return Mirrored(**values, online=online and Online(**online))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise GenselectError(
            f"{path}: is not what this version of genselect writes there ({error})",
            "Delete it: a folder is then written anew, and a run that was sent can be sent again with --new-run.",
        ) from None


def _write(path: Path, found: Mirrored) -> None:
    write_json(path, {"schema_version": SCHEMA_VERSION, **asdict(found)})


def _knows_all(run: TrackedRun, tracking: Tracking, before: Mirrored, folder: Path) -> bool:
    if (before.kind, before.mode, before.project) != (tracking.kind, tracking.mode, tracking.project):
        return False
    if before.content_sha256 != run.content_sha256:
        return False
    if tracking.mode == "online":
        return before.online is not None and before.online.state == "sent" and before.online.entity == tracking.entity
    return before.entity == tracking.entity and (folder / tracking.kind).is_dir()


def _send(run: TrackedRun, tracking: Tracking, before: Mirrored | None, path: Path, new_run: bool) -> Mirrored:
    last_step = run.last_step
    if last_step is None:
        raise GenselectError(
            f"{run.name}: has no step that its next attempt could not redo, so there is nothing to send yet",
            "Sync it after its first save.",
        )
    known = before.online if before else None
    if known is not None and (known.project, known.entity) != (tracking.project, tracking.entity):
        known = None  # another place: it is new there
    redone = known is not None and run.history_sha256(known.last_step) != known.history_sha256
    resume: Literal["never", "allow", "must"] = "never"
    wanted, replaced = run.id, list(known.replaced) if known else []
    if new_run or redone:
        replaced += [known.id] if known else []
        wanted = f"{run.id}-{secrets.token_hex(2)}"
        logger.info(
            "%s: %s; it is sent anew, as %s",
            run.name,
            "steps that were sent have been redone" if redone else "a new id",
            wanted,
        )
    elif known is not None:
        wanted, resume = known.id, "must" if known.state == "sent" else "allow"

    def record(sent: wandb_runs.Sent, state: Literal["sending", "sent"]) -> Mirrored:
        online = Online(
            wanted,
            tracking.project,
            tracking.entity,
            sent.url,
            state,
            last_step,
            run.history_sha256(last_step),
            replaced,
        )
        found = Mirrored(
            run=run.name,
            kind=tracking.kind,
            mode=tracking.mode,
            project=sent.project,
            entity=sent.entity,
            id=wanted,
            url=sent.url,
            folder=None,
            last_step=last_step,
            content_sha256=run.content_sha256,
            online=online,
        )
        _write(path, found)
        return found

    # Once W&B has the run, it is written down: were this process killed then, the next goes on with it.
    sent = wandb_runs.send(run, tracking, wanted, resume, lambda sent: record(sent, "sending"))
    found = record(sent, "sent")
    logger.info("%s: to step %d: %s", run.name, last_step, sent.url)
    return found
