"""verl on a machine without cards. Loaded only there (``GENSELECT_CPU=1``); a node with cards never sees this module.

verl 0.9.1 knows CUDA and NPU. Its plugin registry takes a platform for the CPU; what the registry does not reach is patched
after the module in question has been imported. Each patch says what it works round and where. All can go when verl ships a CPU
platform.
"""

from __future__ import annotations

import contextlib
import os
import types
from collections.abc import Iterator
from typing import Any

import torch
import wrapt


def install() -> None:
    """Make the CPU verl's platform and arrange for the patches. Idempotent."""
    from verl.plugin.platform import platform_manager

    if platform_manager._current_platform is None or platform_manager._current_platform.device_name != "cpu":
        platform_manager._current_platform = _platform()
    for module, patch in _PATCHES.items():
        wrapt.register_post_import_hook(patch, module)


class _DeviceModule(types.ModuleType):
    """``torch.cpu`` with the memory calls that verl makes on ``torch.cuda``: a CPU has no allocator statistics to give."""

    def __init__(self) -> None:
        super().__init__("genselect_cpu_device")
        zero = lambda *arguments, **options: 0  # noqa: E731
        nothing = lambda *arguments, **options: None  # noqa: E731
        for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
            setattr(self, name, zero)
        for name in ("reset_peak_memory_stats", "reset_accumulated_memory_stats", "empty_cache", "ipc_collect"):
            setattr(self, name, nothing)
        self.set_device = self.synchronize = nothing
        self.get_device_name = lambda *arguments: "CPU"
        self.manual_seed = self.manual_seed_all = torch.manual_seed
        self.get_rng_state = lambda *arguments: torch.get_rng_state()
        self.set_rng_state = lambda state, *arguments: torch.set_rng_state(state)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    @staticmethod
    def mem_get_info(*arguments: Any) -> tuple[int, int]:
        """Free and total memory of the machine, in bytes."""
        import psutil

        memory = psutil.virtual_memory()
        return memory.available, memory.total


class _DeviceId(str):
    """verl writes both ``x.to(get_device_id())``, which needs "cpu", and ``f"{device_name}:{device_id}"``, which needs a number."""

    def __format__(self, spec: str) -> str:
        return "0"


def _platform() -> Any:
    from verl.plugin.platform import PlatformRegistry
    from verl.plugin.platform.platform_base import PlatformBase

    @PlatformRegistry.register(platform="cpu")
    class CpuPlatform(PlatformBase):
        device_name = "cpu"
        vendor_name = "cpu"
        device_module = _DeviceModule()

        def is_available(self) -> bool:
            return True

        def is_platform_available(self, use_smi_check: bool = False) -> bool:
            return True

        def current_device(self) -> str:
            return _DeviceId("cpu")

        def device_count(self) -> int:
            return 1

        def set_device(self, device_index: Any) -> None:
            return None

        def synchronize(self, device_index: Any = None) -> None:
            return None

        def manual_seed(self, seed: int) -> None:
            torch.manual_seed(seed)

        manual_seed_all = manual_seed

        def set_allocator_settings(self, settings: Any) -> None:
            return None

        def empty_cache(self) -> None:
            return None

        def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
            return None, None

        def communication_backend_name(self) -> str:
            return "gloo"

        def visible_devices_envvar(self) -> str:
            return "CUDA_VISIBLE_DEVICES"

        def ray_resource_name(self) -> str:
            # Logical: verl counts GPUs and NPUs only, so the launcher gives Ray that many GPUs that nobody opens.
            return "GPU"

        def ray_noset_envvars(self) -> list[str]:
            return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

        def is_ipc_supported(self) -> bool:
            # Weights go to the rollout engine through shared memory instead of CUDA IPC.
            return False

        @contextlib.contextmanager
        def nvtx_range(self, message: str) -> Iterator[None]:
            yield

        def profiler_start(self) -> None:
            return None

        def profiler_stop(self) -> None:
            return None

        def cudart(self) -> None:
            return None

    return CpuPlatform()


def _one_backend(distributed: Any) -> None:
    """verl/utils/distributed.py builds "cpu:gloo,{device}:{backend}", which for the CPU names it twice, and pins NUMA nodes by card."""
    original = distributed.initialize_global_process_group_ray

    def initialize(timeout_second: Any = None, backend: Any = None) -> Any:
        return original(timeout_second=timeout_second, backend=backend or "gloo")

    distributed.initialize_global_process_group_ray = initialize
    distributed.set_numa_affinity = lambda: None


def _attention_without_flash(model: Any) -> None:
    """verl/utils/model.py loads value models with ``attn_implementation="flash_attention_2"`` hard-coded."""

    def load_valuehead_model(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
        from transformers import AutoModelForTokenClassification

        return AutoModelForTokenClassification.from_pretrained(
            local_path,
            dtype=torch_dtype,
            config=model_config,
            attn_implementation="sdpa",
            trust_remote_code=trust_remote_code,
        )

    model.load_valuehead_model = load_valuehead_model


def _copy_out_of_shared_memory(transfer: Any) -> None:
    """``.to("cpu")`` of a shared tensor is no copy: it outlives the callback, and closing the segment raises BufferError."""
    original = transfer.BucketedWeightReceiver.receive_weights

    def receive_weights(self: Any, on_bucket_received: Any) -> Any:
        return original(
            self, lambda weights, last: on_bucket_received([(name, tensor.clone()) for name, tensor in weights], last)
        )

    transfer.BucketedWeightReceiver.receive_weights = receive_weights


def _reload_repacked_weights(utils: Any) -> None:
    """vLLM on CPU packs each linear weight into a closure and leaves an empty parameter, so verl's ``model.load_weights`` of a
    bucket fails (verl/workers/rollout/vllm_rollout/utils.py). vLLM's own ``reload_weights`` restores, loads and packs again.
    The trainer sends fp32; the engine gets its own type."""
    extension = utils.vLLMColocateWorkerExtension
    original = extension.update_weights_from_ipc

    def update_weights_from_ipc(
        self: Any, peft_config: Any = None, base_sync_done: bool = False, use_shm: bool = False
    ) -> Any:
        if peft_config and base_sync_done:  # an adapter alone goes through add_lora; no base weight is touched
            return original(self, peft_config=peft_config, base_sync_done=base_sync_done, use_shm=use_shm)
        from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver

        if self.device is None:
            self.device = torch.device("cpu")
        received: list[Any] = []
        receiver = BucketedWeightReceiver(zmq_handle=self._get_zmq_handle(), device=self.device, use_shm=use_shm)
        receiver.receive_weights(lambda weights, last: received.extend(weights))
        dtype = self.vllm_config.model_config.dtype
        received = [(name, tensor.to(dtype) if tensor.is_floating_point() else tensor) for name, tensor in received]
        return self.reload_weights(weights_iterator=iter(received), is_checkpoint_format=True)

    extension.update_weights_from_ipc = update_weights_from_ipc


def _name_of_the_mapper(models: Any) -> None:
    """verl 0.9.1 calls ``WeightsMapper.get_unstacked_mapper``; vLLM 0.32 calls it ``get_rename_mapper``."""
    if not hasattr(models.WeightsMapper, "get_unstacked_mapper"):
        models.WeightsMapper.get_unstacked_mapper = models.WeightsMapper.get_rename_mapper


def _words_of_the_pause(async_llm: Any) -> None:
    """verl 0.9.1 pauses an engine with ``wait_for_inflight_requests``; vLLM 0.32 asks for a ``mode``. Before weights travel to engines
    elsewhere (verl/workers/rollout/vllm_rollout/vllm_async_server.py)."""
    original = async_llm.AsyncLLM.pause_generation

    async def pause_generation(self: Any, *, wait_for_inflight_requests: bool, clear_cache: bool = True) -> None:
        await original(self, mode="wait" if wait_for_inflight_requests else "abort", clear_cache=clear_cache)

    async_llm.AsyncLLM.pause_generation = pause_generation


def _poll_often(replay_buffer: Any) -> None:
    """The replay buffer looks for finished rollouts every 2 s by a constructor default; a miniature step takes 8 s in all."""
    original = replay_buffer.ReplayBuffer.__init__

    def initialise(self: Any, *arguments: Any, **options: Any) -> None:
        options.setdefault("poll_interval", float(os.environ.get("GENSELECT_POLL_S", "0.1")))
        original(self, *arguments, **options)

    replay_buffer.ReplayBuffer.__init__ = initialise


def _faster_delta_rule(_: Any) -> None:
    """Without flash-linear-attention, transformers inverts a matrix row by row in Python. Speed only, to the last few bits."""
    from genselect.base_model import gated_delta

    gated_delta.install()


_PATCHES: dict[str, Any] = {
    "transformers.models.qwen3_5.modeling_qwen3_5": _faster_delta_rule,
    "verl.utils.distributed": _one_backend,
    "verl.utils.model": _attention_without_flash,
    "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer": _copy_out_of_shared_memory,
    "verl.workers.rollout.vllm_rollout.utils": _reload_repacked_weights,
    "vllm.model_executor.models.utils": _name_of_the_mapper,
    "vllm.v1.engine.async_llm": _words_of_the_pause,
    "verl.trainer.ppo.v1.replay_buffer": _poll_often,
}
