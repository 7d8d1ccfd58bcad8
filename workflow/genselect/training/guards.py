"""Guards: what each training step's metrics say about the run's health, and what to do about it.

A rule compares one metric with a limit and has a level. *Note* and *alarm* are for a person; *stop* ends the run at the next
step boundary. The reasons for every limit are in ``docs/guards.md``.

The metrics of a step are numbers, or sequences of numbers (one a mini-batch), by name. A figure that is not defined at a step
is absent or None; a nan is a fault, and stops.
"""

from __future__ import annotations

import difflib
import enum
import fnmatch
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np

from genselect.errors import GenselectError

Metrics = Mapping[str, Any]


class Level(enum.StrEnum):
    """How bad it is, ascending."""

    HEALTHY = "healthy"
    NOTE = "note"
    ALARM = "alarm"
    STOP = "stop"

    @property
    def rank(self) -> int:
        """0 for healthy to 3 for stop."""
        return list(Level).index(self)


class Kind(enum.StrEnum):
    """How a metric is compared with its limit."""

    ABOVE = "above"
    """Over the limit."""
    BELOW = "below"
    """Under the limit."""
    MAGNITUDE = "magnitude"
    """|metric| over the limit."""
    RISE = "rise"
    """Over the median of the last ``window`` steps by more than the limit."""
    FALL = "fall"
    """Under the median of the last ``window`` steps by more than this share of it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One guard."""

    name: str
    metric: str
    """Metric it reads; ``*`` matches any part of a name, and the worst match counts."""
    kind: Kind
    limit: float
    level: Level
    patience: int = 1
    """Consecutive steps, this one included, at which it must hold."""
    warm_up: int = 0
    """Steps at the start of a run that it does not judge."""
    window: int = 5
    """Steps before this one that rise and fall compare with."""
    policy: bool = True
    """Whether it speaks of the policy itself, so that saves made beside it are suspect. The value models' figures do not."""
    advice: str = ""
    """What to do, one sentence."""

    def __post_init__(self) -> None:
        if self.patience < 1 or self.window < 1 or self.warm_up < 0 or not math.isfinite(self.limit):
            raise GenselectError(
                f"guard {self.name}: patience {self.patience}, window {self.window}, warm_up {self.warm_up}, limit {self.limit}",
                "patience and window are at least 1, warm_up is at least 0, and the limit is a finite number.",
            )


_SMALLER_STEPS = (
    "Resume from the last healthy anchor with a smaller actor learning rate, fewer epochs or larger mini-batches."
)
_NO_CALLS = "Read the decoded texts of the step's records; resume from the last healthy anchor with a smaller actor learning rate."
_EXPLORES = "Compare the explore cost with what an explore earns in verdict; lower cost.per_explore if exploring stopped paying."
_MISSING = "Episodes failed in the agent loop and their groups were dropped: search the attempt's log for 'Error in _run_prompt'."
_CRITIC = "Check the boundary proofs first; then the critic's learning rate and warm-up."
_PREDICTOR = "Check the boundary proofs and the predictor's learning rate; take submit_probability out of the potential meanwhile."

#: The guards of a run whose configuration says nothing else, calibrated on the study's runs.
DEFAULT_RULES: tuple[Rule, ...] = (
    Rule("kl", "actor/ppo_kl", Kind.MAGNITUDE, 0.1, Level.ALARM, advice=_SMALLER_STEPS),
    Rule("kl_repeated", "actor/ppo_kl", Kind.MAGNITUDE, 0.1, Level.STOP, patience=2, advice=_SMALLER_STEPS),
    Rule("kl_jump", "actor/ppo_kl", Kind.MAGNITUDE, 1.0, Level.STOP, advice=_SMALLER_STEPS),
    Rule("no_submission", "episode/no_submission_share", Kind.ABOVE, 0.3, Level.ALARM, advice=_NO_CALLS),
    Rule("never_submits", "episode/no_submission_share", Kind.ABOVE, 0.9, Level.STOP, advice=_NO_CALLS),
    Rule("zero_explores", "episode/zero_explore_share", Kind.ABOVE, 0.2, Level.ALARM, advice=_EXPLORES),
    Rule("explores_fall", "episode/mean_explores", Kind.FALL, 0.4, Level.ALARM, advice=_EXPLORES),
    Rule("explores_all", "episode/revealed_share", Kind.ABOVE, 0.97, Level.NOTE, patience=3, advice=_EXPLORES),
    Rule("entropy_rise", "actor/entropy", Kind.RISE, 0.5, Level.ALARM, warm_up=1, advice=_SMALLER_STEPS),
    Rule("entropy_jump", "actor/entropy", Kind.RISE, 2.0, Level.STOP, warm_up=1, advice=_SMALLER_STEPS),
    Rule(
        "proof_failed", "proof/*/passed", Kind.BELOW, 1.0, Level.STOP,
        advice="The trainer does not compute what it claims to: the proof's own message says what to look at.",
    ),
    Rule(
        "length_capped", "episode/length_capped_share", Kind.ABOVE, 0.25, Level.ALARM,
        advice="Raise the response limit, or look for repetition in the decoded texts.",
    ),
    Rule("missing", "rollout/missing_share", Kind.ABOVE, 0.0, Level.ALARM, policy=False, advice=_MISSING),
    Rule(
        "critic_useless", "critic/mc_explained_variance", Kind.BELOW, 0.0, Level.NOTE, patience=5, warm_up=10, policy=False,
        advice=_CRITIC,
    ),
    Rule(
        "critic_harmful", "critic/mc_explained_variance", Kind.BELOW, -0.5, Level.ALARM, patience=3, warm_up=10, policy=False,
        advice=_CRITIC,
    ),
    Rule(
        "critic_harmful_by_k", "critic/mc_explained_variance/k*", Kind.BELOW, -1.0, Level.NOTE, patience=3, warm_up=10,
        policy=False, advice=_CRITIC,
    ),
    Rule(
        "predictor_useless", "predictor/brier_skill", Kind.BELOW, 0.0, Level.NOTE, patience=5, warm_up=10, policy=False,
        advice=_PREDICTOR,
    ),
    Rule(
        "predictor_harmful", "predictor/brier_skill", Kind.BELOW, -0.5, Level.ALARM, patience=3, warm_up=10, policy=False,
        advice=_PREDICTOR,
    ),
    Rule(
        "predictor_constant", "predictor/std", Kind.BELOW, 1e-3, Level.ALARM, warm_up=2, policy=False, advice=_PREDICTOR,
    ),
)  # fmt: skip

#: Reported for metrics that are nan or infinite.
NON_FINITE = "non_finite"


@dataclass(frozen=True, slots=True)
class Settings:
    """The guards of a run."""

    rules: tuple[Rule, ...] = DEFAULT_RULES
    non_finite: Level = Level.STOP
    """Level of a metric that is nan or infinite; healthy switches that guard off."""
    may_be_non_finite: tuple[str, ...] = ()
    """Metrics, by pattern, that are nan in health, such as a timing that a layout does not have."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One guard that spoke."""

    guard: str
    level: Level
    metric: str
    value: float | None
    """None when it is not finite, which JSON cannot say."""
    limit: float | None
    policy: bool
    message: str
    """With numbers, and what to do."""


@dataclass(frozen=True, slots=True)
class Health:
    """What the guards say of one step."""

    step: int
    findings: tuple[Finding, ...] = field(default=())
    """Worst first."""

    @property
    def level(self) -> Level:
        """The worst."""
        return max((finding.level for finding in self.findings), key=lambda level: level.rank, default=Level.HEALTHY)

    @property
    def policy_suspect(self) -> bool:
        """Whether an alarm or a stop speaks of the policy itself."""
        return any(finding.policy and finding.level.rank >= Level.ALARM.rank for finding in self.findings)


def settings_from(
    overrides: Mapping[str, Mapping[str, Any] | None],
    *,
    non_finite: str = Level.STOP,
    may_be_non_finite: Iterable[str] = (),
    base: Iterable[Rule] = DEFAULT_RULES,
) -> Settings:
    """The default guards with a configuration's changes.

    Args:
        overrides: By guard: the fields to change, or None to leave the guard out. A new name makes a new guard, and then
            needs ``metric``, ``kind``, ``limit`` and ``level``.
        non_finite: Level of the guard over nan and infinite.
        may_be_non_finite: Patterns that it leaves alone.
        base: What to change.

    Raises:
        GenselectError: An unknown field, level or kind, a guard misspelt, or one that is not whole.
    """
    rules = {rule.name: rule for rule in base}
    known = {entry.name for entry in fields(Rule)} - {"name"}
    for name, changes in overrides.items():
        if changes is None and name in rules:
            del rules[name]
            continue
        for key in changes or {}:
            if key not in known:
                raise _unknown(f"guards.{name}.{key}: no such field", key, known)
        values = {**changes} if changes else {}
        for key, kind in (("level", Level), ("kind", Kind)):
            if key in values and values[key] not in set(kind):
                raise _unknown(f"guards.{name}.{key}: {values[key]!r} is not known", str(values[key]), set(kind))
            if key in values:
                values[key] = kind(values[key])
        if name not in rules and not {"metric", "kind", "limit", "level"} <= values.keys():
            raise _unknown(f"guards.{name}: no such guard, and a new one needs metric, kind, limit, level", name, rules)
        rules[name] = replace(rules[name], **values) if name in rules else Rule(name, **values)
    if non_finite not in set(Level):
        raise _unknown(f"guards.non_finite: {non_finite!r} is not known", non_finite, set(Level))
    return Settings(tuple(rules.values()), Level(non_finite), tuple(may_be_non_finite))


def evaluate(history: Sequence[Metrics], step_metrics: Metrics, settings: Settings, *, step: int) -> Health:
    """Judge one step.

    Args:
        history: Metrics of the run's steps before this one, oldest first; after a resume, those read back. Patience, warm-up
            and the windows of rise and fall count them.
        step_metrics: This step's.
        settings: The guards.
        step: Its number, for the messages.
    """
    findings = list(_non_finite(step_metrics, settings))
    for rule in settings.rules:
        if len(history) < rule.warm_up:
            continue
        broken = _broken(rule, history, step_metrics)
        earlier = range(len(history) - 1, len(history) - rule.patience, -1)
        if broken and all(at >= 0 and _broken(rule, history[:at], history[at]) for at in earlier):
            findings.append(_finding(rule, *broken))
    findings.sort(key=lambda finding: -finding.level.rank)
    return Health(step, tuple(findings))


def record_health(log: Mapping[str, Any] | None, health: Health, saves: Iterable[int]) -> dict[str, Any]:
    """The content of ``health.json`` after one more step.

    A save at step n holds the policy after n updates: step n's figures are of the update that made it, step n + 1's of the
    episodes that it played. It is healthy when neither step has an alarm or a stop about the policy. So the anchor named after
    a stop is one from which training can go on; a save that the stop leaves unproven counts as broken.

    Args:
        log: What the file held, None at the start. Entries of this step and later ones, which a resumed run redoes, go.
        health: Of this step.
        saves: Steps of the saves that exist, the start of the run among them if it can be resumed from.

    Returns:
        ``step, level, worst_level, last_healthy_anchor`` (or None), ``broken_saves`` (after a stop: every save later than that
        anchor), ``findings`` of this step, and ``steps``: level, suspicion and guards of every step.
    """
    entries = [entry for entry in (log or {}).get("steps", []) if entry["step"] < health.step]
    entries.append(
        {
            "step": health.step,
            "level": health.level.value,
            "policy_suspect": health.policy_suspect,
            "guards": [finding.guard for finding in health.findings],
        }
    )
    suspect = {entry["step"] for entry in entries if entry["policy_suspect"]}
    known = sorted({save for save in saves if save <= health.step})
    anchor = next((save for save in reversed(known) if save not in suspect and save + 1 not in suspect), None)
    stopped = health.level is Level.STOP
    return {
        "step": health.step,
        "level": health.level.value,
        "worst_level": max((Level(entry["level"]) for entry in entries), key=lambda level: level.rank).value,
        "last_healthy_anchor": anchor,
        "broken_saves": [save for save in known if anchor is None or save > anchor] if stopped else [],
        "findings": [asdict(finding) for finding in health.findings],
        "steps": entries,
    }


def _broken(rule: Rule, history: Sequence[Metrics], metrics: Metrics) -> tuple[str, float, float] | None:
    """Metric, value and threshold where the rule is broken, the worst match; None where it holds or has nothing to judge."""
    worst: tuple[str, float, float] | None = None
    excess = 0.0
    for name in _matching(rule.metric, metrics):
        threshold = _threshold(rule, name, history)
        if threshold is None:
            continue
        for value in _finite(metrics[name]):
            compared = abs(value) if rule.kind is Kind.MAGNITUDE else value
            over = threshold - compared if rule.kind in (Kind.BELOW, Kind.FALL) else compared - threshold
            if over > excess:
                worst, excess = (name, value, threshold), over
    return worst


def _threshold(rule: Rule, name: str, history: Sequence[Metrics]) -> float | None:
    """What the metric is compared with; None for rise and fall without a step before."""
    if rule.kind not in (Kind.RISE, Kind.FALL):
        return rule.limit
    before = [statistics.fmean(values) for metrics in history[-rule.window :] if (values := _finite(metrics.get(name)))]
    if not before:
        return None
    usual = statistics.median(before)
    return usual + rule.limit if rule.kind is Kind.RISE else usual * (1 - rule.limit)


def _finding(rule: Rule, metric: str, value: float, threshold: float) -> Finding:
    words = {
        Kind.ABOVE: "is over",
        Kind.BELOW: "is under",
        Kind.MAGNITUDE: "is, in magnitude, over",
        Kind.RISE: f"rose past its median of up to {rule.window} steps plus {rule.limit:g}, that is",
        Kind.FALL: f"fell by more than {rule.limit:.0%} under its median of up to {rule.window} steps, that is under",
    }[rule.kind]
    steps = f", {rule.patience} steps running" if rule.patience > 1 else ""
    message = f"{metric} {value:.4g} {words} {threshold:.4g}{steps}. {rule.advice}".rstrip()
    return Finding(rule.name, rule.level, metric, value, threshold, rule.policy, message)


def _non_finite(metrics: Metrics, settings: Settings) -> Iterator[Finding]:
    if settings.non_finite is Level.HEALTHY:
        return
    for name, value in metrics.items():
        bad = [number for number in _numbers(value) if not math.isfinite(number)]
        if bad and not any(fnmatch.fnmatchcase(name, pattern) for pattern in settings.may_be_non_finite):
            message = (
                f"{name} is {bad[0]}. What it was computed from is broken, and updates made with it ruin the weights: resume from "
                "the last healthy anchor, and look at the loss, the rewards and the log-probabilities of this step."
            )
            yield Finding(NON_FINITE, settings.non_finite, name, None, None, True, message)


def _matching(pattern: str, metrics: Metrics) -> list[str]:
    if "*" not in pattern:
        return [pattern] if pattern in metrics else []
    return sorted(name for name in metrics if fnmatch.fnmatchcase(name, pattern))


def _finite(value: Any) -> list[float]:
    return [number for number in _numbers(value) if math.isfinite(number)]


def _numbers(value: Any) -> list[float]:
    """The numbers in a metric: one, a sequence of them, or none (text, None)."""
    if isinstance(value, bool | int | float | np.number):
        return [float(value)]
    if isinstance(value, list | tuple | np.ndarray):
        return [number for entry in value for number in _numbers(entry)]
    return []


def _unknown(what: str, given: str, known: Iterable[str]) -> GenselectError:
    names = [str(name) for name in known]
    close = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    choice = f"One of {', '.join(sorted(names))}."
    return GenselectError(what, f"Did you mean {close[0]}? {choice}" if close else choice)
