r"""The cascade that judges an answer: identical, then symbolic, then (elsewhere) a judge; and the record of a verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from types import TracebackType
from typing import Literal, Self

from genselect.answers.checker import SymbolicChecker
from genselect.answers.normal import identical
from genselect.answers.symbolic import SymbolicVerdict

__all__ = ["CASCADE_VERSION", "Cascade", "Source", "Verdict", "cascade_fingerprint_fields"]

# Part of the judge fingerprint: bump it whenever a change here or in the stages can change any verdict.
CASCADE_VERSION = "1"

Source = Literal["identical", "symbolic", "judge", "rule", "none"]
AnswerPair = tuple[str, str | None]


@dataclass(frozen=True)
class Verdict:
    """One verdict on a (gold, pred) pair. ``correct`` means nothing while ``judged`` is false."""

    correct: bool
    judged: bool
    source: Source
    reasoning: str
    finish_reason: str = "stop"


def cascade_fingerprint_fields() -> dict[str, str]:
    """What the verdicts of stages 1 and 2 depend on besides configuration: versions of this cascade and its libraries."""
    names = ("math-verify", "latex2sympy2_extended", "sympy", "mpmath")
    return {"cascade": CASCADE_VERSION} | {name: version(name) for name in names}


class Cascade:
    """Stages 1 and 2, and the rule that can stand in for a judge. Use as a context manager.

    Args:
        identical: Accept answers that are equal but for ``$``, ``\\( \\)`` and outer spaces.
        symbolic: Accept answers that stage 2 shows to be equal.
        rule: Let stage 2 decide both ways; what it cannot decide is ``judged=False``, never wrong.
        timeout_s: Seconds for one pair of stage 2.
        workers: Processes of stage 2; none is started when neither ``symbolic`` nor ``rule`` is set.
    """

    def __init__(
        self,
        *,
        identical: bool = True,
        symbolic: bool = True,
        rule: bool = False,
        timeout_s: float = 5.0,
        workers: int = 2,
    ) -> None:
        self.identical, self.symbolic, self.rule = identical, symbolic, rule
        self._checker = SymbolicChecker(workers, timeout_s) if symbolic or rule else None

    def __enter__(self) -> Self:
        if self._checker is not None:
            self._checker.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._checker is not None:
            self._checker.__exit__(kind, error, trace)

    def decide(self, gold: str, pred: str | None) -> Verdict | None:
        """Verdict on one pair; ``None`` when the judge has to be asked."""
        return self.decide_many([(gold, pred)])[gold, pred]

    def decide_many(self, pairs: Iterable[AnswerPair]) -> dict[AnswerPair, Verdict | None]:
        """Each distinct pair once, in order of first appearance; ``None`` for a pair the judge has to be asked about."""
        decided: dict[AnswerPair, Verdict | None] = {}
        ask: list[tuple[str, str]] = []
        for gold, pred in dict.fromkeys(pairs):
            decided[gold, pred] = self._first_stage(gold, pred)
            if decided[gold, pred] is None and pred is not None and self._checker is not None:
                ask.append((gold, pred))
        if self._checker is not None and ask:
            for (gold, pred), found in zip(ask, self._checker.check_many(ask), strict=True):
                decided[gold, pred] = self._second_stage(found)
        return decided

    def _first_stage(self, gold: str, pred: str | None) -> Verdict | None:
        if pred is None or not pred.strip():
            return Verdict(False, False, "none", "no boxed answer")
        if self.identical and identical(gold, pred):
            return Verdict(True, True, "identical", "The answer is the expected answer, written the same way.")
        return None

    def _second_stage(self, found: SymbolicVerdict) -> Verdict | None:
        if found is SymbolicVerdict.EQUAL:
            source: Source = "symbolic" if self.symbolic else "rule"
            return Verdict(True, True, source, "The answer has the value and form of the expected answer.")
        if not self.rule:
            return None
        if found is SymbolicVerdict.DIFFERENT:
            return Verdict(False, True, "rule", "The answer differs from the expected answer in value or form.")
        return Verdict(False, False, "none", _UNDECIDED[found])


_UNDECIDED = {
    SymbolicVerdict.GUARDED: "The rule does not decide this kind of pair: whether the two agree depends on the problem.",
    SymbolicVerdict.UNPARSABLE: "The rule cannot parse the answer or the expected answer.",
    SymbolicVerdict.TIMEOUT: "The symbolic check ran over its time limit.",
}
