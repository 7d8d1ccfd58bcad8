"""The study's trainer on verl's synchronous one: a third model, shaping, records, proofs, guards, saves that are ours.

Its rollout engines share the training cards, or have cards of their own (``actor_rollout_ref.hybrid_engine: false``). Either way
every episode of a step is played by the weights that the step before it left.

verl decides many things by the trainer's *name* ("sync": replay buffer, batch size of the loader, what a save holds), so this
class takes that name over instead of adding one.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import transfer_queue as tq
from tensordict import TensorDict
from verl.checkpoint_engine import CheckpointEngineManager
from verl.protocol import DataProto
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.debug import marked_timer
from verl.workers.rollout.llm_server import LLMServerManager
from verl.workers.utils.padding import response_to_nested

from genselect.training.memory_check import MemoryCheck, Probe
from genselect.training.predictor import PredictorGroup
from genselect.training.recorder import Settings, StepRecorder
from genselect.training.shaping import shape_rewards
from genselect.training.step_data import StepData, objects
from genselect.training.synthetic import padded_columns, run_synthetic_steps


class ExploreTrainer(PPOTrainerSync):
    """PPO (or another of verl's estimators) with the submit predictor, the potential and the records of a run directory."""

    predictor: PredictorGroup | None = None
    total_training_steps: int

    def __init__(self, config: Any) -> None:
        # Read by verl's _setup: without them it puts no engine on the training cards (its trainer `separate_async` says so, too).
        self._enable_hybrid_replicas = bool(config.actor_rollout_ref.hybrid_engine)
        super().__init__(config)
        self.settings = Settings.from_config(config.genselect)
        self.recorder = StepRecorder(self.settings)
        self._first_update: dict[str, list[float]] = {}
        self._padded: dict[str, dict[str, Any]] = {}
        self._memory_check: MemoryCheck | None = None
        self._launched = True
        self._fetched: dict[int, int] = {}

    # Set-up, saves

    def _setup(self) -> None:
        super()._setup()
        if not self._enable_hybrid_replicas:
            self._roll_out_apart()
        if not self.settings.predictor:
            return
        role = Role.Critic if self.use_critic else next(iter(self.mapping))
        pool = self.resource_pool_manager.get_resource_pool(role)
        budget = self.settings.predictor_budget if self.config.critic.use_dynamic_bsz else None
        self.predictor = PredictorGroup(self.config, pool, self.settings.predictor_lr, budget)
        if self.global_steps > 0:
            # super()._setup() has loaded the other models from there already.
            self.predictor.load(str(Path(self.config.trainer.resume_from_path) / "submit"))

    def _roll_out_apart(self) -> None:
        """Start the engines on cards of their own, in the place of those that verl's _setup left out; weights then travel."""
        self.llm_server_manager = LLMServerManager.create(config=self.config)
        self.checkpoint_manager = CheckpointEngineManager(
            config=omega_conf_to_dataclass(self.config.actor_rollout_ref.rollout.checkpoint_engine),
            actor_wg=self.actor_rollout_wg,
            replicas=self.llm_server_manager.get_replicas(),
        )

    def _get_n_gpus_for_throughput(self) -> int:
        """verl's, with the engines' own cards."""
        rollout = self.config.actor_rollout_ref.rollout
        apart = 0 if self._enable_hybrid_replicas else rollout.nnodes * rollout.n_gpus_per_node
        return super()._get_n_gpus_for_throughput() + apart

    def _save_checkpoint(self) -> None:
        if not self.recorder.may_save(self.global_steps):
            return
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        if self.predictor:
            self.predictor.save(str(folder / "submit"), self.global_steps)
        super()._save_checkpoint()

    # A step

    def step(self, metrics: dict, timing_raw: dict) -> Any:
        """verl's step; and, when a stop was asked for, a save at its end."""
        batch = super().step(metrics, timing_raw)
        if self.recorder.stop_requested():
            self._save_checkpoint()
        return batch

    def _fetch_one_gen_batch(self) -> Any:
        """verl's, with names for the rows that a resumed run gives again; verl draws them at random."""
        batch = super()._fetch_one_gen_batch()
        first = self._fetched.get(self.global_steps, 0)
        self._fetched = {self.global_steps: first + len(batch)}
        uids = [f"step-{self.global_steps}-{first + row:06d}" for row in range(len(batch))]
        batch["uid"] = tu.get_tensordict({"uid": np.array(uids, dtype=object)})["uid"]
        return batch

    def _balance_batch(self, batch: Any, *arguments: Any, **options: Any) -> Any:
        """verl's, on rows in a settled order; in a gate run, what comes before the forwards of the launch's first step."""
        # They come in the order in which episodes ended, and mini-batches are cut in that order: a resumed run would differ.
        batch.reorder(sorted(range(len(batch.keys)), key=batch.keys.__getitem__))
        batch = super()._balance_batch(batch, *arguments, **options)
        first, self._launched = self._launched, False
        if first and self.settings.synthetic_steps:
            self._memory_check = self.settings.memory_check(str(self.config.trainer.device))
            run_synthetic_steps(self, batch, self._memory_check, self.settings.synthetic_steps)
        if first and self.settings.prove_packing:
            self._padded = padded_columns(self, batch, self.settings.world_size)
        return batch

    def probe(self) -> Probe:
        """Asks the workers for their memory."""
        groups = {"actor and critic": self.actor_rollout_wg._workers}
        if self.predictor:
            groups["predictor"] = self.predictor.workers._workers
        if not self._enable_hybrid_replicas:
            replicas = self.llm_server_manager.get_replicas()
            groups["rollout"] = [worker for replica in replicas for worker in replica.workers]
        return Probe(groups, first={"rollout": self.settings.world_size})

    def verl_log_probs(self, batch: Any) -> None:
        """verl's forward of the policy over ``batch``, without ours after it."""
        super()._compute_old_log_prob(batch, {})

    def verl_values(self, batch: Any) -> None:
        """verl's forward of the critic."""
        super()._compute_values(batch, {})

    def _compute_old_log_prob(self, batch: Any, metrics: dict) -> Any:
        batch = super()._compute_old_log_prob(batch, metrics)
        if self.predictor:
            self.predictor.predict(batch, self.config.actor_rollout_ref.rollout.temperature)
        return batch

    def _compute_advantage(self, batch: Any, metrics: dict) -> Any:
        """verl's, with the shaping between the scores and the advantages; without a potential it is verl's own, exactly."""
        batch = self._advantages(batch, metrics)
        if self.predictor:
            # Its predictions have been used; here, because without a critic verl has no other step for value models.
            with marked_timer("update_predictor", self.timing_raw):
                metrics.update(self.predictor.update(batch))
        return batch

    def _advantages(self, batch: Any, metrics: dict) -> Any:
        if not self.settings.potential:
            return super()._compute_advantage(batch, metrics)
        fields = ["uid", "response_mask", "rm_scores", "extra_fields", "submit_logits", "values"]
        columns = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        trajectories = [extra.get("trajectory") for extra in objects(columns.pop("extra_fields"))]
        mask = columns["response_mask"]
        data = DataProto(batch=columns.to_padded_tensor())
        data.non_tensor_batch["uid"] = np.array(data.batch.pop("uid").tolist(), dtype=object)
        scores = data.batch["rm_scores"]
        logits = data.batch.get("submit_logits", None)
        rewards = shape_rewards(
            scores,
            data.batch["response_mask"],
            logits,
            trajectories,
            self.settings.potential,
            self.config.algorithm.gamma,
        )
        data.batch["token_level_scores"] = scores
        data.batch["token_level_rewards"] = rewards
        data = compute_advantage_for_multi_trajectories(
            data,
            batch_keys=batch.keys,
            adv_estimator=self.config.algorithm.adv_estimator,
            gamma=self.config.algorithm.gamma,
            lam=self.config.algorithm.lam,
            num_repeat=self.config.actor_rollout_ref.rollout.n,
            norm_adv_by_std_in_grpo=self.config.algorithm.get("norm_adv_by_std_in_grpo", True),
            config=self.config.algorithm,
        )
        # Rewards are written back, or verl's metrics would show the unshaped ones as if they had been trained on.
        names = ("advantages", "returns", "token_level_rewards")
        output = {name: response_to_nested(data.batch[name], mask) for name in names}
        return tq.kv_batch_put(
            keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(output, batch_size=len(batch))
        )

    def _update_actor(self, batch: Any, metrics: dict) -> Any:
        """verl's, keeping each mini-batch's figures, which verl reduces to their mean."""
        group = self.actor_rollout_wg
        update = group.update_actor

        def keep(data: Any) -> Any:
            output = update(data)
            found = output["metrics"]
            self._first_update = {
                name: [float(value) for value in np.ravel(found[key])]
                for name in ("ppo_kl", "pg_clipfrac")
                for key in (name, f"actor/{name}")
                if key in found
            }
            return output

        group.update_actor = keep
        try:
            return super()._update_actor(batch, metrics)
        finally:
            group.update_actor = update

    # Records

    def _compute_metrics(self, batch: Any, metrics: dict, timing_raw: dict, global_steps: int, epoch: int) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, global_steps, epoch)
        data = StepData.from_queue(batch, self.tokenizer, critic=self.use_critic, predictor=self.predictor is not None)
        data = replace(data, padded=self._padded)
        self._padded = {}
        # verl drops a group whose agent loop failed, and says so in its log only.
        expected = self.config.data.train_batch_size * self.config.actor_rollout_ref.rollout.n
        metrics["rollout/missing_share"] = 1 - len(data.trajectories) / expected
        memory = (self._memory_check, self.probe().end()[1]) if self._memory_check else None
        stop = self.recorder.record(
            global_steps, data, metrics, timing_raw, self._first_update, self.total_training_steps, memory
        )
        self._first_update, self._memory_check = {}, None
        if stop:
            # verl's loop ends when the step passes this; the step is complete, its save written.
            self.total_training_steps = global_steps

    def _val_metrics_update(
        self, data_sources: Any, sample_uids: Any, infos: dict, turns: Any, **options: Any
    ) -> dict[str, float]:
        played = [json.loads(text) for text in infos.pop("trajectory", []) if text]
        metrics = super()._val_metrics_update(data_sources, sample_uids, infos, turns, **options)
        return {**metrics, **self.recorder.validated(self.global_steps, played)}


def register() -> None:
    """Take over verl's synchronous trainer. Replaces the entry, which ``register_trainer`` refuses to do."""
    TRAINER_REGISTRY["sync"] = ExploreTrainer
