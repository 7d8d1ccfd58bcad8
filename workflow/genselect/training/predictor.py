"""The submit predictor as a third trained group of workers: its loss, its workers, its forward and its update."""

from __future__ import annotations

from typing import Any

import ray
import torch.nn.functional as F
import transfer_queue as tq
from omegaconf import open_dict
from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.padding import no_padding_2_padding, response_from_nested

from genselect.training.engines import SUBMIT_MODEL


def submit_loss(model_output: Any, data: Any, dp_group: Any = None) -> tuple[Any, dict[str, float]]:
    """Binary cross-entropy on the supervised decision points.

    Args:
        model_output: ``submit_logits``, nested, (rows, tokens).
        data: A micro-batch with ``submit_mask`` and ``submit_label`` over the response.
        dp_group: Unused; part of verl's signature.

    Returns:
        The mean loss over the micro-batch's supervised points, and metrics.
    """
    logits = no_padding_2_padding(model_output["submit_logits"], data).float()
    columns = data.select("submit_mask", "submit_label").to_padded_tensor()
    mask, label = columns["submit_mask"].float(), columns["submit_label"].float()
    # An episode without a submission supervises nothing: a micro-batch of such episodes has no loss, not a division by zero.
    count = mask.sum().clamp(min=1)
    loss = (F.binary_cross_entropy_with_logits(logits, label, reduction="none") * mask).sum() / count
    return loss, {"bce": loss.detach().item()}


class PredictorGroup:
    """The predictor's workers, on the critic's cards.

    Args:
        config: verl's configuration; the critic's network settings are the predictor's, but for its own learning rate.
        pool: The resource pool to share.
        learning_rate: Of the predictor.
        token_budget: Tokens in one forward and backward, a card; None keeps fixed micro-batches.
    """

    def __init__(self, config: Any, pool: Any, learning_rate: float, token_budget: int | None) -> None:
        self._config = config
        critic = config.critic.copy()
        with open_dict(critic):
            critic.optim.lr = learning_rate
            if token_budget is not None:
                critic.ppo_max_token_len_per_gpu = token_budget
                critic.forward_max_token_len_per_gpu = token_budget
        settings = omega_conf_to_dataclass(critic)
        settings.engine.infer_max_token_len_per_gpu = settings.ppo_infer_max_token_len_per_gpu
        settings.engine.max_token_len_per_gpu = settings.ppo_infer_max_token_len_per_gpu
        worker = TrainingWorkerConfig(
            model_type=SUBMIT_MODEL,
            model_config=settings.model,
            engine_config=settings.engine,
            optimizer_config=settings.optim,
            checkpoint_config=settings.checkpoint,
        )
        #: verl's worker group.
        self.workers = RayWorkerGroup(
            resource_pool=pool,
            ray_cls_with_init=RayClassWithInitArgs(cls=ray.remote(TrainingWorker), config=worker),
            name_prefix="submit",
            device_name=config.trainer.device,
        )
        self.workers.reset()
        self.workers.set_loss_fn(submit_loss)

    def load(self, folder: str) -> None:
        """Load what is trained, optimiser and schedule from a save's ``submit`` folder."""
        self.workers.load_checkpoint(local_path=folder)

    def save(self, folder: str, step: int) -> None:
        """Save them."""
        self.workers.save_checkpoint(folder, None, step, max_ckpt_to_keep=None)

    def predict(self, batch: Any, temperature: float) -> None:
        """Put the column ``submit_logits``, over the response, into the transfer queue."""
        batch.extra_info.update({"compute_loss": False, "temperature": temperature})
        ray.get(self.workers.infer_batch(batch).futures)
        columns = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=["submit_logits", "response_mask"]
        )
        columns["submit_logits"] = response_from_nested(columns.pop("submit_logits"), columns["response_mask"])
        tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=columns.select("submit_logits"))

    def update(self, batch: Any) -> dict[str, float]:
        """One step's updates; returns verl's metrics under ``predictor/``."""
        critic = self._config.critic
        size = critic.ppo_mini_batch_size * self._config.actor_rollout_ref.rollout.n
        batch.extra_info.update(
            {
                "global_batch_size": size,
                "mini_batch_size": size,
                "epochs": critic.ppo_epochs,
                "seed": critic.data_loader_seed,
                "dataloader_kwargs": {"shuffle": critic.shuffle},
                "temperature": self._config.actor_rollout_ref.rollout.temperature,
            }
        )
        return self.train(batch)

    def train(self, batch: Any) -> dict[str, float]:
        """The updates that ``batch.extra_info`` asks for."""
        output = self.workers.train_mini_batch(batch).get()
        return reduce_metrics(rename_dict(output["metrics"], "predictor/"))
