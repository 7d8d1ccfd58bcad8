"""The potential on a batch: from the models' columns to token-level rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from genselect.training.potential import DecisionState, Potential, check_telescoping, shaping


def decision_states(trajectory: dict[str, Any], logits: Any | None) -> list[DecisionState]:
    """What the potential sees at each decision point of one trajectory.

    Args:
        trajectory: As the agent loop describes it.
        logits: The predictor's, over the response, indexable; None without a predictor.
    """
    return [
        DecisionState(
            k=k,
            logit=None if logits is None else float(logits[start]),
            answers=tuple(answer or None for answer in trajectory["answers"][:k]),
        )
        for (start, _), k in zip(trajectory["turn_spans"], trajectory["decision_k"], strict=True)
    ]


def shape_rewards(
    scores: Any,
    response_mask: Any,
    logits: Any | None,
    trajectories: Sequence[dict[str, Any] | None],
    potential: Potential,
    gamma: float,
) -> Any:
    """``scores`` with each transition's shaping on the last token of its turn.

    Args:
        scores: (rows, response length), a padded tensor.
        response_mask: The same shape; 1 for the policy's tokens.
        logits: The predictor's, the same shape; None without one.
        trajectories: A description a row; None for padding rows, which stay as they are.
        potential: Not empty.
        gamma: Discount of a transition.

    Returns:
        A new tensor of the same shape.

    Raises:
        GenselectError: The potential is not finite, or an episode's shaping does not sum to minus its first state's potential.
    """
    rewards = scores.clone()
    for row, trajectory in enumerate(trajectories):
        if not trajectory:
            continue
        phi = potential(decision_states(trajectory, None if logits is None else logits[row]))
        shaped = shaping(phi, gamma)
        check_telescoping(shaped, phi, gamma)
        ends = np.array([end - 1 for _, end in trajectory["turn_spans"]])
        assert bool((response_mask[row, ends] == 1).all()), "shaping would land on a masked token, where GAE drops it"
        for end, value in zip(ends, shaped, strict=True):
            rewards[row, end] += value
    return rewards
