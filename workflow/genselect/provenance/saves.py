"""The saves of a run: which are whole, which may be resumed from or started from, which may go.

verl writes ``checkpoints/global_step_<n>/`` file by file, forgets across a restart what it saved, and starts from scratch
without a word when its tracker file is missing. So a save counts here only once ``complete.json`` lies in it, written last,
and every file that it lists has its size. The tracker file, keeping and deleting are ours; verl's own retention stays off.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from genselect.errors import GenselectError
from genselect.formats.atomic import sync_directory, write_text
from genselect.formats.jsonl import read_json, write_json
from genselect.provenance.seal import file_sha256

logger = logging.getLogger(__name__)

COMPLETE = "complete.json"
BROKEN = "broken.json"
#: Where verl keeps its data loader's position.
DATA_STATE = "data.pt"
TRACKER = "latest_checkpointed_iteration.txt"
#: Inside a save: one file for each run that started from it. Such a save is never deleted.
PINS = "start_of"

_STEP = re.compile(r"global_step_(\d+)")
_RANKED = re.compile(r"(.+)_world_size_(\d+)_rank_(\d+)\.pt")
_DELETING = ".deleting_"
#: Files up to this size (configurations, data.pt) are also checked by content.
_SMALL_BYTES = 1 << 20

State = Literal["complete", "incomplete", "broken"]


@dataclass(frozen=True)
class Save:
    """One folder ``global_step_<n>``."""

    step: int
    path: Path
    state: State
    """``broken`` was saved whole, perhaps, but is marked as a policy not to go on from."""
    problem: str | None
    """Why it is incomplete or broken; None when complete."""
    world_size: int | None
    """Ranks that wrote it; None when it has no readable ``complete.json``."""
    base_weights: Mapping[str, str] | None
    """The frozen weights that its trained ones belong to: sha256 of each of the base model's weight files, by file name; None when
    it does not say."""
    whole: bool
    """``complete.json`` fits the files, whether or not the save is marked broken."""

    def __str__(self) -> str:
        return f"{self.step} ({self.state})" if self.problem else str(self.step)


class Saves:
    """The folder ``checkpoints/`` of one run."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def path(self, step: int) -> Path:
        """Where the save of ``step`` lies, or would."""
        return self.folder / f"global_step_{step}"

    def all(self) -> list[Save]:
        """Every save folder, by step."""
        if not self.folder.is_dir():
            return []
        found = [(match, path) for path in self.folder.iterdir() if (match := _STEP.fullmatch(path.name))]
        return sorted((_read(int(match[1]), path) for match, path in found), key=lambda save: save.step)

    def complete(self) -> list[Save]:
        """The saves that may be resumed from, by step."""
        return [save for save in self.all() if save.state == "complete"]

    def usable(self, step: int) -> Save:
        """The complete save of ``step``.

        Raises:
            GenselectError: There is none, or it is half-written or broken. The saves that exist are named.
        """
        save = next((save for save in self.all() if save.step == step), None)
        if save is None:
            raise GenselectError(f"{self.path(step)}: there is no such save", self.existing())
        if save.state != "complete":
            raise GenselectError(f"{save.path}: it is {save.state}: {save.problem}", self.existing())
        return save

    def begin_save(self, step: int, attempt: int) -> bool:
        """Make way for verl to write the save of ``step``; False when a complete one stands already and must not be touched.

        Writing over a save would leave neither the old nor the new one whole if the process were killed meanwhile.
        """
        save = next((save for save in self.all() if save.step == step), None)
        if save is not None and save.state == "complete":
            return False
        if save is not None:
            _move(save.path, self._free_name(f"{save.state}_{save.path.name}_attempt_{attempt}"))
        return True

    def mark_complete(
        self, step: int, *, world_size: int, attempt: int, base_weights: Mapping[str, str] | None = None
    ) -> Save:
        """Declare the save of ``step`` whole and point verl's tracker at it.

        Call it last: after verl's save, and after the step's records and metrics are on disk, for the next attempt goes on
        behind this step and writes none of them again.

        Args:
            step: Whose save it is.
            world_size: Ranks that wrote it.
            attempt: That wrote it; 0 for a copy of another run's.
            base_weights: See :attr:`Save.base_weights`. A save that does not say can be kept and not gone on from.

        Raises:
            GenselectError: The folder is missing or empty, or a rank's file is missing or of another world size.
        """
        path = self.path(step)
        files = sorted(file for file in path.rglob("*") if file.is_file() and not _ours(file.relative_to(path)))
        if not files:
            raise GenselectError(
                f"{path}: there is nothing in this save", "See the attempt's log for why verl wrote none."
            )
        _check_ranks(path, files, world_size)
        for file in files:
            _sync(file)
        write_json(
            path / COMPLETE,
            {
                "schema_version": 1,
                "step": step,
                "world_size": world_size,
                "attempt": attempt,
                "base_weights": None if base_weights is None else dict(base_weights),
                "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "files": [_listed(file, path) for file in files],
            },
        )
        self.repair_tracker()
        return _read(step, path)

    def mark_broken(self, step: int, reason: str) -> None:
        """Never resume or start from this save again. It stays on disk until the steps are redone or rotation takes it.

        Raises:
            GenselectError: There is no such save.
        """
        if not self.path(step).is_dir():
            raise GenselectError(f"{self.path(step)}: there is no such save", self.existing())
        marked = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        write_json(self.path(step) / BROKEN, {"step": step, "reason": reason, "marked": marked})
        self.repair_tracker()

    def last_complete_save(
        self, world_size: int | None = None, base_weights: Mapping[str, str] | None = None
    ) -> Save | None:
        """The save to resume from; None when there is none.

        Args:
            world_size: Ranks of the attempt that would resume; None does not ask.
            base_weights: Those that the attempt would load, as in :attr:`Save.base_weights`; None does not ask.

        Raises:
            GenselectError: That save was written by another number of ranks, or belongs to other base weights. An older one is
                never taken silently.
        """
        saves = self.complete()
        if not saves:
            return None
        check_world_size(saves[-1], world_size)
        check_base_weights(saves[-1], base_weights)
        return saves[-1]

    def last_healthy_anchor(self, anchor_every: int | None) -> Save | None:
        """The newest complete save on an anchor step; with no anchors (None), the newest complete save."""
        anchors = [save for save in self.complete() if anchor_every is None or save.step % anchor_every == 0]
        return anchors[-1] if anchors else None

    def set_aside_incomplete(self, attempt: int, *, remove: bool = False) -> list[Save]:
        """Rename half-written saves to ``incomplete_global_step_<n>_attempt_<k>`` (or delete them); returns what they were.

        Only for a run that no attempt is writing in. A broken save is left alone, for its reason is known.
        """
        incomplete = [save for save in self.all() if save.state == "incomplete"]
        for save in incomplete:
            if remove:
                self._delete(save.path)
            else:
                _move(save.path, self._free_name(f"incomplete_{save.path.name}_attempt_{attempt}"))
        return incomplete

    def set_aside_broken(self, beyond: int, attempt: int) -> list[Save]:
        """Rename broken saves of steps that will be redone to ``broken_global_step_<n>_attempt_<k>``."""
        broken = [save for save in self.all() if save.state == "broken" and save.step > beyond]
        for save in broken:
            _move(save.path, self._free_name(f"broken_{save.path.name}_attempt_{attempt}"))
        return broken

    def repair_tracker(self) -> bool:
        """Make verl's tracker file name the last complete save, or be absent when there is none; True when it had to change.

        verl writes it before the save is known to be whole and reads it to resume; with it missing, or naming a folder that
        is gone, ``resume_mode=auto`` trains from scratch without a word (verl 0.9.1, ``find_latest_ckpt_path``).
        """
        tracker = self.folder / TRACKER
        saves = self.complete()
        wanted = str(saves[-1].step) if saves else None
        found = tracker.read_text(encoding="utf-8", errors="replace").strip() if tracker.is_file() else None
        if found == wanted:
            return False
        if wanted is None:
            tracker.unlink()
        else:
            write_text(tracker, wanted)
        return True

    def pin(self, step: int, run: str) -> None:
        """Keep the save of ``step`` for good, as the start of ``run``. Does nothing when there is no such save."""
        # Made inside the save and nowhere else: a pin must not bring the folder of a deleted save back.
        with contextlib.suppress(FileNotFoundError):
            (self.path(step) / PINS).mkdir(exist_ok=True)
            (self.path(step) / PINS / run).touch()

    def rotate(self, keep_latest: int, anchor_every: int | None, starts: Collection[int] = ()) -> list[int]:
        """Delete the saves that nobody needs, whole folders at a time.

        Kept are the ``keep_latest`` newest complete saves, every anchor (``step % anchor_every == 0``; a broken one is kept
        as evidence), the newest healthy anchor, every start of another run (see :meth:`pin`, or a step in
        ``starts``), and always at least one whole save. Half-written saves are not touched: one may be in the making.

        Returns:
            The deleted steps. A deletion cut short is finished by the next call.

        Raises:
            GenselectError: ``keep_latest`` is negative or ``anchor_every`` not positive.
        """
        if keep_latest < 0 or (anchor_every is not None and anchor_every < 1):
            raise GenselectError(
                f"keep_latest is {keep_latest} and anchor_every {anchor_every}",
                "keep_latest is 0 or more; anchor_every is 1 or more, or null for no anchors.",
            )
        self._finish_deletions()
        whole = [save for save in self.all() if save.whole]
        healthy = [save.step for save in whole if save.state == "complete"]
        kept = {*starts, *healthy[max(0, len(healthy) - keep_latest) :]}
        kept.update(healthy[-1:] or [save.step for save in whole[-1:]])
        kept.update(save.step for save in whole if anchor_every is not None and save.step % anchor_every == 0)
        deleted = [save.step for save in whole if save.step not in kept and self._delete(save.path)]
        self.repair_tracker()
        return deleted

    def existing(self) -> str:
        """A hint that lists the saved steps, with what is wrong with those that cannot be used."""
        saves = ", ".join(str(save) for save in self.all())
        return f"Saved steps there: {saves}." if saves else "Nothing has been saved there yet."

    def _delete(self, path: Path) -> bool:
        """Rename, then delete, so that a crash in between never leaves half a save under its name. False when it is pinned."""
        if _pinned(path):
            return False
        trash = path.with_name(_DELETING + path.name)
        _move(path, trash)
        if _pinned(trash):  # a run took it as its start between the look and the rename
            _move(trash, path)
            return False
        _remove(trash)
        return True

    def _finish_deletions(self) -> None:
        for trash in self.folder.glob(f"{_DELETING}*"):
            if _pinned(trash):
                _move(trash, trash.with_name(trash.name.removeprefix(_DELETING)))
            else:
                _remove(trash)

    def _free_name(self, name: str) -> Path:
        """``name``, or with .2, .3, … when an earlier leftover has it: nothing set aside is ever written over."""
        names = [name, *(f"{name}.{count}" for count in range(2, 1000))]
        return next(self.folder / name for name in names if not (self.folder / name).exists())


def check_world_size(save: Save, world_size: int | None) -> None:
    """Refuse a save that another number of ranks wrote: verl's files are one a rank and fit no other number.

    Raises:
        GenselectError: The numbers differ.
    """
    if world_size is not None and save.world_size != world_size:
        raise GenselectError(
            f"{save.path}: saved by {save.world_size} rank(s), and this attempt has {world_size}; verl's files fit only the "
            "number of ranks that wrote them",
            f"Go on with {save.world_size} rank(s) (cards to train on), or give the run another name and start it from the "
            "initial adapters.",
        )


def check_base_weights(save: Save, found: Mapping[str, str] | None) -> None:
    """Refuse base weights that the save's trained ones do not belong to: an adapter says what to add, not to what.

    Args:
        save: To be loaded.
        found: sha256 of each weight file of the base model at hand, by file name
            (:func:`genselect.base_model.folder.weights_sha256`); None does not ask.

    Raises:
        GenselectError: A file differs, is missing or is one too many, or the save does not say what it belongs to.
    """
    if found is None or save.base_weights == found:
        return
    if save.base_weights is None:
        raise GenselectError(
            f"{save.path / COMPLETE}: does not say to which base weights the save belongs",
            "It was written by a version of genselect that saved whole models: go on with that version, or give the run another name.",
        )
    names = sorted(found.keys() | save.base_weights.keys())
    name = next(name for name in names if found.get(name) != save.base_weights.get(name))
    raise GenselectError(
        f"{save.path}: trained on other base weights: {name} had sha256 {save.base_weights.get(name, '(no such file)')} then, and "
        f"has {found.get(name, '(no such file)')} in the base model's folder now",
        "Put back the model that it was trained on (models.base, with its revision), or give the run another name.",
    )


def _read(step: int, path: Path) -> Save:
    values, problem = _fits(step, path)
    whole = problem is None
    state: State = "complete" if whole else "incomplete"
    if (path / BROKEN).exists():
        state, problem = "broken", _reason(path / BROKEN)
    world_size = values.get("world_size") if values else None
    return Save(step, path, state, problem, world_size, values.get("base_weights") if values else None, whole)


def _fits(step: int, path: Path) -> tuple[dict[str, Any] | None, str | None]:
    """The content of ``complete.json``, and what is wrong with the save (None: nothing)."""
    if not (path / COMPLETE).exists():
        return None, f"it has no {COMPLETE}, so its writing did not end"
    try:
        values = read_json(path / COMPLETE)
        if values["step"] != step:
            return values, f"{COMPLETE} is that of step {values['step']}"
        for entry in values["files"]:
            if problem := _file_problem(path / entry["path"], entry):
                return values, f"{entry['path']} {problem}"
    except (GenselectError, KeyError, TypeError) as error:
        return None, f"{COMPLETE} cannot be read: {error!r}"
    return values, None


def _file_problem(file: Path, entry: dict[str, Any]) -> str | None:
    if not file.is_file():
        return "is missing"
    size = file.stat().st_size
    if size != entry["bytes"]:
        return f"has {size} bytes, not {entry['bytes']}"
    if "sha256" in entry and file_sha256(file) != entry["sha256"]:
        return "has another content than when it was saved"
    return None


def _reason(path: Path) -> str:
    try:
        return str(read_json(path)["reason"])
    except (GenselectError, KeyError, TypeError):
        return f"marked broken ({BROKEN} cannot be read)"


def _ours(name: Path) -> bool:
    return name.parts[0] in (COMPLETE, BROKEN, PINS)


def _listed(file: Path, root: Path) -> dict[str, Any]:
    size = file.stat().st_size
    entry: dict[str, Any] = {"path": file.relative_to(root).as_posix(), "bytes": size}
    return entry | {"sha256": file_sha256(file)} if size <= _SMALL_BYTES else entry


def _check_ranks(path: Path, files: list[Path], world_size: int) -> None:
    """verl writes ``<kind>_world_size_<w>_rank_<r>.pt``: each kind must be there for every rank of this world size."""
    kinds: dict[str, set[int]] = {}
    for file in files:
        if match := _RANKED.fullmatch(file.name):
            kind = (file.parent.relative_to(path) / match[1]).as_posix()
            if int(match[2]) != world_size:
                raise GenselectError(
                    f"{file}: of world size {match[2]}, in a save by {world_size} rank(s)",
                    "An older save lies under this one: delete the folder and save again.",
                )
            kinds.setdefault(kind, set()).add(int(match[3]))
    for kind, ranks in kinds.items():
        if missing := sorted(set(range(world_size)) - ranks):
            raise GenselectError(
                f"{path}: {kind} is missing for rank(s) {', '.join(map(str, missing))} of {world_size}",
                "The save did not end well; see the attempt's log. The last complete save is untouched.",
            )


def _pinned(path: Path) -> bool:
    return (path / PINS).is_dir() and any((path / PINS).iterdir())


def _move(path: Path, target: Path) -> None:
    path.rename(target)
    sync_directory(target.parent)


def _remove(path: Path) -> None:
    try:
        shutil.rmtree(path)
    except OSError as error:  # no reason to end a training: the next rotation tries again
        logger.warning("%s: could not be deleted: %s; the next rotation tries again", path, error)


def _sync(file: Path) -> None:
    """On disk before complete.json says so: a power cut must not leave a whole-looking save with holes."""
    with file.open("rb") as handle:
        os.fsync(handle.fileno())
