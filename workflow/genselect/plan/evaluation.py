"""The evaluation as the plan sees it: arms by name, hypotheses, and whether all of it can be had."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from genselect.config import Config
from genselect.config.training import Run
from genselect.errors import GenselectError
from genselect.plan.runs import identity
from genselect.plan.saves import kept_saves
from genselect.provenance.difference import did_you_mean, difference

UNTRAINED = "untrained"
SELECTOR = "untrained_selector"


@dataclass(frozen=True)
class ModelArm:
    """One policy that is played on the held-out questions."""

    name: str
    """Also the name of its file."""
    run: str | None = None
    """The run whose save it is; None for the untrained model."""
    step: int | None = None
    """The save."""
    selector: bool = False
    """It reads all candidates at once."""


@dataclass(frozen=True)
class Plan:
    """What is evaluated and compared."""

    like: str | None
    """The run whose episode the model arms play; None when no run is formal, and then no model is played."""
    played: Mapping[str, ModelArm]
    """Every policy to play."""
    trained: Mapping[str, tuple[str, ...]]
    """The trained arms of the comparison: the policies whose results each holds, one or (replicates) several."""
    baselines: tuple[str, ...]
    """Arms that need no model."""
    hypotheses: tuple[tuple[str, str], ...]
    """(arm, against)."""
    exploratory: frozenset[str]
    """Arms added after the preregistration."""

    @property
    def arms(self) -> list[str]:
        """Every arm of the comparison: the trained ones, the untrained ones, the baselines."""
        untrained = [name for name, arm in self.played.items() if arm.run is None]
        return [*self.trained, *untrained, *self.baselines]

    @property
    def before(self) -> list[str]:
        """Policies that must have been played before the preregistration."""
        return [name for name in self.played if name == UNTRAINED or (name == SELECTOR and self._compared(SELECTOR))]

    def _compared(self, arm: str) -> bool:
        return any(against == arm for _, against in self.hypotheses)


def evaluation_plan(config: Config, runs: Mapping[str, Run]) -> Plan:
    """Resolve the section ``evaluation``.

    Args:
        config: The configuration.
        runs: Resolved.

    Raises:
        GenselectError: A name is unknown, an anchor is of a step whose save is not kept, replicates differ in more than their
            seed, or a policy plays another episode than the others.
    """
    section = config.evaluation
    formal = [name for name, run in runs.items() if run.kind == "formal"]
    if section.like is not None:
        _known(section.like, runs, "evaluation.like", "run")
    like = section.like or next(iter(formal), None)
    baselines = baseline_names(config)
    if like is None:
        return Plan(None, {}, {}, baselines, (), frozenset())
    anchors = [(anchor.run, anchor.step) for anchor in section.anchors]
    for position, (name, step) in enumerate(anchors):
        _check_anchor(f"evaluation.anchors[{position}]", name, step, runs)
    anchors = anchors or [(name, runs[name].schedule.steps) for name in formal]
    played = {UNTRAINED: ModelArm(UNTRAINED)}
    if section.selector.enabled:
        played[SELECTOR] = ModelArm(SELECTOR, selector=True)
    for name, step in anchors:
        _check_episode(name, runs[name], like, runs[like])
        arm = ModelArm(f"{name}@{step}", name, step)
        played[arm.name] = arm
    trained = _trained(section.replicates, anchors, runs)
    references = [*(name for name, arm in played.items() if arm.run is None), *baselines]
    for position, against in enumerate(section.against):
        _known(against, references, f"evaluation.against[{position}]", "arm")
    for position, name in enumerate(section.exploratory):
        _known(name, [*trained, *references], f"evaluation.exploratory[{position}]", "arm")
    plan = Plan(
        like=like,
        played=played,
        trained=trained,
        baselines=baselines,
        hypotheses=tuple((arm, against) for arm in trained for against in section.against),
        exploratory=frozenset(section.exploratory),
    )
    _check_primary(plan, runs)
    return plan


def baseline_names(config: Config) -> tuple[str, ...]:
    """The arms that need no model, in order."""
    shown = range(1, config.build.candidates_per_row + 1)
    return ("first", "mean", *(f"majority_{k}" for k in shown), "oracle",
            *(f"adaptive_{threshold:g}" for threshold in config.evaluation.thresholds))  # fmt: skip


def episode_identity(run: Run) -> dict[str, Any]:
    """What of a run decides how a policy plays an episode."""
    tokens = run.tokens
    return {
        "tokens": {"prompt": tokens.prompt, "response": tokens.response, "turn": tokens.turn},
        "max_turns": run.max_turns,
        "temperature": run.temperature,
    }


def arm_identity(config: Config, runs: Mapping[str, Run], plan: Plan, name: str) -> dict[str, Any]:
    """What decides the results of a policy besides its weights and the questions."""
    arm, section = plan.played[name], config.evaluation
    assert plan.like is not None
    return {
        "arm": name,
        "samples": section.samples,
        "seed": section.seed,
        "episode": episode_identity(runs[plan.like]),
        "selector": section.selector.identity() if arm.selector else None,
        "prompt": None if arm.selector else config.prompt.identity(),
        "template_options": config.models.base.template_options,
    }


def _check_anchor(where: str, name: str, step: int, runs: Mapping[str, Run]) -> None:
    _known(name, runs, f"{where}.run", "run")
    kept = kept_saves(runs[name])
    if step not in kept:
        shown = ", ".join(map(str, kept if len(kept) <= 12 else [*kept[:5], "…", *kept[-3:]]))
        raise GenselectError(
            f"{where}.step: no save of step {step} of {name} is kept",
            f"Kept are steps {shown}; runs.{name}.schedule.save_every, anchor_every and keep_latest decide.",
        )


def _check_episode(name: str, run: Run, like: str, other: Run) -> None:
    changes = difference(episode_identity(other), episode_identity(run))
    if changes:
        raise GenselectError(
            f"evaluation: {name} plays another episode than {like}: {'; '.join(map(str, changes))}",
            "All arms play one episode: leave that run out of anchors, or name another run with evaluation.like.",
        )


def _trained(
    replicates: Mapping[str, list[str]], anchors: list[tuple[str, int]], runs: Mapping[str, Run]
) -> dict[str, tuple[str, ...]]:
    """The trained arms: one an anchor, or one for the anchors of one step of all replicates."""
    group: dict[str, str] = {}
    for name, members in replicates.items():
        where = f"evaluation.replicates.{name}"
        if name in runs or len(set(members)) < 2 or len(set(members)) < len(members):
            raise GenselectError(
                f"{where}: {'that is the name of a run' if name in runs else 'two runs or more are replicates, each named once'}",
                "Give it a name of its own, and list the runs.",
            )
        for member in members:
            _known(member, runs, where, "run")
            if member in group:
                raise GenselectError(f"{where}: {member} is a replicate of {group[member]} already", "Name it once.")
            group[member] = name
        _check_replicates(where, members, runs)
    trained: dict[str, tuple[str, ...]] = {}
    for run, step in anchors:
        arm = f"{group.get(run, run)}@{step}"
        trained[arm] = (*trained.get(arm, ()), f"{run}@{step}")
    for name, members in replicates.items():
        for arm, found in trained.items():
            missing = [member for member in members if f"{member}@{arm.rpartition('@')[2]}" not in found]
            if arm.rpartition("@")[0] == name and missing:
                raise GenselectError(
                    f"evaluation.replicates.{name}: {arm} lacks {missing[0]}",
                    "Replicates are compared at one step: list that step of each of them under evaluation.anchors.",
                )
    return trained


def _check_replicates(where: str, members: list[str], runs: Mapping[str, Run]) -> None:
    first = identity(runs[members[0]])
    for member in members[1:]:
        changes = difference(first, identity(runs[member]))
        if [change.key for change in changes] != ["seed"]:
            differ = "; ".join(map(str, changes)) or "in nothing"
            raise GenselectError(
                f"{where}: {members[0]} and {member} differ not in seed alone: {differ}",
                "Replicates are runs of one setting with several seeds.",
            )


def _check_primary(plan: Plan, runs: Mapping[str, Run]) -> None:
    for arm, members in plan.trained.items():
        for member in members:
            name = plan.played[member].run
            if name is not None and runs[name].kind != "formal" and arm not in plan.exploratory:
                raise GenselectError(
                    f"evaluation: {arm} is of a run of kind {runs[name].kind}, which starts before the preregistration",
                    f"Hypotheses are about formal runs: list {arm} under evaluation.exploratory, or leave it out.",
                )
    for _, against in plan.hypotheses:
        if against in plan.exploratory:
            raise GenselectError(
                f"evaluation: {against} stands under against and under exploratory",
                "A primary hypothesis compares with a preregistered arm.",
            )
    if plan.trained and all(arm in plan.exploratory for arm in plan.trained):
        raise GenselectError(
            "evaluation: every trained policy is exploratory, so there is no hypothesis",
            "Leave the policy that the question is about out of evaluation.exploratory.",
        )


def _known(name: str, names: Iterable[str], where: str, what: str) -> None:
    if name not in names:
        raise GenselectError(f"{where}: there is no {what} {name}", did_you_mean(name, list(names)))
