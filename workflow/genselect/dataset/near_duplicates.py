"""Problem statements that are the same, or nearly.

Statements are compared by the Jaccard similarity of their character shingles, after case, spacing and LaTeX spacing are
taken out. MinHash with locality-sensitive hashing (datasketch; Broder 1997, Indyk and Motwani 1998) proposes pairs; each is
then measured exactly, so a pair that is reported is truly over the threshold, and one just over it is missed with the small
probability that the number of permutations sets.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from datasketch import MinHash, MinHashLSH
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from genselect.config.models import NearDuplicates

# What changes a statement's look and not its meaning: white space, dollar signs, \left, \right, \, \; \! \: \quad and the like.
_INVISIBLE = re.compile(r"\s+|\$|\\[()\[\],;!: ]|\\(?:left|right|quad|qquad|displaystyle)(?![a-z])")


@dataclass(frozen=True)
class DuplicateGroups:
    """Which statements belong together."""

    group: tuple[int, ...]
    """A group number for each statement, in the order given; equal numbers are (near) duplicates, by way of others too."""
    pairs: int
    """Pairs at or over the threshold."""

    @property
    def duplicated(self) -> int:
        """Statements that share their group with another."""
        counts = np.bincount(np.asarray(self.group, dtype=np.int64)) if self.group else np.zeros(0, dtype=np.int64)
        return int(counts[counts > 1].sum())


def find_duplicates(statements: Sequence[str], settings: NearDuplicates) -> DuplicateGroups:
    """Group ``statements`` whose similarity is at least ``settings.threshold``.

    Time grows with the number of statements and of proposed pairs, not with all pairs.
    """
    shingles = [_shingles(statement, settings.shingle) for statement in statements]
    rows: list[int] = []
    columns: list[int] = []
    # The index takes a threshold below the wanted one, so that few true pairs are missed; the exact measure decides.
    index = MinHashLSH(threshold=max(0.1, settings.threshold - 0.1), num_perm=settings.permutations)
    for position, own in enumerate(shingles):
        sketch = MinHash(num_perm=settings.permutations, seed=1)
        sketch.update_batch([shingle.encode() for shingle in own])
        for other in index.query(sketch):
            if _jaccard(own, shingles[other]) >= settings.threshold:
                rows.append(position)
                columns.append(other)
        index.insert(position, sketch, check_duplication=False)
    graph = coo_array((np.ones(len(rows), dtype=bool), (rows, columns)), shape=(len(statements), len(statements)))
    labels = connected_components(graph, directed=False)[1] if statements else []
    return DuplicateGroups(tuple(int(label) for label in labels), len(rows))


def _shingles(statement: str, size: int) -> frozenset[str]:
    text = _INVISIBLE.sub("", unicodedata.normalize("NFKC", statement).casefold())
    return frozenset(text[start : start + size] for start in range(max(1, len(text) - size + 1)))


def _jaccard(left: frozenset[str], right: frozenset[str]) -> float:
    shared = len(left & right)
    return shared / (len(left) + len(right) - shared)
