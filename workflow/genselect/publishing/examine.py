"""Looks through everything that is to be published, and refuses secrets and questions of gated benchmarks by file and place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from genselect.errors import GenselectError
from genselect.publishing.gated import gated_row
from genselect.publishing.packing import Item
from genselect.publishing.readable import Block, read_blocks
from genselect.publishing.secrets import SecretSearch

#: Blocks are searched together up to this many bytes, or this many of them.
_BYTES, _BLOCKS = 16 << 20, 4096
#: A refusal lists this many places.
_SHOWN = 20


def check_secrets(items: Iterable[Item], search: SecretSearch | None = None) -> None:
    """Refuse secrets in names and contents. The refusal says what stands where, and never the secret itself.

    Raises:
        GenselectError: There is one, or a file cannot be looked into.
    """
    said = find_secrets(list(items), search or SecretSearch())
    if said:
        more = f"\n  - and {len(said) - _SHOWN} more" if len(said) > _SHOWN else ""
        raise GenselectError(
            f"{len(said)} place(s) that look like a secret, which is not shown here:\n"
            + "\n".join(f"  - {place}" for place in said[:_SHOWN])
            + more,
            "A key that was written down anywhere is best revoked. Then take it out of the file, or leave the file out "
            "(publish.leave_out).",
        )


def find_secrets(items: Sequence[Item], search: SecretSearch) -> list[str]:
    """What stands where: file, line or row, and kind of each secret.

    Raises:
        GenselectError: A file cannot be looked into.
    """
    names = search.in_names([item.path for item in items])
    said = [f"{shown}, in its name: {kind}" for shown, what in names.values() for kind in what]
    batch: list[tuple[str, Block]] = []
    size = 0
    for item in items:
        shown = names[item.path][0] if item.path in names else item.path
        for block in read_blocks(item.source):
            batch.append((shown, block))
            size += len(block.data)
            if size >= _BYTES or len(batch) >= _BLOCKS:
                said += _search(batch, search)
                batch, size = [], 0
    said += _search(batch, search)
    return list(dict.fromkeys(said))


def _search(batch: list[tuple[str, Block]], search: SecretSearch) -> list[str]:
    said = []
    for number in search.suspicious([block.data for _, block in batch]):
        name, block = batch[number]
        for finding in search.in_block(block.data):
            # Strings of several rows stand in one block; what only they together look like is nothing.
            if block.place(*finding.context) is not None:
                said.append(f"{name}, {block.place(finding.start, finding.end)}: {finding.what}")
    return said


def check_gated(items: Iterable[Item], benchmarks: Collection[str]) -> None:
    """Refuse files with rows of a benchmark whose questions may not be published.

    Raises:
        GenselectError: There is such a file; every one is named, with its first row.
    """
    said = [
        f"{item.path}, {row.place}: benchmark {row.benchmark}"
        for item in items
        if (row := gated_row(Path(item.source), benchmarks)) is not None
    ]
    if said:
        more = f"\n  - and {len(said) - _SHOWN} more" if len(said) > _SHOWN else ""
        raise GenselectError(
            f"{len(said)} file(s) hold questions that may not be published (publish.gated_benchmarks):\n"
            + "\n".join(f"  - {place}" for place in said[:_SHOWN])
            + more,
            "Leave the files out (publish.leave_out), and whatever else holds their questions.",
        )
