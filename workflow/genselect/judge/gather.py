"""Put the labels of all shards together, after making sure that they belong together and leave nothing out."""

from __future__ import annotations

import datetime
import heapq
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from genselect.errors import GenselectError
from genselect.formats import Label, read_labels, read_problems, write_jsonl
from genselect.judge.counts import Counts, add
from genselect.provenance import Seal, check_seal, file_sha256, seal_path, write_seal

_AGAIN = "Label that shard again with the current merge and configuration."


def gather_labels(merged: Path | str, shards: Sequence[Path | str], output: Path | str) -> Counts:
    """Write and seal ``output``, the labels of every candidate of ``merged``; returns the added counts.

    Raises:
        GenselectError: A shard is not sealed, is of another merge or judge, repeats a label, or labels are missing.
    """
    started = datetime.datetime.now(datetime.UTC)
    seals = _seals(Path(merged), [Path(shard) for shard in shards])
    counts = add(dict(seal.counts) for seal in seals)
    expected = sorted((problem.id, len(problem.candidates)) for problem in read_problems(merged))
    labels = heapq.merge(*(_sorted_labels(Path(shard)) for shard in shards), key=lambda entry: entry[0])
    write_jsonl(output, (label.as_json() for label in _complete(expected, labels)))
    config = {name: value for name, value in seals[0].config.items() if name != "shard"}
    write_seal(
        output,
        kind="labels",
        counts=counts,
        outputs=[output],
        inputs=[merged, *shards],
        started=started,
        fingerprints=seals[0].fingerprints,
        config=config,
    )
    return counts


_Place = tuple[str, int]
_Entry = tuple[_Place, str, Label]


def _seals(merged: Path, shards: list[Path]) -> list[Seal]:
    """The shards' seals, all of this merge and one judge."""
    if not shards:
        raise GenselectError("no shard of labels was given", "Name every labels file after --shards.")
    check_seal(merged)
    wanted = file_sha256(merged)
    seals: list[Seal] = []
    for shard in shards:
        seal = check_seal(shard)
        if seal is None or seal.kind != "labels":
            raise GenselectError(f"{shard}: {seal_path(shard).name} is missing, or seals no labels", _AGAIN)
        found = seal.inputs[0].sha256 if seal.inputs else "?"
        if found != wanted:
            raise GenselectError(
                f"{shard}: made from another merge (sha256 {found[:12]}…) than {merged} ({wanted[:12]}…)", _AGAIN
            )
        judge, first = seal.fingerprints.get("judge", "?"), seals[0] if seals else seal
        if judge != first.fingerprints.get("judge", "?"):
            raise GenselectError(
                f"{shard}: judged under fingerprint {judge[:12]}…, and {shards[0]} under "
                f"{first.fingerprints.get('judge', '?')[:12]}…",
                "All shards must be labelled with the same judge settings. " + _AGAIN,
            )
        seals.append(seal)
    return seals


def _sorted_labels(shard: Path) -> Iterator[_Entry]:
    """The shard's labels with their places, which must rise."""
    last: _Place = ("", -1)
    for number, label in read_labels(shard):
        place = (label.id, label.index)
        where = f"{shard}, line {number}"
        if place == last:
            raise GenselectError(f"{where}: candidate {label.index} of {label.id} is labelled twice", _AGAIN)
        if place < last:
            raise GenselectError(f"{where}: labels must be sorted by id and index", _AGAIN)
        last = place
        yield place, where, label


def _complete(expected: Iterable[tuple[str, int]], labels: Iterable[_Entry]) -> Iterator[Label]:
    """``labels`` as they are, provided that they are exactly those of ``expected`` (ids with candidate counts, sorted)."""
    places = ((id_, index) for id_, candidates in expected for index in range(candidates))
    last: _Place | None = None
    for place, where, label in labels:
        if place == last:
            raise GenselectError(
                f"{where}: candidate {label.index} of {label.id} is labelled by another shard too",
                "Name each shard once, and cut all of them with the same N of --shard K/N.",
            )
        wanted = next(places, None)
        if wanted is None or place < wanted:
            raise GenselectError(f"{where}: the merge has no candidate {label.index} of {label.id}", _AGAIN)
        if place > wanted:
            raise _missing(wanted)
        last = place
        yield label
    if (wanted := next(places, None)) is not None:
        raise _missing(wanted)


def _missing(place: _Place) -> GenselectError:
    return GenselectError(
        f"no shard labels candidate {place[1]} of {place[0]}", "Name every shard, 1/N to N/N, after --shards."
    )
