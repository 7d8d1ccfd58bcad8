"""The engines: policy, critic and submit predictor, with initial values that the run's seed decides.

verl draws adapters and heads from whatever state the process's generator is in, so that two runs of one seed, or a run that is
stopped before its first save, would not start alike (``FSDPEngine._build_model_optimizer``; ``full_determinism`` would seed it and
slow every kernel down). Can go when verl seeds the building of a model.

Value models also need boundaries between packed rows, and a LoRA of their own. verl always builds LoRA for a causal language
model (``FSDPEngine._build_lora_module``), which PEFT refuses for a token-classification model; and ``all-linear`` would put an
adapter on the new head instead of training it. Can go when verl chooses the task type by model type.

All of them save what they train, and no frozen weight (:mod:`genselect.training.trained_weights`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from peft import LoraConfig, TaskType, get_peft_model
from verl.utils.py_functional import convert_to_regular_types
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead

from genselect.training.boundaries import name_boundaries
from genselect.training.trained_weights import TrainedWeights

#: verl's model type of the submit predictor.
SUBMIT_MODEL = "submit_model"
_HEAD = "score"


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers drawn within are those of ``seed``; those drawn afterwards are as if there had been none."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


@contextlib.contextmanager
def giving_back(mode: contextlib.AbstractContextManager[Any]) -> Iterator[None]:
    """Within ``mode``; at its end the allocator's cache goes back to the card.

    The predictor computes in a process of its own. What its allocator, or the critic's, keeps of the last stage is missing when the
    other one computes, or the rollout engine wakes: by estimate 43 GiB of a card in the study's layout (docs/memory-check.md).
    """
    with mode:
        yield
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class GivesBack:
    """An engine that keeps nothing for itself between two stages. verl enters a mode once a stage, and once more, with
    ``disable_auto_offload``, for each mini-batch within it (``TrainingWorker.train_mini_batch``)."""

    def train_mode(self, **options: Any) -> Any:
        """As verl's."""
        mode = super().train_mode(**options)  # type: ignore[misc]
        return mode if options.get("disable_auto_offload") else giving_back(mode)

    def eval_mode(self, **options: Any) -> Any:
        """As verl's."""
        mode = super().eval_mode(**options)  # type: ignore[misc]
        return mode if options.get("disable_auto_offload") else giving_back(mode)


class SavesTrained:
    """An engine that saves and loads what it trains."""

    checkpoint_manager: Any

    def initialize(self) -> None:
        """As verl's, with a checkpoint manager of ours. verl's holds no state before its first save."""
        super().initialize()  # type: ignore[misc]
        verls = self.checkpoint_manager
        self.checkpoint_manager = TrainedWeights(
            verls.model,
            verls.optimizer,
            verls.lr_scheduler,
            verls.processing_class,
            verls.checkpoint_config,
            verls.trust_remote_code,
        )


class PolicyEngine(GivesBack, SavesTrained, FSDPEngineWithLMHead):
    """verl's, with an adapter that the run's seed decides."""

    def _build_lora_module(self, module: Any) -> Any:
        with seeded(self.engine_config.seed):
            return super()._build_lora_module(module)


class ValueEngine(GivesBack, SavesTrained, FSDPEngineWithValueHead):
    """A token-classification model with one output, a LoRA on its layers and a head that is trained whole."""

    #: Added to the run's seed: no two models begin alike.
    offset = 1

    def _build_module(self) -> Any:
        with seeded(self.engine_config.seed + self.offset):  # the head
            return name_boundaries(super()._build_module())

    def _build_lora_module(self, module: Any) -> Any:
        with seeded(self.engine_config.seed + self.offset):
            return self._with_adapter(module)

    def _with_adapter(self, module: Any) -> Any:
        settings = self.model_config
        # With gradient checkpointing, a frozen embedding's output must ask for gradients or nothing upstream gets any.
        module.enable_input_require_grads()
        module = get_peft_model(
            module,
            LoraConfig(
                task_type=TaskType.TOKEN_CLS,
                r=settings.lora_rank,
                lora_alpha=settings.lora_alpha,
                target_modules=convert_to_regular_types(settings.target_modules),
                exclude_modules=convert_to_regular_types(settings.exclude_modules) or [_HEAD],
                bias="none",
            ),
        )
        # FSDP keeps one dtype a flat group.
        dtype = next(parameter.dtype for parameter in module.parameters() if not parameter.requires_grad)
        for parameter in module.parameters():
            if parameter.requires_grad and parameter.dtype != dtype:
                parameter.data = parameter.data.to(dtype)
        return module


class SubmitEngine(ValueEngine):
    """The submit predictor: the critic's network under an output key of its own, so that ``values`` stays the critic's."""

    offset = 2

    def _build_module(self) -> Any:
        # FSDPEngine._build_module knows two model types only.
        self.model_config.model_type = "value_model"
        try:
            return super()._build_module()
        finally:
            self.model_config.model_type = SUBMIT_MODEL

    def prepare_model_outputs(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        """``{"submit_logits": ...}``, nested, (rows, tokens): the logit of "an answer submitted from here is correct"."""
        return {"submit_logits": super().prepare_model_outputs(*arguments, **options)["values"]}


def register() -> None:
    """Put the engines into verl's registry, for cards and for the CPU; replaces verl's own."""
    engines = {"language_model": PolicyEngine, "value_model": ValueEngine, SUBMIT_MODEL: SubmitEngine}
    for model_type, engine in engines.items():
        for backend in ("fsdp", "fsdp2"):
            by_device = EngineRegistry._engines.setdefault(model_type, {}).setdefault(backend, {})
            by_device.update(dict.fromkeys(("cuda", "npu", "cpu"), engine))
