"""One run of our configuration as verl's: a thin, readable table, and verl's own schema as the check.

The run's settings come first, then what the machine needs (cards or CPU), then the user's own verl keys, which win.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genselect.config.training import Run
from genselect.errors import GenselectError

#: verl's estimators by our names; others pass through.
_ESTIMATORS = {"ppo": "gae"}
#: Of a card that only rolls out, what the engine takes.
_SHARE_OF_OWN_CARD = 0.8
#: Where a cosine ends, as a share of the rate.
_LOWEST_LR = 0.1
#: Keys that verl's schema lacks and its code reads all the same.
_ADDED = (
    "actor_rollout_ref.model.override_config.attn_implementation",
    "critic.model.override_config.attn_implementation",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision",
    "critic.fsdp.mixed_precision",
    "actor_rollout_ref.rollout.enable_sleep_mode",
    "ray_kwargs.ray_init.num_gpus",
    "ray_kwargs.ray_init.include_dashboard",
    "ray_kwargs.ray_init.object_store_memory",
    "ray_kwargs.ray_init._node_ip_address",
)


@dataclass(frozen=True)
class Launch:
    """What a launch adds to its run's settings."""

    name: str
    """The run's."""
    model: Path
    train_rows: Path
    val_rows: Path
    directory: Path
    """The run directory."""
    attempt: int
    resume_from: Path | None
    """The save to go on from."""
    agent_loop: Path
    """Written by the launcher: the agent loop with its episode settings."""
    total_steps: int
    """Steps at which this launch ends."""
    cpu: bool
    """No cards."""


def verl_config(run: Run, launch: Launch, extension: Mapping[str, Any]) -> Any:
    """verl's whole configuration (a ``DictConfig``) for one launch, with ours under ``genselect``.

    Args:
        run: The resolved run.
        launch: Paths and machine.
        extension: What our trainer reads, stored under ``genselect``.

    Raises:
        GenselectError: A key of the run's ``verl`` section is not one of verl's.
    """
    import verl.trainer
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    folder = Path(verl.trainer.__file__).parent / "config"
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        config = compose("ppo_trainer")
    machine = _cpu_keys(run) if launch.cpu else _card_keys(run)
    for key, value in {**_run_keys(run, launch), **machine, **_apart_keys(run, launch.cpu)}.items():
        # Over several nodes Ray is up before the trainer (nodes.py), and takes no more settings.
        if run.nodes == 1 or not key.startswith("ray_kwargs.ray_init."):
            OmegaConf.update(config, key, value, force_add=key in _ADDED)
    _apply_user_keys(config, run.verl)
    _check_shaping(config, run)
    OmegaConf.update(config, "genselect", dict(extension), force_add=True)
    return config


def _check_shaping(config: Any, run: Run) -> None:
    """The shaped path replaces verl's step from scores to advantages, and leaves out what it would do on the way."""
    correction = config.algorithm.rollout_correction or {}
    asked = ["algorithm.use_kl_in_reward"] if config.algorithm.use_kl_in_reward else []
    asked += [f"algorithm.rollout_correction.{name}" for name in ("rollout_is", "rollout_rs") if correction.get(name)]
    if run.potential and asked:
        raise GenselectError(
            f"verl.{asked[0]}: does not go together with a potential",
            "Leave one of the two out: the shaped advantages are computed without it.",
        )


def _apply_user_keys(config: Any, keys: Mapping[str, Any]) -> None:
    from omegaconf import OmegaConf

    missing = object()
    for key, value in keys.items():
        # `+key` adds, as on verl's command line; without it the key must be one that verl knows.
        added = key.startswith("+")
        if not added and OmegaConf.select(config, key, default=missing) is missing:
            close = difflib.get_close_matches(key, list(_leaves(OmegaConf.to_container(config))), n=1)
            hint = (
                f"Did you mean {close[0]}?"
                if close
                else "verl's keys are in verl/trainer/config/_generated_ppo_trainer.yaml."
            )
            raise GenselectError(
                f"verl.{key}: verl has no such key", f"{hint} A key that only verl's code reads is written +{key}."
            )
        OmegaConf.update(config, key.removeprefix("+"), value, force_add=added)


def _leaves(values: Any, prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        yield f"{prefix}{name}"


def _run_keys(run: Run, launch: Launch) -> dict[str, Any]:
    """The run's settings under verl's names."""
    schedule, optimiser, tokens = run.schedule, run.optimiser, run.tokens
    actor, rollout, critic = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "critic"
    keys: dict[str, Any] = {
        "algorithm.adv_estimator": _ESTIMATORS.get(run.algorithm, run.algorithm),
        "algorithm.gamma": optimiser.gamma,
        "algorithm.lam": optimiser.lam,
        "algorithm.use_kl_in_reward": False,
        "data.train_files": str(launch.train_rows),
        "data.val_files": str(launch.val_rows),
        "data.train_batch_size": schedule.problems,
        "data.max_prompt_length": tokens.prompt,
        "data.max_response_length": tokens.response,
        "data.seed": run.seed,
        "data.validation_shuffle": False,
        # Rows are made to fit; a prompt that does not is an error of the budget, not something to drop in silence.
        "data.filter_overlong_prompts": False,
        "data.truncation": "error",
        "actor_rollout_ref.model.path": str(launch.model),
        "actor_rollout_ref.model.lora_rank": optimiser.lora_rank,
        "actor_rollout_ref.model.lora_alpha": optimiser.lora_alpha,
        "actor_rollout_ref.model.target_modules": "all-linear",
        "actor_rollout_ref.model.use_remove_padding": tokens.packing,
        f"{actor}.strategy": "fsdp2",
        f"{actor}.optim.lr": optimiser.actor_lr,
        f"{actor}.optim.lr_scheduler_type": optimiser.actor_lr_schedule,
        f"{actor}.optim.min_lr_ratio": _LOWEST_LR if optimiser.actor_lr_schedule == "cosine" else 0.0,
        f"{actor}.clip_ratio": optimiser.clip,
        f"{actor}.ppo_mini_batch_size": schedule.mini_batch,
        f"{actor}.ppo_epochs": schedule.epochs,
        f"{actor}.use_kl_loss": False,
        f"{actor}.entropy_coeff": 0.0,
        f"{actor}.data_loader_seed": run.seed,
        # Of the adapters' and heads' initial values (genselect.training.engines).
        f"{actor}.fsdp_config.seed": run.seed,
        f"{critic}.fsdp.seed": run.seed,
        f"{rollout}.name": "vllm",
        f"{rollout}.n": schedule.samples,
        f"{rollout}.temperature": run.temperature,
        f"{rollout}.calculate_log_probs": True,
        f"{rollout}.max_model_len": tokens.prompt + tokens.response,
        f"{rollout}.agent.agent_loop_config_path": str(launch.agent_loop),
        f"{rollout}.agent.default_agent_loop": "atlas_sequential",
        f"{rollout}.val_kwargs.do_sample": True,
        f"{rollout}.val_kwargs.temperature": run.temperature,
        f"{rollout}.val_kwargs.n": 1,
        f"{critic}.model.path": str(launch.model),
        f"{critic}.model.lora_rank": optimiser.lora_rank,
        f"{critic}.model.lora_alpha": optimiser.lora_alpha,
        f"{critic}.model.use_remove_padding": tokens.packing,
        f"{critic}.strategy": "fsdp2",
        f"{critic}.optim.lr": optimiser.critic_lr,
        f"{critic}.ppo_mini_batch_size": schedule.mini_batch,
        f"{critic}.ppo_epochs": schedule.epochs,
        f"{critic}.data_loader_seed": run.seed,
        "trainer.nnodes": run.nodes,
        "trainer.n_gpus_per_node": 1 if launch.cpu else run.train_cards,
        "trainer.project_name": "genselect",
        "trainer.experiment_name": launch.name,
        # Our metrics.jsonl is the record; verl's console line is for its log.
        "trainer.logger": ["console"],
        "trainer.total_epochs": 10**6,
        "trainer.total_training_steps": launch.total_steps,
        "trainer.critic_warmup": schedule.critic_warmup,
        "trainer.save_freq": schedule.save_every,
        "trainer.test_freq": schedule.validate_every or -1,
        "trainer.val_before_train": schedule.validate_every > 0 and launch.resume_from is None,
        "trainer.default_local_dir": str(launch.directory / "checkpoints"),
        # `auto` starts from scratch in silence when verl's tracker file is missing, so the save is always named.
        "trainer.resume_mode": "resume_path" if launch.resume_from else "disable",
        "trainer.resume_from_path": str(launch.resume_from) if launch.resume_from else None,
    }
    return keys


def _card_keys(run: Run) -> dict[str, Any]:
    """A node with cards: packed rows, token budgets, flash attention."""
    tokens = run.tokens
    return {
        "actor_rollout_ref.model.enable_gradient_checkpointing": True,
        # Without fused kernels verl skips its Qwen3.5 patch; the torch backend was 1.6 to 2 times as fast as triton in the study.
        "actor_rollout_ref.model.use_fused_kernels": True,
        "actor_rollout_ref.model.fused_kernel_options.impl_backend": "torch",
        "actor_rollout_ref.actor.use_dynamic_bsz": True,
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": tokens.actor_budget,
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": True,
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": tokens.actor_budget,
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
        "critic.model.enable_gradient_checkpointing": True,
        "critic.use_dynamic_bsz": True,
        "critic.ppo_max_token_len_per_gpu": tokens.critic_budget,
        "ray_kwargs.ray_init._node_ip_address": "127.0.0.1",
    }


def _apart_keys(run: Run, cpu: bool) -> dict[str, Any]:
    """Rollout engines on cards of their own; nothing when they share the training cards."""
    if not run.layout.rollout:
        return {}
    rollout = "actor_rollout_ref.rollout"
    keys: dict[str, Any] = {
        "actor_rollout_ref.hybrid_engine": False,
        f"{rollout}.nnodes": 1,
        f"{rollout}.n_gpus_per_node": 1 if cpu else run.layout.rollout,
        # Without it verl 0.9.1 sends the base weights and never the adapter (ActorRolloutRefWorker.update_weights drops the
        # adapter's settings unless the backend is naive): the engine would play the untrained policy for ever.
        "actor_rollout_ref.model.lora.merge": True,
        # Nobody else wants these cards: the engine keeps its memory, and begins with the model's own weights.
        f"{rollout}.free_cache_engine": False,
        f"{rollout}.load_format": "auto",
        f"{rollout}.checkpoint_engine.backend": "gloo" if cpu else "nccl",
    }
    if cpu:
        keys |= {
            f"{rollout}.checkpoint_engine.custom_backend_module": "genselect.training.gloo_engine",
            "ray_kwargs.ray_init.num_gpus": 2,
        }
    else:
        # The rest is for the buffers that weights come through.
        keys[f"{rollout}.gpu_memory_utilization"] = _SHARE_OF_OWN_CARD
    return keys


def micro_batch(run: Run) -> int:
    """Rows of a micro-batch on a machine without cards."""
    return min(32, run.schedule.mini_batch * run.schedule.samples)


def _cpu_keys(run: Run) -> dict[str, Any]:
    """A machine without cards (the miniature): fixed micro-batches, one engine, fp32 training."""
    episodes = run.schedule.problems * run.schedule.samples
    micro = micro_batch(run)
    keys: dict[str, Any] = {
        "trainer.device": "cpu",
        "data.dataloader_num_workers": 0,
        "actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
        "actor_rollout_ref.model.enable_gradient_checkpointing": False,
        # vLLM's gated delta net on the CPU takes no LoRA, so merged weights are sent.
        "actor_rollout_ref.model.lora.merge": True,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": micro,
        "actor_rollout_ref.actor.use_torch_compile": False,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": min(64, episodes),
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
        "actor_rollout_ref.rollout.enforce_eager": True,
        "actor_rollout_ref.rollout.free_cache_engine": False,
        "actor_rollout_ref.rollout.enable_sleep_mode": False,
        "actor_rollout_ref.rollout.load_format": "auto",
        "actor_rollout_ref.rollout.dtype": "bfloat16",
        "actor_rollout_ref.rollout.max_num_seqs": 64,
        # A prompt prefilled in parts makes vLLM rewind the request's seeded generator, which a CPU generator cannot
        # ("CPU Generator does not use offset", vllm/v1/worker/gpu_model_runner.py), so every prompt must fit at once; and
        # prefix caching of a hybrid model prefills in parts.
        "actor_rollout_ref.rollout.enable_chunked_prefill": False,
        "actor_rollout_ref.rollout.enable_prefix_caching": False,
        "actor_rollout_ref.rollout.max_num_batched_tokens": 64 * (run.tokens.prompt + run.tokens.response),
        "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes": 64,
        "actor_rollout_ref.rollout.agent.num_workers": 1,
        "critic.model.override_config.attn_implementation": "sdpa",
        "critic.model.enable_gradient_checkpointing": False,
        "critic.ppo_micro_batch_size_per_gpu": micro,
        "reward.num_workers": 1,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        "transfer_queue.backend.SimpleStorage.total_storage_size": max(4000, 8 * episodes),
        # Logical: Ray schedules by them, nothing is reserved.
        "ray_kwargs.ray_init.num_cpus": 16,
        "ray_kwargs.ray_init.num_gpus": 1,
        "ray_kwargs.ray_init.include_dashboard": False,
        "ray_kwargs.ray_init.object_store_memory": 400_000_000,
        "ray_kwargs.ray_init._node_ip_address": "127.0.0.1",
    }
    # bf16 autocast is slower than fp32 on a CPU, and its noise would hide what the proofs look for.
    fp32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    for engine in ("actor_rollout_ref.actor.fsdp_config", "critic.fsdp"):
        keys |= {
            f"{engine}.use_torch_compile": False,
            f"{engine}.model_dtype": "fp32",
            f"{engine}.mixed_precision": fp32,
        }
    return keys
