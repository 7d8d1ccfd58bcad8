"""What the trainer does besides verl's steps in a gate run: made-up rows at the full budgets, and padded forwards to compare with.

Both act on verl's transfer queue and its worker groups, at the first step of a launch.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from genselect.training.memory_check import Budget, MemoryCheck, Probe, row_lengths
from genselect.training.trainer_process import PROGRESS

_PARTITION = "synthetic"
_OVER_RESPONSE = frozenset(
    "responses response_mask loss_mask rm_scores rollout_log_probs decision_mask submit_mask submit_label".split()
)


def make_row(template: Mapping[str, Any], prompt: int, response: int) -> dict[str, Any]:
    """A row of ``prompt`` + ``response`` tokens after a real one: its tokens again and again, every response token trained.

    Args:
        template: A row of the transfer queue; tensors without a batch dimension.
        prompt: Tokens of the prompt.
        response: Tokens of the response.
    """
    import torch

    row = {
        name: value.clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
        for name, value in template.items()
    }
    row["prompts"] = _cycled(row["prompts"], prompt)
    row["responses"] = _cycled(row["responses"], response)
    ids = torch.cat([row["prompts"], row["responses"]])
    for name in set(row) & _OVER_RESPONSE - {"responses"}:
        trained = name in ("response_mask", "loss_mask", "submit_mask", "decision_mask")
        row[name] = torch.full((response,), 1 if trained else 0, dtype=row[name].dtype)
    row["input_ids"] = ids
    if "attention_mask" in row:
        row["attention_mask"] = torch.ones_like(ids)
    # Text alone: all axes of a multi-axis position count alike.
    positions = torch.arange(len(ids), dtype=row["position_ids"].dtype)
    row["position_ids"] = positions.expand(*row["position_ids"].shape[:-1], -1).clone()
    return row


def _cycled(ids: Any, length: int) -> Any:
    return ids.repeat(-(-length // len(ids)))[:length]


def run_synthetic_steps(trainer: Any, batch: Any, check: MemoryCheck, steps: int) -> None:
    """Send made-up rows through every stage, ``steps`` times, and note seconds and peaks in ``check``.

    Args:
        trainer: The trainer, after its first rollout.
        batch: The real rows; one serves as the template.
        check: Takes the measurements.
        steps: How often.
    """
    template = tq.kv_batch_get(keys=[batch.keys[0]], partition_id=batch.partition_id)[0]
    template = {name: template[name] for name in template.keys()}  # noqa: SIM118  (a TensorDict iterates over rows)
    probe = trainer.probe()
    stages = _Stages(trainer, dict(template), dict(batch.tags[0]), check, probe)
    for _ in range(steps):
        check.begin_step()
        stages.run("actor", ("log_probs", "update_actor"))
        if trainer.use_critic:
            stages.run("critic", ("values", "update_critic"))
        if trainer.predictor:
            stages.run("predictor", ("predictions", "update_predictor"))
    probe.begin()


class _Stages:
    def __init__(self, trainer: Any, template: dict[str, Any], tag: dict[str, Any], check: MemoryCheck, probe: Probe):
        self._trainer = trainer
        self._template = template
        self._tag = tag
        self._check = check
        self._probe = probe
        self._prompt = trainer.config.data.max_prompt_length

    def run(self, model: str, stages: Sequence[str]) -> None:
        """Put rows that fill ``model``'s budget on every card into the queue, and send them through ``stages``."""
        budget: Budget = self._check.budgets[model]
        lengths = row_lengths(budget) * self._check.world_size
        batch = self._put(lengths)
        try:
            for stage in stages:
                self._probe.begin()
                getattr(self, f"_{stage}")(batch)
                seconds, peaks = self._probe.end()
                self._check.stage(stage, lengths, seconds, peaks)
                largest = max(rank["peak"] for ranks in peaks.values() for rank in ranks)
                print(
                    f"{PROGRESS}memory check, step {len(self._check.steps)}: {stage}, {sum(lengths)} tokens, "
                    f"{seconds:.1f} s, peak {largest:.2f} GiB",
                    flush=True,
                )
        finally:
            tq.kv_clear(keys=batch.keys, partition_id=_PARTITION)

    def _put(self, lengths: Sequence[int]) -> Any:
        rows, tags = [], []
        for length in lengths:
            prompt = min(self._prompt, length - 1)
            rows.append(make_row(self._template, prompt, length - prompt))
            tags.append({**self._tag, "prompt_len": prompt, "response_len": length - prompt, "seq_len": length})
        keys = [f"synthetic_{number}_0" for number in range(len(rows))]
        tq.kv_batch_put(keys=keys, partition_id=_PARTITION, fields=list_of_dict_to_tensordict(rows), tags=tags)
        # Fixed micro-batches of forwards are larger than those of updates; all of these rows are one micro-batch.
        extra = {"micro_batch_size_per_gpu": len(rows) // self._check.world_size}
        return KVBatchMeta(keys=keys, tags=tags, partition_id=_PARTITION, extra_info=extra)

    def _log_probs(self, batch: Any) -> None:
        self._trainer.verl_log_probs(batch)
        self._zeros(batch, ("advantages", "returns"))

    def _values(self, batch: Any) -> None:
        self._trainer.verl_values(batch)
        self._zeros(batch, ("advantages", "returns"))

    def _predictions(self, batch: Any) -> None:
        self._trainer.predictor.predict(batch, self._trainer.config.actor_rollout_ref.rollout.temperature)

    def _update_actor(self, batch: Any) -> None:
        self._train(batch)
        self._trainer.actor_rollout_wg.update_actor(batch)

    def _update_critic(self, batch: Any) -> None:
        self._train(batch)
        self._trainer.critic_wg.train_mini_batch(batch).get()

    def _update_predictor(self, batch: Any) -> None:
        self._train(batch)
        self._trainer.predictor.train(batch)

    def _train(self, batch: Any) -> None:
        batch.extra_info.update(
            {
                "global_batch_size": len(batch),
                "mini_batch_size": len(batch),
                "epochs": 1,
                "seed": 0,
                "dataloader_kwargs": {"shuffle": False},
                "calculate_entropy": False,
                "distillation_use_topk": False,
                "distillation_only": False,
                "compute_loss": True,
                "temperature": self._trainer.config.actor_rollout_ref.rollout.temperature,
            }
        )

    def _zeros(self, batch: Any, names: Sequence[str]) -> None:
        import torch
        from tensordict import TensorDict

        mask = tq.kv_batch_get(keys=batch.keys, partition_id=_PARTITION, select_fields=["response_mask"])[
            "response_mask"
        ]
        zeros = torch.nested.as_nested_tensor(
            [torch.zeros(len(row), dtype=torch.float32) for row in mask.unbind()], layout=torch.jagged
        )
        columns = {name: zeros.clone() for name in names}
        tq.kv_batch_put(keys=batch.keys, partition_id=_PARTITION, fields=TensorDict(columns, batch_size=len(batch)))


#: Rows that the padded forward takes, on each card.
PADDED_ROWS = 8


def padded_columns(trainer: Any, batch: Any, world_size: int) -> dict[str, dict[str, Any]]:
    """Log-probabilities, values and logits of the shortest rows, from padded forwards, before the packed ones overwrite them.

    Args:
        trainer: The trainer, before this step's forwards.
        batch: The step's rows.
        world_size: Cards; the rows must divide among them.

    Returns:
        By column (``old_log_probs``, ``values``, ``submit_logits``) and key: an array over the response.
    """
    real = [row for row, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]
    # Short rows: a padded micro-batch must not need more memory than the packed one that the budgets were made for.
    chosen = sorted(real, key=lambda row: (batch.tags[row]["seq_len"], batch.keys[row]))
    chosen = chosen[: min(PADDED_ROWS * world_size, len(chosen) // world_size * world_size)]
    keys = [batch.keys[row] for row in chosen]
    names = ["old_log_probs"]

    def rows() -> Any:
        extra = {"use_remove_padding": False, "micro_batch_size_per_gpu": len(keys) // world_size}
        tags = [batch.tags[row] for row in chosen]
        return KVBatchMeta(keys=keys, tags=tags, partition_id=batch.partition_id, extra_info=extra)

    trainer.verl_log_probs(rows())
    if trainer.use_critic:
        names.append("values")
        trainer.verl_values(rows())
    if trainer.predictor:
        names.append("submit_logits")
        trainer.predictor.predict(rows(), trainer.config.actor_rollout_ref.rollout.temperature)
    found = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=names)
    return {
        name: {
            key: np.asarray(part.float(), dtype=np.float64)
            for key, part in zip(keys, found[name].unbind(), strict=True)
        }
        for name in names
    }
