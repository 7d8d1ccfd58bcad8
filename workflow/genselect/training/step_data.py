"""One step as it came out of verl's transfer queue, and what is measured of it: proofs and calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genselect.training import calibration, proofs
from genselect.training.records import Trajectory

Array = NDArray[np.float64]
_MODELS = {"old_log_probs": "actor", "values": "critic", "submit_logits": "predictor"}


@dataclass(frozen=True)
class StepData:
    """One step's trajectories as they came out of the transfer queue, padding rows left out. All arrays over the response."""

    trajectories: list[dict[str, Any]]
    texts: list[str]
    columns: dict[str, list[Array]]
    """``response_ids, response_mask, rollout_log_probs, old_log_probs, advantages, returns, values, submit_logits, rewards``, each
    a list of (response tokens,); those the run does not make are absent."""
    keys: list[str] = field(default_factory=list)
    """The queue's, of each trajectory."""
    padded: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Columns of some trajectories from padded forwards, by column and key."""

    @classmethod
    def from_queue(cls, batch: Any, tokenizer: Any, *, critic: bool, predictor: bool) -> StepData:
        """Read what the step left in verl's transfer queue."""
        import transfer_queue as tq

        names = {
            "responses": "response_ids",
            "response_mask": "response_mask",
            "rollout_log_probs": "rollout_log_probs",
            "old_log_probs": "old_log_probs",
            "advantages": "advantages",
            "returns": "returns",
            "rm_scores": "scores",
        }
        if critic:
            names["values"] = "values"
        if predictor:
            names["submit_logits"] = "submit_logits"
        real = [row for row, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]
        keys = [batch.keys[row] for row in real]
        found = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=[*names, "extra_fields"])
        trajectories = [extra["trajectory"] for extra in objects(found["extra_fields"])]
        columns = {
            ours: [np.asarray(part.float(), dtype=np.float64) for part in found[verls].unbind()]
            for verls, ours in names.items()
        }
        texts = [tokenizer.decode([int(token) for token in ids]) for ids in columns["response_ids"]]
        return cls(trajectories, texts, columns, keys)

    def at_decisions(self, column: str, row: int) -> Array:
        """A column's values at the decision points of a row."""
        starts = [start for start, _ in self.trajectories[row]["turn_spans"]]
        return self.columns[column][row][starts]


def objects(column: Any) -> list[Any]:
    """The Python objects of a non-tensor column, in whichever of its containers the transfer queue hands it out."""
    rows = column.tolist() if hasattr(column, "tolist") else list(column)
    return [getattr(row, "data", row) for row in rows]


def reports_of(data: StepData, trajectories: Sequence[Trajectory], gamma: float) -> dict[str, Any]:
    """Calibration of the submit predictor and of the critic, those that the run has; ``gamma`` discounts the returns."""
    reports: dict[str, Any] = {}
    if "submit_logits" in data.columns:
        # The supervised states: those a submission left from.
        left = [row for row in trajectories if row.well_formed]
        reports["predictor"] = calibration.predictor_report(
            [row.decision_logits[-1] for row in left],
            [float(row.verdict) for row in left],
            [row.decision_k[-1] for row in left],
            all_logits=np.concatenate([row.decision_logits for row in trajectories]),
        )
    if "values" in data.columns:
        returns = []
        for number in range(len(trajectories)):
            rewards, mask = data.columns["scores"][number], data.columns["response_mask"][number]
            over_tokens = calibration.monte_carlo_returns(rewards, mask, gamma)
            starts = list(trajectories[number].decision_tokens)
            returns.append(over_tokens[starts])
        reports["critic"] = calibration.critic_report(
            np.concatenate(returns),
            np.concatenate([row.decision_values for row in trajectories]),
            np.concatenate([row.decision_k for row in trajectories]),
        )
    return reports


def proofs_of(
    data: StepData, trajectories: Sequence[Trajectory], first_update: Mapping[str, Sequence[float]], packed_limit: float
) -> list[proofs.Proof]:
    """Every proof that the step can give.

    Args:
        data: The step's.
        trajectories: Its records, in the same order.
        first_update: ``ppo_kl`` and ``pg_clipfrac`` of each actor mini-batch; empty while the critic warms up.
        packed_limit: Largest difference between packed and padded forwards.
    """
    questions = [row.question_id for row in trajectories]
    given = []
    if "submit_logits" in data.columns:
        first = [row.decision_logits[0] for row in trajectories]
        given.append(proofs.first_state_agrees("predictor_k0", first, questions))
    if "values" in data.columns:
        values = [row.decision_values[0] for row in trajectories]
        given.append(proofs.first_state_agrees("critic_first_value", values, questions))
    if first_update.get("ppo_kl"):
        # The update cuts the batch into other micro-batches than the pass that gave the old log-probabilities, so float
        # noise differs. It clips nothing, and stays far under what a stale policy shows (1e-3 and more).
        given.append(
            proofs.first_update_is_on_policy(
                first_update["pg_clipfrac"][0], first_update["ppo_kl"][0], kl_tolerance=1e-4
            )
        )
    given.append(
        proofs.rollout_matches_actor(
            np.concatenate(data.columns["rollout_log_probs"]),
            np.concatenate(data.columns["old_log_probs"]),
            np.concatenate(data.columns["response_mask"]),
        )
    )
    for column, padded in data.padded.items():
        rows = [data.keys.index(key) for key in padded]
        given.append(
            proofs.packed_equals_padded(
                f"packed_{_MODELS[column]}",
                np.concatenate([data.columns[column][row] for row in rows]),
                np.concatenate(list(padded.values())),
                np.concatenate([data.columns["response_mask"][row] for row in rows]),
                packed_limit,
            )
        )
    return given
