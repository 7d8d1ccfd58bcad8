"""The labels of a merge, checked against it, and what they say together with upstream's own judgments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genselect.errors import GenselectError
from genselect.formats import Problem, read_json, read_jsonl, read_labels
from genselect.provenance import check_seal, file_sha256, read_seal


@dataclass(frozen=True)
class Labels:
    """Every candidate's verdict: True, False, or None where there is none."""

    path: Path
    verdicts: Mapping[str, Mapping[int, bool | None]]
    """By problem id, then by candidate index."""
    by_source: Mapping[str, int]
    """Candidates by the stage that decided."""
    fingerprints: Mapping[str, str]
    """From the labels' seal; ``judge`` is the one that evaluation must share."""
    labelling_counts: Mapping[str, Any]
    """From the labels' seal: judge calls made, and saved by each stage."""
    merge_duplicates: Mapping[str, Any]
    """From the merge's statistics."""
    judgments: Path
    """Upstream's selections, beside the merge."""

    @property
    def judged(self) -> int:
        """Candidates with a verdict."""
        return sum(verdict is not None for of_problem in self.verdicts.values() for verdict in of_problem.values())

    @property
    def correct(self) -> int:
        """Candidates whose answer equals the expected one."""
        return sum(verdict is True for of_problem in self.verdicts.values() for verdict in of_problem.values())

    @property
    def unjudged(self) -> int:
        """Candidates with no verdict."""
        return sum(verdict is None for of_problem in self.verdicts.values() for verdict in of_problem.values())

    def of(self, problem: Problem) -> list[bool | None]:
        """The verdicts on ``problem``'s candidates, in their order.

        Raises:
            GenselectError: The labels do not cover exactly its candidates.
        """
        found = self.verdicts.get(problem.id, {})
        if sorted(found) != list(range(len(problem.candidates))):
            missing = sorted(set(range(len(problem.candidates))) - set(found))
            what = (
                f"candidate(s) {missing} have no label" if missing else f"there are labels for {len(found)} candidates"
            )
            raise GenselectError(
                f"{self.path}: problem {problem.id} has {len(problem.candidates)} candidates in the merge, and {what}",
                "These are labels of another merge, or labelling did not finish: label this merge again.",
            )
        return [found[index] for index in range(len(problem.candidates))]

    def check_no_others(self, ids: Set[str]) -> None:
        """Check that every label is of one of the merge's problems, ``ids``.

        Raises:
            GenselectError: One is not.
        """
        others = sorted(self.verdicts.keys() - ids)
        if others:
            raise GenselectError(
                f"{self.path}: there are labels for problem {others[0]}, which the merge does not have ({len(others)} such problems)",
                "These are labels of another merge: label this merge again, or give the merge that these were made from.",
            )

    def upstream_agreement(self) -> dict[str, Any] | None:
        """How often the solution that upstream's ``Judgment: k`` chose is correct by our labels.

        Upstream kept only selections judged right, so each disagreement is an error of theirs or of ours. Counted by row of
        the shards. None when the merge left no judgments file.
        """
        if not self.judgments.exists():
            return None
        counts: Counter[str] = Counter()
        for _, row in read_jsonl(self.judgments):
            counts["unreadable"] += row["unreadable"]
            for index, rows in row["selected"].items():
                verdict = self.verdicts.get(row["id"], {}).get(int(index))
                counts["not_judged" if verdict is None else "agree" if verdict else "disagree"] += rows
        compared = counts["agree"] + counts["disagree"]
        return {
            "rows": counts.total(),
            "agree": counts["agree"],
            "disagree": counts["disagree"],
            "not_judged": counts["not_judged"],
            "unreadable_judgment": counts["unreadable"],
            "rate": round(counts["agree"] / compared, 6) if compared else None,
        }


def load_labels(merged: Path, path: Path) -> Labels:
    """Read ``path`` and check that it labels ``merged``. Labels without a seal are accepted if they cover the merge exactly.

    Raises:
        GenselectError: A label is given twice, or the seal names another merge.
    """
    seal = check_seal(path)
    if seal and seal.inputs:
        _check_same_merge(merged, path, {entry.sha256 for entry in seal.inputs})
    verdicts: dict[str, dict[int, bool | None]] = {}
    sources: Counter[str] = Counter()
    for number, label in read_labels(path):
        of_problem = verdicts.setdefault(label.id, {})
        if label.index in of_problem:
            raise GenselectError(
                f"{path}, line {number}: {label.id} candidate {label.index} is labelled twice",
                "Gather the label shards again; each shard must be given once.",
            )
        of_problem[label.index] = label.correct if label.judged else None
        sources[label.source] += 1
    merge_seal = read_seal(merged)
    return Labels(
        path=path,
        verdicts=verdicts,
        by_source=dict(sorted(sources.items())),
        fingerprints=dict(seal.fingerprints) if seal else {},
        labelling_counts=dict(seal.counts) if seal else {},
        merge_duplicates=_duplicates(merged, dict(merge_seal.counts) if merge_seal else {}),
        judgments=merged.with_name(f"{merged.stem}.judgments.jsonl"),
    )


def _check_same_merge(merged: Path, path: Path, labelled: set[str]) -> None:
    found = file_sha256(merged)
    if found not in labelled:
        raise GenselectError(
            f"{path}: these are labels of another merge: their seal names sha256 {'/'.join(sorted(value[:12] for value in labelled))}…, "
            f"and {merged} has {found[:12]}…",
            "Label this merge (label_candidates.py --merged ...), or give the merge that these labels were made from.",
        )


def _duplicates(merged: Path, seal_counts: Mapping[str, Any]) -> Mapping[str, Any]:
    if "duplicates" in seal_counts:
        return dict(seal_counts["duplicates"])
    stats = merged.with_name("merge_stats.json")
    return dict(read_json(stats).get("duplicates", {})) if stats.exists() else {}
