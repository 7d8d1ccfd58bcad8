"""``comparison.md``: the comparison in words that can be forwarded as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from genselect.evaluation.conclusion import points, size

_INTERVALS = {
    "bca": "BCa bootstrap over questions",
    "exact": "exact, since hardly a question differs",
    "t_over_seeds": "t, over questions and training seeds",
}
_TESTS = {
    "paired_t": "paired t test on the differences of questions",
    "sign_exact": "exact sign test, since hardly a question differs",
    "mcnemar_exact": "McNemar's exact test",
    "t_over_seeds": "t test over questions and training seeds",
}


def comparison_text(comparison: Mapping[str, Any]) -> str:
    """Markdown out of what :func:`genselect.evaluation.comparison.compare_arms` returns. The same comparison gives the same text."""
    registered = [entry for entry in comparison["hypotheses"] if not entry["exploratory"]]
    explored = [entry for entry in comparison["hypotheses"] if entry["exploratory"]]
    parts = [
        "# Did it rise?",
        _opening(comparison),
        *(_hypothesis(entry, comparison["settings"]) for entry in registered),
    ]
    if explored:
        parts += [
            "## Exploratory",
            "Added after the preregistration. These suggest; they do not decide.",
            *(_hypothesis(entry, comparison["settings"]) for entry in explored),
        ]
    parts += [
        *_waived(comparison["waived_gates"]),
        *_arms(comparison),
        *_cost(comparison["cost"]),
        *_strata(comparison["hypotheses"]),
        *_method(comparison),
    ]
    return "\n\n".join(parts) + "\n"


def _opening(comparison: Mapping[str, Any]) -> str:
    settings = comparison["settings"]
    return (
        f"{comparison['questions']:,} held-out questions, each arm on all of them. Fixed on {comparison['preregistered']}, before the "
        f"formal run: hypotheses, arms, test, and that a rise of {size(settings['smallest_effect'])} points is the smallest that matters. "
        "Accuracy is the mean over questions of the share of right answers; points are percentage points."
    )


def _hypothesis(entry: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    mark = " (exploratory)" if entry["exploratory"] else ""
    lines = [
        f"### {entry['arm']} above {entry['against']}?{mark} **{entry['verdict']['word'].capitalize()}**",
        "",
        entry["verdict"]["sentence"],
        "",
        f"- Accuracy {_share(entry['arm_accuracy'])} against {_share(entry['against_accuracy'])}, on {entry['questions']:,} questions; "
        f"the two differ on {entry['paired']['differing']:,} of them.",
        f"- Standard error {size(entry['standard_error'])} points, clustered by question; interval: {_INTERVALS[entry['interval_kind']]}.",
        f"- {_p(entry['p_value'])} ({_TESTS[entry['test']]}), {_p(entry['p_adjusted'])} after Holm over the family {entry['family']}.",
        f"- Could have been seen at this size: {size(entry['detectable'])} points with chance {settings['power']:.0%}"
        + _planned(entry["preregistered_detectable"])
        + ".",
    ]
    if entry["mcnemar"] is not None:
        found = entry["mcnemar"]
        lines.append(
            f"- McNemar's exact test on {found['of']}: {found['gained']} gained, {found['lost']} lost, {_p(found['p_value'])}."
        )
    replicates = entry["replicates"]
    if replicates["seeds"] > 1:
        seeds = ", ".join(points(value) for value in replicates["by_seed"])
        lines.append(f"- By training seed: {seeds} points. {replicates['note']}")
    else:
        lines.append(f"- {replicates['note']}")
    return "\n".join(lines)


def _planned(planned: Mapping[str, Any] | None) -> str:
    if planned is None:
        return ""
    return f"; planned before: {size(planned['difference'])} ({size(planned['at_double_variance'])} if questions differed twice as much)"


def _waived(gates: Mapping[str, str]) -> list[str]:
    if not gates:
        return []
    lines = "\n".join(f"- `{name}`: {reason}" for name, reason in gates.items())
    return ["## Gates that were waived", "The formal run went on although these did not pass.\n\n" + lines]


def _arms(comparison: Mapping[str, Any]) -> list[str]:
    rows = []
    for arm in comparison["arms"]:
        name = arm["name"] + (" (exploratory)" if arm["exploratory"] else "")
        rows.append(
            [
                name,
                f"{arm['seeds']} × {arm['samples']}",
                f"{_share(arm['accuracy'])} ± {size(arm['standard_error'])}",
                f"{arm['shown']:.2f}",
                _share(arm["submitted"]),
                _share(arm["follow_majority"]),
                _share(arm["minority_recovery"]),
                _share(arm["majority_kept"]),
            ]
        )
    head = ["arm", "seeds × samples", "accuracy, %", "candidates shown", "submitted, %", "follows majority, %", "recovers, %",
            "keeps, %"]  # fmt: skip
    recoverable = comparison["arms"][0]["recoverable_questions"] if comparison["arms"] else 0
    return [
        "## Arms",
        _grid(head, rows),
        "± is one standard error, clustered by question. *Follows*: submitted answers that are in the majority class of all candidates. "
        f"*Recovers*: right on the {recoverable:,} questions whose majority is wrong though a candidate is right. *Keeps*: right "
        "where the majority is right.",
    ]


def _cost(cost: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        [point["arm"], f"{point['shown']:.2f}", _share(point["accuracy"]), _share(point["majority_at_same_cost"])]
        for point in cost
    ]
    return [
        "## Accuracy against cost",
        _grid(["arm", "candidates shown", "accuracy, %", "majority of as many, %"], rows),
        "The last column is read off the majority curve, linear between whole numbers of candidates.",
    ]


def _strata(hypotheses: Sequence[Mapping[str, Any]]) -> list[str]:
    parts = ["## By number of correct candidates"] if hypotheses else []
    for entry in hypotheses:
        rows = [
            [
                str(level["correct"]),
                f"{level['questions']:,}",
                _share(level["arm"]),
                _share(level["reference"]),
                points(level["difference"])
                + (f" ± {size(level['standard_error'])}" if level["standard_error"] is not None else ""),
            ]
            for level in entry["strata"]
        ]
        head = [
            "correct candidates",
            "questions",
            f"{entry['arm']}, %",
            f"{entry['against']}, %",
            "difference, points",
        ]
        parts += [f"### {entry['arm']} and {entry['against']}", _grid(head, rows)]
    return [*parts, "Strata describe where a difference comes from; none of them is tested."] if parts else []


def _method(comparison: Mapping[str, Any]) -> list[str]:
    settings = comparison["settings"]
    return [
        "## What this rests on",
        f"Judge `{settings['judge_fingerprint'][:12]}`, the same for all arms; population `{settings['population_sha256'][:12]}`; "
        f"{settings['level']:.0%} intervals, two-sided; Holm's correction at {settings['alpha']:g} within each family.",
        f"- Yes: the adjusted p is below {settings['alpha']:g}, and it rose.\n"
        f"- No: the adjusted p is below {settings['alpha']:g}, and it fell; or the interval ends below the smallest rise that matters.\n"
        "- Cannot tell: neither.",
        "Formulas and sources: docs/evaluation.md.",
    ]


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _share(value: float | None) -> str:
    return "–" if value is None else size(value)


def _p(value: float) -> str:
    return "p < 0.0001" if value < 1e-4 else f"p = {value:.2g}"
