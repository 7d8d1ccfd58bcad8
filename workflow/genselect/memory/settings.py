"""What decides memory, out of verl's resolved configuration; and the layout of a node."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genselect.config.training import Run
from genselect.errors import GenselectError
from genselect.memory.weights import Head

_BYTES = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2}
_MODELS: dict[str, Head] = {"actor": "policy", "critic": "value", "predictor": "value"}


@dataclass(frozen=True)
class Layout:
    """Which cards do what."""

    train: int
    rollout: int = 0
    """Cards for the engines alone; 0 when the engines share the training cards."""
    judge: int = 0

    @classmethod
    def parse(cls, text: str) -> Layout:
        """``8`` is eight cards that train and roll out in turn; ``4+3+1`` trains on four, rolls out on three, judges on one.

        Raises:
            GenselectError: It reads otherwise.
        """
        if not re.fullmatch(r"[1-9]\d*(\+[1-9]\d*(\+\d+)?)?", text):
            raise GenselectError(
                f"--layout {text}: is not a layout",
                "8 is eight cards that train and roll out in turn; 4+3+1 trains on four, rolls out on three, judges on one.",
            )
        return cls(*(int(cards) for cards in text.split("+")))

    @property
    def colocated(self) -> bool:
        """The engines share the training cards."""
        return not self.rollout

    def __str__(self) -> str:
        judge = f", {self.judge} for the judge" if self.judge else ""
        if self.colocated:
            return f"{self.train} cards, colocated{judge}"
        return f"{self.train} cards to train, {self.rollout} to roll out{judge}"


@dataclass(frozen=True)
class TrainedModel:
    """One of the models that are trained, as verl holds it."""

    name: str
    """``actor``, ``critic`` or ``predictor``."""
    head: Head
    budget: int
    """Tokens in a forward and backward, a card."""
    rank: int
    """Of the adapters; 0 trains everything."""
    kept_bytes: int
    """Of a number of the sharded weights, gradients and moments."""
    computed_bytes: int
    """Of a number in the forward and backward."""
    checkpointing: bool
    """Gradient checkpointing: only the inputs of layers are kept between forward and backward."""
    reshard: bool
    """Gathered weights are let go after a layer's forward."""
    packed: bool
    fused_head: bool
    """Vocabulary in chunks; otherwise the logits of all tokens stand at once."""
    sequence_parallel: int
    offload_weights: bool
    offload_optimiser: bool

    @property
    def process(self) -> str:
        """Actor and critic share a process on each card; the predictor has one of its own."""
        return "predictor" if self.name == "predictor" else "actor and critic"


@dataclass(frozen=True)
class Engine:
    """The rollout engine (vLLM)."""

    share: float
    """Of a card's memory: ``gpu_memory_utilization``."""
    sleeps: bool
    """Lets its memory go while the trainer computes (``free_cache_engine``)."""
    number_bytes: int
    tensor_parallel: int
    rows_at_once: int
    """``max_num_seqs``."""
    batched_tokens: int
    """``max_num_batched_tokens``."""
    longest: int
    """``max_model_len``."""
    episodes: int
    """Of a step, over all engines."""
    merged: bool
    """Merged weights are sent, not adapters."""
    bucket: int
    """Bytes of the buffer that weights are sent through."""


@dataclass(frozen=True)
class Settings:
    """Of a run."""

    models: tuple[TrainedModel, ...]
    engine: Engine
    longest: int
    """Tokens of the longest row: prompt and response."""
    layout: Layout
    """The run's own; the prediction may be of another."""

    def model(self, name: str) -> TrainedModel:
        """By name; there must be one."""
        return next(model for model in self.models if model.name == name)


def run_settings(run: Run, name: str) -> Settings:
    """Of a resolved run on cards, through the same table that a launch goes through (needs verl installed, and no machine).

    Raises:
        GenselectError: A key of the run's ``verl`` section is not one of verl's, or a type of numbers is not known.
    """
    from omegaconf import OmegaConf

    from genselect.training.verl_config import Launch, verl_config

    nowhere = Path("absent")
    paths = dict.fromkeys(("model", "train_rows", "val_rows", "directory", "agent_loop"), nowhere)
    launch = Launch(name=name, **paths, attempt=1, resume_from=None, total_steps=run.schedule.steps, cpu=False)
    extension = {
        "predictor": run.predictor.enabled,
        "predictor_budget": run.tokens.predictor_budget,
        "judge_cards": run.layout.judge,
    }
    config: Any = OmegaConf.to_container(verl_config(run, launch, extension), resolve=True)
    return settings_of(config)


def settings_of(config: Mapping[str, Any]) -> Settings:
    """Read verl's resolved configuration, with our section ``genselect`` in it.

    Args:
        config: As plain containers (``OmegaConf.to_container(..., resolve=True)``).

    Raises:
        GenselectError: A type of numbers that is not known, or a trainer that is not foreseen.
    """
    rollout = config["actor_rollout_ref"]["rollout"]
    ours = config.get("genselect") or {}
    names = ["actor"]
    critic = config["critic"]
    if critic.get("enable") or (critic.get("enable") is None and config["algorithm"]["adv_estimator"] == "gae"):
        names.append("critic")
    if ours.get("predictor"):
        names.append("predictor")
    data = config["data"]
    longest = int(data["max_prompt_length"]) + int(data["max_response_length"])
    lora = config["actor_rollout_ref"]["model"].get("lora") or {}
    bucket = int((rollout.get("checkpoint_engine") or {}).get("update_weights_bucket_megabytes") or 2048)
    return Settings(
        models=tuple(_model(name, config) for name in names),
        longest=longest,
        layout=_layout(config),
        engine=Engine(
            share=float(rollout["gpu_memory_utilization"]),
            sleeps=bool(rollout["free_cache_engine"]),
            number_bytes=_bytes(rollout["dtype"], "actor_rollout_ref.rollout.dtype"),
            tensor_parallel=int(rollout["tensor_model_parallel_size"]),
            rows_at_once=int(rollout["max_num_seqs"]),
            batched_tokens=int(rollout["max_num_batched_tokens"]),
            longest=int(rollout.get("max_model_len") or longest),
            episodes=int(data["train_batch_size"]) * int(rollout["n"]),
            merged=bool(lora.get("merge", False)),
            bucket=bucket << 20,
        ),
    )


def _layout(config: Mapping[str, Any]) -> Layout:
    trainer, rollout = config["trainer"], config["actor_rollout_ref"]["rollout"]
    train = int(trainer["nnodes"]) * int(trainer["n_gpus_per_node"])
    judge = int((config.get("genselect") or {}).get("judge_cards") or 0)
    if config["actor_rollout_ref"].get("hybrid_engine", True):
        return Layout(train, judge=judge)
    return Layout(train, int(rollout["nnodes"]) * int(rollout["n_gpus_per_node"]), judge)


def _model(name: str, config: Mapping[str, Any]) -> TrainedModel:
    policy, critic = config["actor_rollout_ref"], config["critic"]
    if name == "actor":
        model, engine, budget = policy["model"], policy["actor"]["fsdp_config"], policy["actor"]
        where = "actor_rollout_ref.actor.fsdp_config"
    else:
        model, engine, budget = critic["model"], critic["fsdp"], critic
        where = "critic.fsdp"
    tokens = budget["ppo_max_token_len_per_gpu"]
    if name == "predictor":
        tokens = config["genselect"].get("predictor_budget") or tokens
    mixed = engine.get("mixed_precision") or {}
    return TrainedModel(
        name=name,
        head=_MODELS[name],
        budget=int(tokens),
        rank=int(model["lora_rank"] or 0),
        kept_bytes=_bytes(engine["model_dtype"] or "fp32", f"{where}.model_dtype"),
        computed_bytes=_bytes(mixed.get("param_dtype", "bf16"), f"{where}.mixed_precision.param_dtype"),
        checkpointing=bool(model["enable_gradient_checkpointing"]),
        reshard=bool(engine["reshard_after_forward"]),
        packed=bool(model["use_remove_padding"]),
        fused_head=bool(policy["model"].get("use_fused_kernels")),
        sequence_parallel=int(engine.get("ulysses_sequence_parallel_size") or 1),
        offload_weights=bool(engine["param_offload"] or engine.get("offload_policy")),
        offload_optimiser=bool(engine["optimizer_offload"] or engine.get("offload_policy")),
    )


def _bytes(kind: Any, key: str) -> int:
    if str(kind) not in _BYTES:
        raise GenselectError(f"verl.{key}: {kind}: its size is not known here", f"Known: {', '.join(_BYTES)}.")
    return _BYTES[str(kind)]
