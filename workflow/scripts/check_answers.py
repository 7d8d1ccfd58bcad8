#!/usr/bin/env python3
"""Measure the cascade on answer cases of known truth: a table by stage, the disagreements, and a last line of JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from genselect.answers import Cascade, Verdict, final_answer, has_box_command
from genselect.errors import GenselectError

STAGES = ("identical", "symbolic", "rule")


@dataclass(frozen=True)
class Case:
    """One line of the cases file; ``pred`` is None when the text holds no answer."""

    line: int
    gold: str
    pred: str | None
    equivalent: bool
    note: str


@dataclass
class Counts:
    """What one stage decided, and how often it was right."""

    decided: int = 0
    agree: int = 0
    false_accepts: int = 0
    false_rejects: int = 0

    def add(self, correct: bool, equivalent: bool) -> None:
        """Count one verdict against the truth."""
        self.decided += 1
        self.agree += correct == equivalent
        self.false_accepts += correct and not equivalent
        self.false_rejects += equivalent and not correct


@dataclass
class Outcome:
    """Counts over all cases and by stage, with the cases that went wrong."""

    total: Counts = field(default_factory=Counts)
    by_stage: dict[str, Counts] = field(default_factory=dict)
    no_verdict: int = 0
    disagreements: list[tuple[Case, Verdict]] = field(default_factory=list)
    undecided: list[tuple[Case, Verdict | None]] = field(default_factory=list)


def main(argv: list[str] | None = None) -> int:
    """Run the program; exit code 2 on input that cannot be used."""
    arguments = parse_arguments(argv)
    try:
        cases = list(read_cases(arguments.cases))
        with cascade_for(arguments.config) as cascade:
            outcome = judge(cases, cascade)
    except GenselectError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print_report(outcome, len(cases))
    return 0


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Command line of this program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=Path, required=True, help="JSON lines with gold, pred and equivalent")
    parser.add_argument(
        "--config", type=Path, help="experiment config whose judge.cascade to use; default: rule, all stages"
    )
    return parser.parse_args(argv)


def read_cases(path: Path) -> Iterator[Case]:
    """Cases of a JSON lines file, in order. Raises GenselectError naming file and line for anything it cannot use."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise GenselectError(f"{path}: {error.strerror}", "Give --cases a file that can be read.") from error
    except UnicodeDecodeError as error:
        bad = error.object[: error.start].count(b"\n") + 1
        raise GenselectError(
            f"{path}, line {bad}: not UTF-8", "Save the cases as UTF-8, one JSON object a line."
        ) from error
    # Not splitlines(): it also breaks at separators that JSON strings may hold unescaped.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise GenselectError(f"{path}: no cases in it", "Write one JSON object a line with gold, pred and equivalent.")
    for number, line in lines:
        yield read_case(line, number, f"{path}, line {number}")


def read_case(line: str, number: int, where: str) -> Case:
    """One line as a case, its answers taken out of their boxes."""
    try:
        record: Any = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise GenselectError(f"{where}: not JSON ({error})", "Write one JSON object a line.") from error
    if not isinstance(record, dict):
        raise GenselectError(f"{where}: not a JSON object", "Write one JSON object a line.")
    for key, kind, words in (
        ("gold", str, "a string"),
        ("pred", str, "a string"),
        ("equivalent", bool, "true or false"),
    ):
        if key not in record:
            raise GenselectError(f"{where}: the key {key!r} is missing", "Each line needs gold, pred and equivalent.")
        if not isinstance(record[key], kind):
            raise GenselectError(f"{where}: {key!r} is not {words}", f"Write {key!r} as {words}.")
    gold = final_answer(record["gold"]) if has_box_command(record["gold"]) else record["gold"]
    if not gold or not gold.strip():
        raise GenselectError(f"{where}: 'gold' holds no answer", "Give the expected answer, boxed or bare.")
    return Case(number, gold, final_answer(record["pred"]), record["equivalent"], str(record.get("note", "")))


def cascade_for(config: Path | None) -> Cascade:
    """The cascade of a config file, or all stages with the rule."""
    if config is None:
        return Cascade(rule=True)
    from genselect.config import load_config

    judge_config = load_config(config).judge
    settings = judge_config.cascade
    return Cascade(
        identical=settings.identical,
        symbolic=settings.symbolic,
        rule=judge_config.kind == "rule",
        timeout_s=settings.symbolic_timeout_s,
        workers=settings.symbolic_workers,
    )


def judge(cases: list[Case], cascade: Cascade) -> Outcome:
    """Verdicts of the cascade on all cases, counted against the truth."""
    verdicts = cascade.decide_many((case.gold, case.pred) for case in cases)
    outcome = Outcome(by_stage={stage: Counts() for stage in STAGES})
    for case in cases:
        verdict = verdicts[case.gold, case.pred]
        if verdict is None or not verdict.judged:
            outcome.no_verdict += 1
            outcome.undecided.append((case, verdict))
            continue
        for counts in (outcome.total, outcome.by_stage[verdict.source]):
            counts.add(verdict.correct, case.equivalent)
        if verdict.correct != case.equivalent:
            outcome.disagreements.append((case, verdict))
    return outcome


def print_report(outcome: Outcome, cases: int) -> None:
    """Disagreements, cases without a verdict, the table, and the counts as JSON on the last line."""
    for case, verdict in outcome.disagreements:
        kind = "false accept" if verdict.correct else "false reject"
        print(f"{kind} by {verdict.source}, line {case.line}: gold {case.gold!r}, pred {case.pred!r}{_note(case)}")
    for case, undecided in outcome.undecided:
        reason = undecided.reasoning if undecided else "left to the judge"
        print(f"no verdict, line {case.line}: gold {case.gold!r}, pred {case.pred!r}: {reason}{_note(case)}")
    print(f"\n{'stage':<12}{'decided':>9}{'agree':>9}{'false accepts':>15}{'false rejects':>15}")
    for stage, counts in [*outcome.by_stage.items(), ("all", outcome.total)]:
        print(f"{stage:<12}{counts.decided:>9}{counts.agree:>9}{counts.false_accepts:>15}{counts.false_rejects:>15}")
    print(f"{'no verdict':<12}{outcome.no_verdict:>9}\n")
    total = outcome.total
    summary = {
        "cases": cases,
        "agree": total.agree,
        "false_accepts": total.false_accepts,
        "false_rejects": total.false_rejects,
        "no_verdict": outcome.no_verdict,
        "by_stage": {stage: vars(counts) for stage, counts in outcome.by_stage.items()},
    }
    print(json.dumps(summary))


def _note(case: Case) -> str:
    return f" [{case.note}]" if case.note else ""


if __name__ == "__main__":
    sys.exit(main())
