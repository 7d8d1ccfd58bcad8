"""The run directory, ``results/runs/<run>/``: whose it is, who works in it, and where the next attempt goes on.

It looks after itself because nothing else does: Snakemake must not own it (it deletes what it owns before a rerun), and verl
forgets across restarts. ``docs/run-directory.md`` shows it from the user's side. A launcher does, in this order::

    with RunDirectory(path) as directory:
        directory.open(identity, context)
        step = directory.prepare_resume(world_size)
        attempt = directory.begin_attempt(step)
        directory.trim_beyond(first_step - 1 if step is None else step)
        ...  # train; directory.saves.begin_save / mark_complete / rotate
        attempt.end("done", last_step, 0)
        directory.finish(summary)
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from genselect.config.base import fingerprint, json_value
from genselect.errors import GenselectError
from genselect.formats.jsonl import read_json, write_json
from genselect.provenance.attempts import KILLED, METRICS, Attempt, Trimmed, last_metrics_step, now, trim
from genselect.provenance.circumstances import collect
from genselect.provenance.difference import did_you_mean, difference
from genselect.provenance.saves import DATA_STATE, Saves, check_base_weights, check_world_size

logger = logging.getLogger(__name__)

#: Raised by one when a field of the manifest changes its meaning.
SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
LOCK = ".lock"
#: Present while the run is to stop at the next step boundary.
STOP_FILE = "stop_requested"
#: A refusal lists this many differing keys.
_SHOWN_KEYS = 20
#: What of the circumstances is told again for each attempt; the manifest has the rest once.
_PER_ATTEMPT = ("host", "slurm", "git_commit", "git_dirty_sha256", "gpus", "argv")


class RunDirectory:
    """One run's folder. Reading needs nothing; writing needs :meth:`open`, which holds the lock until :meth:`close`."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.saves = Saves(self.path / "checkpoints")
        self._lock: IO[bytes] | None = None
        self._context: dict[str, Any] = {}

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self, identity: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Take the directory for a run of this identity; the first time, write ``manifest.json``.

        Args:
            identity: The fields that change the run's result, resolved, as plain JSON values. Hashed into the fingerprint.
            context: What a person wants to know and no result depends on (paths, logger settings); never secrets.

        Raises:
            GenselectError: Another process works in the directory, it was used with another fingerprint (the differing keys
                are listed), or what lies in it is not a run's.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = _take_lock(self.path / LOCK)
        try:
            self._context = json_value(dict(context))
            self._open(json_value(dict(identity)))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the lock back. A process that dies gives it back too."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def manifest(self) -> dict[str, Any]:
        """The content of ``manifest.json``.

        Raises:
            GenselectError: It is missing, damaged, or of a schema version this code does not know.
        """
        values = read_json(self.path / MANIFEST)
        version = values.get("schema_version") if isinstance(values, dict) else None
        if version != SCHEMA_VERSION:
            raise GenselectError(
                f"{self.path / MANIFEST}: a manifest of schema version {version}, and this code reads {SCHEMA_VERSION}",
                "Use the version of genselect that wrote it, or another run name.",
            )
        return dict(values)

    def prepare_resume(
        self,
        world_size: int | None,
        base_weights: Mapping[str, str] | None = None,
        *,
        remove_incomplete: bool = False,
    ) -> int | None:
        """The step to resume from (None: start anew), with half-written saves out of the way and verl's tracker in order.

        Args:
            world_size: Ranks of this attempt; None does not ask.
            base_weights: sha256 of the weight files that this attempt will load, by file name; None does not ask.
            remove_incomplete: Delete half-written saves instead of setting them aside.

        Raises:
            GenselectError: The last complete save is of another world size, or belongs to other base weights.
        """
        self._needs_lock()
        for save in self.saves.set_aside_incomplete(self._last_attempt(), remove=remove_incomplete):
            done = "deleted" if remove_incomplete else "set aside"
            logger.info("%s: half-written save of step %d %s: %s", self.path, save.step, done, save.problem)
        last = self.saves.last_complete_save(world_size, base_weights)
        if self.saves.repair_tracker():
            logger.info("%s: verl's tracker put right: %s", self.path, last.step if last else "no save to resume from")
        return last.step if last else None

    def begin_attempt(self, resumed_from: int | None) -> Attempt:
        """Number and record a new attempt, after recording those that wrote no end as ``killed``.

        Raises:
            GenselectError: The run is done, or ``resumed_from`` is not the last complete save (None while there is one
                would start from scratch beside it).
        """
        self._needs_lock()
        if self.is_done():
            raise GenselectError(
                f"{self.path}: this run is done (done.json)",
                "Give the new run another name, or delete the directory to start over.",
            )
        last = self.saves.last_complete_save()
        if resumed_from != (last.step if last else None):
            raise GenselectError(
                f"{self.path}: this attempt would start from {_start(resumed_from)}, and the run goes on from "
                f"{_start(last.step if last else None)}",
                "To go back further, mark the later saves broken; to start over, delete the directory or choose another run name.",
            )
        manifest = self.manifest()
        for entry in manifest["attempts"]:
            if entry["reason"] is None:
                last_step = last_metrics_step(self.path, entry["attempt"])
                entry |= {"reason": KILLED, "last_step": last_step, "noticed": now()}
                logger.info("%s: attempt %d was killed after step %s", self.path, entry["attempt"], last_step)
        number = self._last_attempt() + 1
        manifest["attempts"].append(self._entry(number, resumed_from))
        write_json(self.path / MANIFEST, manifest)
        log = self.path / "attempts" / f"{number}.log"
        log.parent.mkdir(exist_ok=True)
        return Attempt(number, log, resumed_from, self._record)

    def trim_beyond(self, step: int) -> Trimmed:
        """Move what an earlier attempt left beyond ``step`` out of the way of the attempt that redoes it; see ``Trimmed``.

        Broken saves beyond ``step`` are set aside as well. Logged, and safe to repeat.

        Raises:
            GenselectError: A complete save stands beyond ``step``, or ``metrics.jsonl`` is damaged in the middle.
        """
        self._needs_lock()
        last = self.saves.last_complete_save()
        if last is not None and last.step > step:
            raise GenselectError(
                f"{self.path}: cannot trim to step {step}: the run goes on from its save of step {last.step}",
                "Mark the later saves broken first if they are not to count.",
            )
        earlier = [entry["attempt"] for entry in self.manifest()["attempts"] if entry["reason"] is not None]
        attempt = max(earlier, default=self._last_attempt())
        broken = self.saves.set_aside_broken(step, attempt)
        trimmed = trim(self.path, step, attempt)
        trimmed.broken_saves.extend(save.step for save in broken)
        return trimmed

    def write_health(self, values: Mapping[str, Any]) -> None:
        """Write ``health.json``: the guards' state, whole or not at all."""
        self._needs_lock()
        write_json(self.path / "health.json", {**values, "updated": now()})

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write ``done.json``: ``summary``, with the run's name, fingerprint, number of attempts and the time."""
        self._needs_lock()
        manifest = self.manifest()
        facts = {"run": manifest["run"], "fingerprint": manifest["fingerprint"], "attempts": len(manifest["attempts"])}
        write_json(self.path / "done.json", {**facts, "finished": now(), **summary})

    def is_done(self) -> bool:
        """Whether ``done.json`` stands."""
        return (self.path / "done.json").is_file()

    def _open(self, identity: dict[str, Any]) -> None:
        if (self.path / MANIFEST).exists():
            self._check_identity(identity)
            return
        if leftovers := [name for name in ("checkpoints", "records", METRICS) if (self.path / name).exists()]:
            raise GenselectError(
                f"{self.path}: holds {', '.join(leftovers)} and no {MANIFEST}, so nobody can tell which run made them",
                "Choose another run name, or delete the directory to start over.",
            )
        try:
            json.dumps(identity, allow_nan=False)
        except ValueError:
            # The file would give null back, and every later start would be refused.
            raise GenselectError(
                f"{self.path}: a setting of this run is NaN or infinite", "Write a finite number, or null."
            ) from None
        values = {
            "schema_version": SCHEMA_VERSION,
            "run": self.path.resolve().name,
            "fingerprint": fingerprint(identity),
            "created": now(),
            "identity": identity,
            "context": self._context,
            "provenance": collect(),
            "attempts": [],
        }
        write_json(self.path / MANIFEST, values)

    def _check_identity(self, identity: dict[str, Any]) -> None:
        manifest = self.manifest()
        if fingerprint(manifest["identity"]) != manifest["fingerprint"]:
            raise GenselectError(
                f"{self.path / MANIFEST}: its identity does not give its fingerprint: it was edited",
                "Put the file back as it was, or choose another run name.",
            )
        if manifest["fingerprint"] == fingerprint(identity):
            return
        changes = difference(manifest["identity"], identity)
        lines = [f"  - {change}" for change in changes[:_SHOWN_KEYS]]
        if len(changes) > _SHOWN_KEYS:
            lines.append(f"  - and {len(changes) - _SHOWN_KEYS} more")
        raise GenselectError(
            f"{self.path}: was used with other settings (fingerprint {manifest['fingerprint'][:12]}, now "
            f"{fingerprint(identity)[:12]}); {len(changes)} key(s) differ, used -> now:\n" + "\n".join(lines),
            "Give the new run another name, restore the setting(s), or delete the directory to start over.",
        )

    def _entry(self, number: int, resumed_from: int | None) -> dict[str, Any]:
        circumstances = collect()
        return {
            "attempt": number,
            "start": now(),
            "end": None,
            "reason": None,
            "resumed_from": resumed_from,
            "last_step": None,
            "exit_code": None,
            "pid": os.getpid(),
            **{name: circumstances[name] for name in _PER_ATTEMPT},
            "context": self._context,
        }

    def _record(self, number: int, values: dict[str, Any]) -> None:
        self._needs_lock()
        manifest = self.manifest()
        next(entry for entry in manifest["attempts"] if entry["attempt"] == number).update(values)
        write_json(self.path / MANIFEST, manifest)

    def _last_attempt(self) -> int:
        """Number of the newest attempt; 0 when there was none."""
        return max((entry["attempt"] for entry in self.manifest()["attempts"]), default=0)

    def _needs_lock(self) -> None:
        if self._lock is None:
            raise RuntimeError("RunDirectory.open() comes first: only the holder of the lock may write")


def resolve_start(
    runs_root: Path | str,
    run: str,
    step: int,
    with_data_state: bool,
    *,
    world_size: int | None = None,
    base_weights: Mapping[str, str] | None = None,
    for_run: str | None = None,
) -> Path:
    """The save of another run to start from.

    Args:
        runs_root: ``results/runs``.
        run: The other run's name.
        step: Its saved step.
        with_data_state: The data loader's position is wanted too. When False the caller must not load ``data.pt``; verl
            loads it wherever it finds one.
        world_size: Ranks that will load it; None does not ask.
        base_weights: sha256 of the weight files that the new run loads, by file name; None does not ask.
        for_run: The run that starts there. Given, the save is pinned: the other run's rotation keeps it for good.

    Returns:
        The folder ``global_step_<step>``.

    Raises:
        GenselectError: There is no such run or save, or it is incomplete, broken, of another world size, of other base weights,
            or without the data state that is wanted. The saves that exist are named.
    """
    root = Path(runs_root)
    if not (root / run / MANIFEST).is_file():
        names = sorted(path.parent.name for path in root.glob(f"*/{MANIFEST}"))
        raise GenselectError(f"start: {root / run}: there is no such run", did_you_mean(run, names))
    saves = Saves(root / run / "checkpoints")
    path = _usable_start(saves, run, step, with_data_state, world_size, base_weights)
    if for_run is not None:
        saves.pin(step, for_run)
        _usable_start(
            saves, run, step, with_data_state, world_size, base_weights
        )  # it may have gone just before the pin
    return path


def _usable_start(
    saves: Saves,
    run: str,
    step: int,
    with_data_state: bool,
    world_size: int | None,
    base_weights: Mapping[str, str] | None,
) -> Path:
    save = next((save for save in saves.all() if save.step == step), None)
    if save is None:
        raise GenselectError(f"start: run {run} has no save of step {step}", saves.existing())
    if save.state != "complete":
        raise GenselectError(f"start: {save.path} is {save.state}: {save.problem}", saves.existing())
    check_world_size(save, world_size)
    check_base_weights(save, base_weights)
    if with_data_state and not (save.path / DATA_STATE).is_file():
        raise GenselectError(
            f"start: {save.path} has no data state ({DATA_STATE})",
            "Start without the data state, so that the data begin anew, or name a save that has it.",
        )
    return save.path


def _take_lock(path: Path) -> IO[bytes]:
    handle = path.open("a+b")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.seek(0)
        holder = _holder(handle.read())
        handle.close()
        raise GenselectError(
            f"{path.parent}: another attempt is running in this directory: {holder}",
            "Wait for it, or stop it (kill its pid there, scancel its job), then start the same command again. There is no "
            "lock file to delete: the lock ends with the process.",
        ) from None
    except OSError as error:
        handle.close()
        raise GenselectError(
            f"{path}: this file system gives no locks: {error.strerror}",
            "Put results: on one that does (Lustre: mount option flock), so that two attempts never write into each other.",
        ) from error
    handle.truncate(0)
    handle.write(json.dumps({"pid": os.getpid(), "host": platform.node(), "since": now()}).encode())
    handle.flush()
    # A child that was forked (not started anew) would hold the lock after its killed parent.
    os.register_at_fork(after_in_child=handle.close)
    return handle


def _holder(content: bytes) -> str:
    try:
        values = json.loads(content)
        return f"pid {values['pid']} on host {values['host']}, since {values['since']}"
    except (ValueError, KeyError, TypeError):
        return "a process that has just started"


def _start(step: int | None) -> str:
    return "scratch" if step is None else f"the save of step {step}"
