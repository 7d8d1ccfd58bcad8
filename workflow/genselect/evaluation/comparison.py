"""The comparison: every arm on the same questions, judged by one judge, against what was preregistered."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import stats

from genselect.errors import GenselectError
from genselect.evaluation.baselines import Equal
from genselect.evaluation.behaviour import (
    Votes,
    cost_points,
    majority_behaviour,
    shown_histogram,
    strata,
)
from genselect.evaluation.conclusion import verdict
from genselect.evaluation.power import minimum_detectable_effect
from genselect.evaluation.preregistration import EXPLORATORY, check
from genselect.evaluation.questions import Question, population_sha256
from genselect.evaluation.replicates import Replicates, combine_seeds
from genselect.evaluation.statistics import (
    RESAMPLES,
    Paired,
    holm,
    mcnemar_exact,
    paired_comparison,
    question_differences,
    question_means,
    single_draw,
)

SCHEMA_VERSION = 1


@dataclass(frozen=True, eq=False)
class Arm:
    """One arm's results."""

    name: str
    rows: pd.DataFrame
    """A row an answer. ``question_id``; ``correct``, 0 or 1 (in between only for ``mean``); ``shown``, candidates revealed. Optional:
    ``seed`` of the training run (default 0), ``sample`` (numbered where absent), ``expected``, the exact mean over ties of a vote
    (default ``correct``), and ``answer``, the text submitted, None where nothing was."""
    judge_fingerprint: str
    """Of the judge that scored it, or that labelled the candidates it chooses from."""
    kind: Literal["baseline", "model"] = "model"
    description: str = ""


def baseline_arms(rows: pd.DataFrame, judge_fingerprint: str) -> dict[str, Arm]:
    """The arms in what :func:`genselect.evaluation.baselines.baseline_rows` returns."""
    return {
        str(name): Arm(str(name), group.drop(columns="arm").reset_index(drop=True), judge_fingerprint, "baseline")
        for name, group in rows.groupby("arm", sort=False)
    }


def compare_arms(
    arms: Mapping[str, Arm],
    questions: Sequence[Question],
    preregistration: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    waived_gates: Mapping[str, str] | None = None,
    equal: Equal | None = None,
    resamples: int = RESAMPLES,
) -> dict[str, Any]:
    """The whole comparison, as ``comparison.json`` holds it.

    Args:
        arms: By name: every one that ``settings`` lists, exploratory ones included, and no other.
        questions: The population.
        preregistration: Of :func:`genselect.evaluation.preregistration.read_preregistration`.
        settings: Of :func:`genselect.evaluation.preregistration.make_settings`, as of now.
        waived_gates: Reason by gate, passed on.
        equal: Merges answer classes beyond normal forms; as given to the baselines.
        resamples: Of the bootstrap.

    Returns:
        ``hypotheses`` with figures and verdicts, ``arms``, ``cost``, and what they rest on. Plain JSON values.

    Raises:
        GenselectError: The settings differ from the preregistered ones; the population is another; an arm is missing or not
            listed; arms have different judges; an arm lacks questions or samples, or holds values that are no verdicts.
    """
    check(preregistration, settings)
    if population_sha256(questions) != settings["population_sha256"] or len(questions) != settings["questions"]:
        raise GenselectError(
            f"the {len(questions)} questions at hand are not the {settings['questions']} preregistered ones: ids, candidates or "
            "labels differ",
            "Use the built data that the preregistration names, or preregister again and run the formal run anew.",
        )
    names = [*settings["arms"], *settings["exploratory"]["arms"]]
    _check_names(names, arms)
    _check_judges(names, arms, settings["judge_fingerprint"])
    ids = {question.question_id for question in questions}
    tables = {name: _table(arms[name], ids, _samples(settings, name)) for name in names}
    votes = Votes.of(questions, int(settings["seeds"].get("tie_break", 0)), equal)
    registered = [_test(entry, tables, settings, False, resamples) for entry in settings["hypotheses"]]
    explored = [_test(entry, tables, settings, True, resamples) for entry in settings["exploratory"]["hypotheses"]]
    hypotheses = _conclude(registered + explored, settings, preregistration["minimum_detectable"])
    for entry in hypotheses:
        entry["strata"] = strata(tables[entry["arm"]], tables[entry["against"]], questions)
    return {
        "schema_version": SCHEMA_VERSION,
        "preregistered": preregistration["written"],
        "settings": dict(settings),
        "questions": len(questions),
        "hypotheses": hypotheses,
        "arms": [_describe(arms[name], tables[name], votes, settings) for name in names],
        "cost": cost_points(tables),
        "waived_gates": dict(waived_gates or {}),
    }


def _samples(settings: Mapping[str, Any], name: str) -> int:
    """Samples a question and seed of an arm, preregistered or exploratory."""
    return int({**settings[EXPLORATORY].get("samples", {}), **settings["samples"]}.get(name, 1))


def _check_names(names: Sequence[str], arms: Mapping[str, Arm]) -> None:
    missing = [name for name in names if name not in arms]
    if missing:
        raise GenselectError(
            f"{len(missing)} arm(s) are missing: {', '.join(missing)}",
            "Evaluate them: there is no verdict without every arm that was preregistered.",
        )
    unlisted = [name for name in arms if name not in names]
    if unlisted:
        raise GenselectError(
            f"{len(unlisted)} arm(s) were not preregistered: {', '.join(unlisted)}",
            "List them under exploratory arms; they are then compared, and labelled as such.",
        )


def _check_judges(names: Sequence[str], arms: Mapping[str, Arm], wanted: str) -> None:
    others = {name: arms[name].judge_fingerprint for name in names if arms[name].judge_fingerprint != wanted}
    if others:
        listed = ", ".join(f"{name} {found[:12]}" for name, found in others.items())
        raise GenselectError(
            f"{len(others)} arm(s) were not judged by the preregistered judge ({wanted[:12]}): {listed}",
            "Answers judged in different ways cannot be compared. Judge them again with the preregistered judge.",
        )


def _table(arm: Arm, ids: set[str], samples: int) -> pd.DataFrame:
    """The arm's rows with every column, checked."""
    needed = {"question_id", "correct", "shown"}
    if not needed <= set(arm.rows.columns):
        raise GenselectError(
            f"arm {arm.name}: columns {', '.join(sorted(needed - set(arm.rows.columns)))} are missing",
            "Evaluate the arm again.",
        )
    rows = arm.rows.reset_index(drop=True)
    rows = rows if "seed" in rows else rows.assign(seed=0)
    rows = rows if "expected" in rows else rows.assign(expected=rows["correct"])
    for column in ("correct", "expected"):
        values = rows[column].to_numpy(dtype=np.float64)
        if not bool(((values >= 0) & (values <= 1)).all()):
            raise GenselectError(
                f"arm {arm.name}: {column} holds values that are not between 0 and 1", "Evaluate the arm again."
            )
    for seed, group in rows.groupby("seed"):
        _check_questions(arm.name, seed, group, ids, samples)
    return rows


def _check_questions(name: str, seed: object, rows: pd.DataFrame, ids: set[str], samples: int) -> None:
    counts = rows["question_id"].value_counts()
    missing, extra = sorted(ids - set(counts.index)), sorted(set(counts.index) - ids)
    where = f"arm {name}" + (f", seed {seed}" if seed else "")
    if missing or extra:
        parts = [f"{len(missing)} question(s) are missing, such as {missing[0]}"] if missing else []
        parts += [f"{len(extra)} do not belong to the population, such as {extra[0]}"] if extra else []
        raise GenselectError(
            f"{where}: {'; '.join(parts)}", "All arms answer the same questions; evaluate the arm on all of them."
        )
    wrong = counts[counts != samples]
    if len(wrong):
        raise GenselectError(
            f"{where}: {len(wrong)} question(s) do not have the {samples} sample(s) preregistered; {wrong.index[0]} has {wrong.iloc[0]}",
            "Evaluate the arm with the preregistered number of samples.",
        )


def _test(
    entry: Mapping[str, str],
    tables: Mapping[str, pd.DataFrame],
    settings: Mapping[str, Any],
    exploratory: bool,
    resamples: int,
) -> dict[str, Any]:
    """Figures of one hypothesis, before the family is corrected."""
    arm, reference = tables[entry["arm"]], tables[entry["against"]]
    differences = question_differences(arm, reference)
    paired = paired_comparison(
        differences.mean(axis=1).to_numpy(),
        level=settings["level"],
        resamples=resamples,
        seed=int(settings["seeds"].get("bootstrap", 0)),
    )
    replicates = combine_seeds(differences.to_numpy(), level=settings["level"])
    mcnemar = _mcnemar(arm, reference, int(settings["seeds"].get("draw", 0)))
    p_value, test, interval, kind = _primary(paired, replicates)
    if settings["test"] == "mcnemar_exact":
        if mcnemar is None:
            raise GenselectError(
                f"hypothesis {entry['name']}: McNemar's test needs 0 / 1 verdicts, and an arm has shares",
                "Preregister the test paired_t.",
            )
        p_value, test = mcnemar["p_value"], "mcnemar_exact"
    return {
        **entry,
        "family": EXPLORATORY if exploratory else entry["family"],
        "exploratory": exploratory,
        "arm_accuracy": float(question_means(arm, "expected").mean()),
        "against_accuracy": float(question_means(reference, "expected").mean()),
        "questions": paired.questions,
        "difference": paired.difference,
        "standard_error": replicates.standard_error,
        "interval": list(interval),
        "interval_kind": kind,
        "p_value": p_value,
        "test": test,
        "paired": dataclasses.asdict(paired),
        "replicates": dataclasses.asdict(replicates),
        "mcnemar": mcnemar,
    }


def _primary(paired: Paired, replicates: Replicates) -> tuple[float, str, tuple[float, float], str]:
    """p value, test, interval and its kind: over questions alone with one seed, over seeds too with several."""
    if replicates.seeds == 1:
        return paired.p_value, paired.test, paired.interval, paired.interval_kind
    if paired.interval_kind == "exact":  # hardly a question differs: the wider of both
        low, high = (pick(paired.interval[i], replicates.interval[i]) for i, pick in enumerate((min, max)))
        return max(paired.p_value, replicates.p_value), paired.test, (low, high), "exact"
    return replicates.p_value, "t_over_seeds", replicates.interval, "t_over_seeds"


def _mcnemar(arm: pd.DataFrame, reference: pd.DataFrame, seed: int) -> dict[str, Any] | None:
    if not all(np.isin(rows["correct"], (0, 1)).all() for rows in (arm, reference)):
        return None
    ours, theirs = single_draw(arm, seed), single_draw(reference, seed)
    single = all(rows["question_id"].is_unique for rows in (arm, reference))
    found = dataclasses.asdict(mcnemar_exact(ours.to_numpy(), theirs.to_numpy()))
    return {**found, "of": "the one verdict a question" if single else "one verdict a question, drawn by seed"}


def _conclude(
    tests: list[dict[str, Any]], settings: Mapping[str, Any], minimum_detectable: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Adds adjusted p values, what could have been seen, and the verdict."""
    families: dict[str, dict[str, float]] = {}
    for entry in tests:
        families.setdefault(entry["family"], {})[entry["name"]] = entry["p_value"]
    adjusted = {name: value for members in families.values() for name, value in holm(members).items()}
    for entry in tests:
        # Of the standard error at hand, spread between seeds included.
        variance = entry["standard_error"] ** 2 * entry["questions"]
        detectable = minimum_detectable_effect(
            entry["questions"],
            alpha=settings["alpha"] / len(families[entry["family"]]),
            power=settings["power"],
            # With few seeds, or where hardly a question differs, the width of the interval says more than the error.
            variance=max(variance, _implied_variance(entry, settings["level"])),
        )
        found = verdict(
            entry["difference"],
            (entry["interval"][0], entry["interval"][1]),
            p_adjusted=adjusted[entry["name"]],
            alpha=settings["alpha"],
            smallest_effect=settings["smallest_effect"],
            detectable=detectable,
            power=settings["power"],
            level=settings["level"],
        )
        entry["p_adjusted"] = adjusted[entry["name"]]
        entry["detectable"] = detectable
        entry["preregistered_detectable"] = minimum_detectable.get(entry["name"])
        entry["verdict"] = dataclasses.asdict(found)
    return tests


def _implied_variance(entry: Mapping[str, Any], level: float) -> float:
    """The variance that a normal interval as wide as this one would come from; 0 for the bootstrap's."""
    if entry["interval_kind"] == "bca":
        return 0.0
    half = (entry["interval"][1] - entry["interval"][0]) / 2
    return float((half / stats.norm.ppf(0.5 + level / 2)) ** 2 * entry["questions"])


def _describe(
    arm: Arm,
    rows: pd.DataFrame,
    votes: Votes,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    means = question_means(rows, "expected")
    submitted = float(rows["answer"].map(lambda answer: isinstance(answer, str)).mean()) if "answer" in rows else None
    return {
        "name": arm.name,
        "kind": arm.kind,
        "description": arm.description,
        "exploratory": arm.name in settings["exploratory"]["arms"],
        "seeds": int(rows["seed"].nunique()),
        "samples": _samples(settings, arm.name),
        "accuracy": float(means.mean()),
        "standard_error": float(means.std(ddof=1)) / math.sqrt(len(means)),
        "shown": float(rows["shown"].mean()),
        "shown_histogram": shown_histogram(rows),
        "submitted": submitted,
        **majority_behaviour(rows, votes),
    }
