"""Potential-based shaping, composed of named parts, and where rewards land on an episode's tokens.

Φ = Σ wᵢ Φᵢ is a function of the decision point. Shaping adds γΦ(s′) − Φ(s) to each transition, with Φ(terminal) = 0, which
leaves the optimal policy unchanged (Ng, Harada and Russell, *Policy invariance under reward transformations*, ICML 1999).

The transitions are the policy's turns. With γ = 1, as in the study, turns and tokens are discounted alike and the theorem
holds for the token-level trainer too; with γ below 1 per *token* it holds only approximately.
"""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from genselect.episode import Score
from genselect.errors import GenselectError

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DecisionState:
    """What a component may look at: one decision point, before the policy's turn."""

    k: int
    """Candidates revealed."""
    logit: float | None
    """The submit predictor's; None without a predictor."""
    answers: tuple[str | None, ...]
    """The revealed candidates' answers, equal strings for equivalent answers (the caller's normal form); None for no answer."""


Component = Callable[[DecisionState], float]
_COMPONENTS: dict[str, Component] = {}


def register(name: str) -> Callable[[Component], Component]:
    """Make a function of a decision state known as a component of the potential.

    Raises:
        ValueError: The name is taken.
    """

    def decorate(component: Component) -> Component:
        if name in _COMPONENTS:
            raise ValueError(f"a component named {name} is registered already")
        _COMPONENTS[name] = component
        return component

    return decorate


def component_names() -> tuple[str, ...]:
    """The registered components, in order of registration."""
    return tuple(_COMPONENTS)


@register("submit_probability")
def submit_probability(state: DecisionState) -> float:
    """Probability, by the submit predictor, that an answer submitted from here is correct: the sigmoid of its logit.

    Raises:
        GenselectError: There is no predictor.
    """
    if state.logit is None:
        raise GenselectError(
            "the potential submit_probability needs the submit predictor's logit, and this run has no predictor",
            "Switch the submit predictor on, or take submit_probability out of the potential.",
        )
    return float(expit(state.logit))


@register("leading_share")
def leading_share(state: DecisionState) -> float:
    """Share of the revealed candidates that agree with the leading answer; 0 when none is revealed.

    A candidate without an answer agrees with nobody, and counts among the revealed.
    """
    counts = Counter(answer for answer in state.answers if answer is not None)
    return max(counts.values()) / len(state.answers) if counts else 0.0


class Potential:
    """Φ = Σ wᵢ Φᵢ.

    Args:
        components: Name and weight of each part. An empty list is no potential at all.

    Raises:
        GenselectError: An unknown name, a name twice, or a weight that is not a finite number.
    """

    def __init__(self, components: Iterable[tuple[str, float]]) -> None:
        self.components = tuple((name, float(weight)) for name, weight in components)
        seen: set[str] = set()
        for name, weight in self.components:
            if name not in _COMPONENTS:
                raise _unknown(name)
            if name in seen:
                raise GenselectError(f"the potential names {name} twice", "Add the weights up into one entry.")
            if not math.isfinite(weight):
                raise GenselectError(f"the potential's weight of {name} is {weight}", "Weights are finite numbers.")
            seen.add(name)

    def __bool__(self) -> bool:
        """Whether there is anything to shape with."""
        return bool(self.components)

    def __call__(self, states: Sequence[DecisionState]) -> Array:
        """Φ at each decision point, shape (decision points,); an empty array when there are no components."""
        if not self:
            return np.zeros(0)
        return np.array(
            [sum(weight * _COMPONENTS[name](state) for name, weight in self.components) for state in states]
        )


def shaping(phi: ArrayLike, gamma: float) -> Array:
    """γΦ(s′) − Φ(s) for each transition of one episode, Φ(terminal) being 0.

    Args:
        phi: Φ at the episode's decision points in order, shape (n,).
        gamma: Discount of one transition.

    Returns:
        Shape (n,): the last transition is the one into the terminal state. Empty for an empty ``phi``.

    Raises:
        GenselectError: Φ is not finite somewhere; a reward made of it would destroy the models.
    """
    before = np.asarray(phi, dtype=np.float64)
    if not np.isfinite(before).all():
        raise GenselectError(
            f"the potential is not finite at decision point {int(np.flatnonzero(~np.isfinite(before))[0])}",
            "Look at the submit predictor: its logit is nan or infinite. Resume from an earlier save.",
        )
    after = np.append(before[1:], 0.0) if before.size else before
    return gamma * after - before


def check_telescoping(shaped: ArrayLike, phi: ArrayLike, gamma: float = 1.0, tolerance: float = 1e-9) -> None:
    """Check that the discounted sum of an episode's shaping is −Φ(s₀), whatever the policy did.

    Args:
        shaped: What :func:`shaping` gave, shape (n,).
        phi: The Φ it was made of, shape (n,).
        gamma: The same discount. With 1 the plain sum is checked.
        tolerance: Relative to the largest |Φ| (or to 1, if that is larger).

    Raises:
        GenselectError: It does not hold.
    """
    rewards, potentials = np.asarray(shaped, dtype=np.float64), np.asarray(phi, dtype=np.float64)
    if rewards.shape != potentials.shape:
        raise GenselectError(
            f"{rewards.size} shaping rewards for {potentials.size} decision points", "Shaping is one reward a turn."
        )
    if not rewards.size:
        return
    total = float(np.sum(rewards * gamma ** np.arange(rewards.size)))
    scale = max(1.0, float(np.abs(potentials).max()))
    # Written so that a nan fails.
    if not abs(total + potentials[0]) <= tolerance * scale:
        raise GenselectError(
            f"an episode's shaping sums to {total:.9g}, and −Φ(s₀) is {-potentials[0]:.9g}",
            "Some transition is missing or counted twice; such shaping changes which policy is optimal.",
        )


@dataclass(frozen=True, slots=True)
class Placement:
    """Rewards of one episode on its tokens, each of shape (response tokens,)."""

    scores: Array
    """The score alone: verl's ``token_level_scores``."""
    shaping: Array
    """The shaping alone."""

    @property
    def rewards(self) -> Array:
        """What is trained on: verl's ``token_level_rewards``. Without shaping, the scores themselves and not a sum with zeros."""
        return self.scores + self.shaping if self.shaping.any() else self.scores


def place(
    score: Score,
    explore_costs: ArrayLike,
    shaped: ArrayLike,
    turns: Sequence[tuple[int, int]],
    response_mask: ArrayLike,
) -> Placement:
    """Put an episode's rewards on tokens that the policy wrote.

    Each explore's cost and each transition's shaping land on the last action token of its turn, the rest of the score on the
    episode's last action token. verl's GAE drops whatever lies on a masked token (``compute_gae_advantage_return`` resets
    ``lastgaelam`` there), so nothing may.

    Args:
        score: The pieces.
        explore_costs: Per turn, 0 or negative; they add up to ``score.cost``. Shape (turns,).
        shaped: Per turn; or empty, without a potential. Shape (turns,).
        turns: Per turn, first token and one past the last, within the response. A turn starts at its decision point.
        response_mask: 1 for the policy's tokens, 0 for the tool's. Shape (response tokens,).

    Returns:
        Scores that add up to ``score.total``, and shaping that adds up to the sum of ``shaped``: every piece lies on a token
        once, unchanged, but for the rounding of the last token's own addition.

    Raises:
        GenselectError: A turn without an action token, an action token outside every turn, or costs that are not the score's.
    """
    mask = np.asarray(response_mask) != 0
    costs, potentials = np.asarray(explore_costs, dtype=np.float64), np.asarray(shaped, dtype=np.float64)
    last = _last_action_tokens(turns, mask)
    if costs.size != last.size or potentials.size not in (0, last.size):
        raise _misplaced(f"{costs.size} costs and {potentials.size} shaping rewards for {last.size} turns")
    if not math.isclose(math.fsum(costs), score.cost, rel_tol=1e-9, abs_tol=1e-12):
        raise _misplaced(f"the turns' costs add up to {math.fsum(costs):.9g}, and the score's cost is {score.cost:.9g}")
    scores = np.zeros(mask.size)
    scores[last] += costs
    scores[last[-1]] += score.verdict + score.format
    shaping_rewards = np.zeros(mask.size)
    if potentials.size:
        shaping_rewards[last] += potentials
    return Placement(scores, shaping_rewards)


def _last_action_tokens(turns: Sequence[tuple[int, int]], mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Index of each turn's last token with mask 1, after checking that turns and mask tell the same story."""
    if not turns:
        raise _misplaced("the episode has no turn")
    covered = np.zeros(mask.size, dtype=bool)
    found = []
    previous = 0
    for number, (start, stop) in enumerate(turns):
        if not previous <= start < stop <= mask.size:
            raise _misplaced(f"turn {number} spans tokens {start} to {stop} of {mask.size}, after token {previous}")
        actions = np.flatnonzero(mask[start:stop])
        if not actions.size:
            raise _misplaced(f"turn {number} (tokens {start} to {stop}) has masked tokens only")
        if not mask[start]:
            raise _misplaced(f"the decision point of turn {number} is token {start}, which is masked")
        found.append(start + int(actions[-1]))
        covered[start:stop] = True
        previous = stop
    if (mask & ~covered).any():
        raise _misplaced(f"token {int(np.flatnonzero(mask & ~covered)[0])} is the policy's and belongs to no turn")
    return np.array(found)


def _misplaced(what: str) -> GenselectError:
    return GenselectError(
        f"rewards cannot be placed on the tokens: {what}",
        "The agent loop's turn spans and response mask disagree; trim trailing tool responses together with their turn.",
    )


def _unknown(name: str) -> GenselectError:
    close = difflib.get_close_matches(name, _COMPONENTS, n=1, cutoff=0.5)
    known = f"Components: {', '.join(_COMPONENTS)}."
    return GenselectError(
        f"the potential has no component named {name!r}", f"Did you mean {close[0]}? {known}" if close else known
    )
