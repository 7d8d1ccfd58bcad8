"""Which file of ``results/`` goes where: the plan of each target's tree, made from names and sizes alone.

The dry run shows it, :mod:`genselect.publishing.stage` carries it out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from genselect.config import Config
from genselect.config.publish import PublishedSave
from genselect.errors import GenselectError
from genselect.provenance.difference import did_you_mean
from genselect.provenance.saves import COMPLETE
from genselect.publishing.contents import ADAPTER, PUBLISHED_SAVE, Entry, contents_of, pattern_regex
from genselect.publishing.inventory import PUBLICATION, Found, Sorter, names_of, take_inventory
from genselect.publishing.packing import LIMITS, Item, Packing, choose_packing
from genselect.publishing.publication import FILE, FRONT_PAGE, LeftOut, Target
from genselect.status.render import in_bytes

#: In the folder of a run that is finished, and will not change any more.
DONE = "done.json"
#: Where verl keeps a policy's adapter, below a save.
ADAPTER_FOLDER = "actor/lora_adapter"
#: Beside what is staged: the front page and publication.json.
_OWN_FILES = (FRONT_PAGE, FILE)


@dataclass(frozen=True)
class TargetPlan:
    """One target's tree."""

    target: Target
    items: tuple[Item, ...]
    """Staged as they are, by path."""
    packed: tuple[Packing, ...]
    """By folder."""
    left_out: tuple[LeftOut, ...]

    @property
    def files(self) -> int:
        """In the tree: archives, front page and ``publication.json`` included."""
        return len(self.items) + len(self.packed) + len(_OWN_FILES)

    @property
    def bytes(self) -> int:
        """Of what is staged, packed or not."""
        return sum(item.bytes for item in self.all_items())

    def all_items(self) -> list[Item]:
        """Everything that leaves the machine in this tree, packed or not."""
        return [*self.items, *(item for packing in self.packed for item in packing.items)]

    @property
    def commits(self) -> int:
        """At the recommended number of files each."""
        return -(-self.files // LIMITS[self.target].commit_files)


@dataclass(frozen=True)
class StagingPlan:
    """All targets' trees, and what stands in the way."""

    targets: Mapping[Target, TargetPlan]
    unknown: tuple[str, ...]
    """Files that no entry of the declared list names, and what is no file."""
    idle: tuple[str, ...]
    """Patterns of ``publish.leave_out`` that fit no file."""
    missing: tuple[str, ...]
    """Weights that are named, and are not there."""
    problems: tuple[GenselectError, ...]
    """Too many files, or too large ones."""


def make_plan(config: Config, results: Path) -> StagingPlan:
    """Sort everything in ``results`` into the targets' trees.

    Raises:
        GenselectError: ``publish.saves`` or ``publish.adapters`` names a run that is not in the configuration, or there is no such
            folder.
    """
    if not results.is_dir():
        raise GenselectError(
            f"{results}: there is no such folder, so there is nothing to publish yet",
            "Run the workflow first, or name the results folder with --results.",
        )
    inventory = take_inventory(results)
    sorter = Sorter(names_of(config), contents_of(config))
    kept, hidden, idle = _leave_out(inventory.files, config.publish.leave_out)
    saves = [f"runs/{save.run}/checkpoints/global_step_{save.step}" for save in _known(config, "saves")]
    items: list[Item] = []
    unknown: list[str] = []
    for found in kept:
        entry = sorter(found.path)
        if entry is None:
            unknown.append(found.path)
        elif entry.counted:
            if entry.kind == "save" and any(found.path.startswith(f"{save}/") for save in saves):
                entry = PUBLISHED_SAVE
            items.append(Item(found.path, results / found.path, found.bytes, entry))
    missing = [f"{save} (publish.saves)" for save in saves if not (results / save / COMPLETE).is_file()]
    model = f"models/{config.dataset.name}"
    if config.publish.base_model and config.runs and not (results / model / "config.json").is_file():
        missing.append(f"{model} (publish.base_model)")
    for adapter in _known(config, "adapters"):
        folder = adapter_folder(results, config.dataset.name, adapter.run, adapter.step)
        exported = take_inventory(folder).files if folder.is_dir() else ()
        missing += [] if exported else [f"{folder} (publish.adapters)"]
        home = f"checkpoints/{adapter.run}/global_step_{adapter.step}/{ADAPTER_FOLDER}"
        items += [Item(f"{home}/{found.path}", folder / found.path, found.bytes, ADAPTER) for found in exported]
    items.sort(key=lambda item: item.path)
    closed = [run for run in config.runs if (results / "runs" / run / DONE).is_file()]
    targets: dict[Target, TargetPlan] = {}
    problems: list[GenselectError] = []
    for target in wanted_targets(config):
        targets[target], found_problems = _target(target, items, hidden, closed, config.publish.max_files)
        problems += found_problems
    return StagingPlan(targets, (*unknown, *inventory.odd), idle, tuple(missing), tuple(problems))


def wanted_targets(config: Config) -> tuple[Target, ...]:
    """The trees that this configuration stages."""
    return ("hub", "reading_copy") if config.publish.reading_copy else ("hub",)


def publication_folder(results: Path, name: str) -> Path:
    """Where the staged trees of an experiment lie, one a target."""
    return results / PUBLICATION / name


def adapter_folder(results: Path, name: str, run: str, step: int) -> Path:
    """Where the rule ``export_adapter`` leaves a policy's adapter."""
    return publication_folder(results, name) / "adapters" / run / f"global_step_{step}" / ADAPTER_FOLDER


def _known(config: Config, section: str) -> list[PublishedSave]:
    named: list[PublishedSave] = getattr(config.publish, section)
    for entry in named:
        if entry.run not in config.runs:
            raise GenselectError(
                f"publish.{section}: there is no run {entry.run}", did_you_mean(entry.run, config.runs)
            )
    return named


def _leave_out(
    files: Iterable[Found], patterns: Sequence[str]
) -> tuple[list[Found], dict[str, list[Found]], tuple[str, ...]]:
    """Files that stay in the plan, those that ``publish.leave_out`` takes out, by pattern, and patterns that fit nothing.

    A pattern that fits a folder fits all that is in it.
    """
    regexes = {pattern: re.compile(pattern_regex(pattern.rstrip("/")) + "(?:/.*)?") for pattern in patterns}
    kept: list[Found] = []
    hidden: dict[str, list[Found]] = {pattern: [] for pattern in patterns}
    hit: set[str] = set()
    for found in files:
        fitting = [pattern for pattern, regex in regexes.items() if regex.fullmatch(found.path)]
        hit.update(fitting)
        (hidden[fitting[0]] if fitting else kept).append(found)
    return kept, hidden, tuple(pattern for pattern in patterns if pattern not in hit)


def _target(
    target: Target,
    items: Iterable[Item],
    hidden: Mapping[str, Sequence[Found]],
    closed: Sequence[str],
    max_files: int,
) -> tuple[TargetPlan, list[GenselectError]]:
    limits = LIMITS[target]
    kept: list[Item] = []
    left: dict[tuple[str, str], list[int]] = {}
    for item in items:
        why = item.entry.not_in.get(target)
        if why is not None:
            left.setdefault((_shown(item.entry), why), []).append(item.bytes)
        elif target == "reading_copy" and item.bytes > limits.file_bytes:
            why = f"over {in_bytes(limits.file_bytes)}, which GitHub takes at most"
            left.setdefault((_shown(item.entry), why), []).append(item.bytes)
        else:
            kept.append(item)
    kept, packed, problems = choose_packing(kept, closed, LIMITS[target], max_files, own=len(_OWN_FILES))
    if target == "reading_copy":
        # A tar is nothing for reading: what would be packed stays on the Hub.
        for packing in packed:
            why = "so many files that the Hub's tree has them packed, and an archive is nothing for reading"
            left[f"{packing.folder}/**", why] = [item.bytes for item in packing.items]
        packed = []
    for pattern, found in hidden.items():
        if found:
            left[pattern, "named in publish.leave_out"] = [file.bytes for file in found]
    left_out = [LeftOut(what, why, len(sizes), sum(sizes)) for (what, why), sizes in sorted(left.items())]
    return TargetPlan(target, tuple(kept), tuple(packed), tuple(left_out)), problems


def _shown(entry: Entry) -> str:
    return ", ".join(pattern.replace("{", "<").replace("}", ">") for pattern in entry.patterns) or entry.what
