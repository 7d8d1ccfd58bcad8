"""Builds the published trees, ``results/publication/<name>/<target>/``, out of ``results/``.

Each is built beside its place and takes it when it is whole; until then the former one stands. Nothing in it tells when or where it
was staged, so the same results give the same bytes.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from genselect.config import Config
from genselect.config.training import Run
from genselect.errors import GenselectError
from genselect.formats import write_json, write_text
from genselect.provenance.seal import file_sha256
from genselect.publishing.contents import FRONT_PAGE_ENTRY
from genselect.publishing.examine import check_gated, check_secrets
from genselect.publishing.front_page import front_page
from genselect.publishing.gated import check_experiment
from genselect.publishing.layout import StagingPlan, TargetPlan, make_plan, publication_folder
from genselect.publishing.packing import Item, write_archive
from genselect.publishing.publication import FILE, FRONT_PAGE, Publication, PublishedFile, Target, write_publication
from genselect.publishing.secrets import SecretSearch
from genselect.status.render import in_bytes

logger = logging.getLogger(__name__)

#: Beside the trees: what was staged, for whoever waits for it.
RECEIPT = "staged.json"
_BUILDING, _FORMER = ".{}.staging", ".{}.former"
#: A refusal lists this many paths.
_SHOWN = 20


def stage(config: Config, runs: Mapping[str, Run], results: Path) -> dict[Target, Publication]:
    """Stage every target's tree, then write ``staged.json`` beside them.

    Args:
        config: The configuration.
        runs: Resolved.
        results: The results folder.

    Raises:
        GenselectError: Something may not be published (undeclared files, secrets, gated questions), or does not fit a target's limits.
    """
    check_experiment(config)
    plan = make_plan(config, results)
    check_plan(plan)
    leaving = {item.source: item for tree in plan.targets.values() for item in tree.all_items()}
    check_gated(leaving.values(), config.publish.gated_benchmarks)
    search = SecretSearch()
    check_secrets(leaving.values(), search)
    home = publication_folder(results, config.dataset.name)
    home.mkdir(parents=True, exist_ok=True)
    sums: dict[Path, str] = {}
    staged: dict[Target, Publication] = {}
    for target, tree in plan.targets.items():
        building = home / _BUILDING.format(target)
        _clear(building)
        staged[target] = _build(config, runs, results, tree, building, sums)
        # The configuration's title and links are in it.
        page = building / FRONT_PAGE
        check_secrets([Item(FRONT_PAGE, page, page.stat().st_size, FRONT_PAGE_ENTRY)], search)
    # All or none: a target that cannot be built leaves the others as they were, too.
    for target in staged:
        _replace(home / target, home / _BUILDING.format(target), home / _FORMER.format(target))
    write_json(home / RECEIPT, {target: _summary(home / target, publication) for target, publication in staged.items()})
    return staged


def check_plan(plan: StagingPlan) -> None:
    """Refuse a plan that cannot be carried out.

    Raises:
        GenselectError: The first thing that is wrong with it.
    """
    if plan.unknown:
        more = f"\n  - and {len(plan.unknown) - _SHOWN} more" if len(plan.unknown) > _SHOWN else ""
        raise GenselectError(
            f"{len(plan.unknown)} file(s) of the results that the list of what is published does not name:\n"
            + "\n".join(f"  - {path}" for path in plan.unknown[:_SHOWN])
            + more,
            "Leave them out by a pattern in publish.leave_out, move them out of the results folder, or, when every experiment has "
            "such files, name them in genselect/publishing/contents.py.",
        )
    if plan.idle:
        raise GenselectError(
            f"publish.leave_out: no file fits {', '.join(plan.idle)}",
            "Patterns are relative to the results folder, such as runs/smoke/**; one that fits nothing may be meant to fit something.",
        )
    if plan.missing:
        raise GenselectError(
            f"to be published, and not there: {', '.join(plan.missing)}",
            "Name a step whose save was kept (anchors, and the last); an adapter is written by the rule export_adapter, a base model by "
            "make_base_model.",
        )
    for problem in plan.problems:
        raise problem


def _build(
    config: Config, runs: Mapping[str, Run], results: Path, plan: TargetPlan, tree: Path, sums: dict[Path, str]
) -> Publication:
    files = []
    for item in plan.items:
        _place(item, tree / item.path)
        # The same file in both trees is read once; of one that grows each tree has a copy of its own.
        if item.source not in sums or item.entry.appended:
            sums[item.source] = file_sha256(tree / item.path)
        size = (tree / item.path).stat().st_size
        files.append(PublishedFile(item.path, size, sums[item.source], item.entry.kind))
    archives = []
    for packing in plan.packed:
        archives.append(write_archive(packing, tree))
        files.append(_published(tree, packing.archive, "archive"))
        logger.info("packed %s: %d files, %s", packing.folder, len(packing.items), in_bytes(packing.bytes))
    write_text(tree / FRONT_PAGE, front_page(config, runs, results, plan, tuple(archives)))
    files.append(_published(tree, FRONT_PAGE, FRONT_PAGE_ENTRY.kind))
    files.sort(key=lambda file: file.path)
    publication = Publication(config.dataset.name, plan.target, tuple(files), tuple(archives), plan.left_out)
    write_publication(tree, publication)
    return publication


def _published(tree: Path, path: str, kind: str) -> PublishedFile:
    return PublishedFile(path, (tree / path).stat().st_size, file_sha256(tree / path), kind)


def _place(item: Item, target: Path) -> None:
    """Link the file into the tree; copy it where links do not go (another file system), or where lines are added to it later."""
    target.parent.mkdir(parents=True, exist_ok=True)
    source = item.source.resolve()
    if not item.entry.appended:
        try:
            os.link(source, target)
        except OSError:
            # Whatever keeps a link from being made (file system, permission, too many of them), a copy does as well.
            target.unlink(missing_ok=True)
        else:
            return
    shutil.copyfile(source, target)


def _replace(place: Path, tree: Path, former: Path) -> None:
    _clear(former)
    if place.exists():
        place.rename(former)
    tree.rename(place)
    _clear(former)


def _clear(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _summary(tree: Path, publication: Publication) -> dict[str, object]:
    return {
        "files": len(publication.files) + 1,
        "bytes": sum(file.bytes for file in publication.files),
        "archives": [asdict(archive) for archive in publication.archives],
        "publication_sha256": file_sha256(tree / FILE),
    }
