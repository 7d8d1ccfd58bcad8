"""What a run will need of each card, before there is a card: weights, gradients, optimiser, activations, engine, stage by stage.

Counting weights (:mod:`.architecture`, :mod:`.weights`, :mod:`.engine`) imports no torch. Activations (:mod:`.activations`) are read off
torch's own memory tracker, which runs transformers' Qwen3.5 layers on meta tensors: shapes without values.
"""

from genselect.memory.architecture import Architecture, architecture_from, model_architecture, read_architecture
from genselect.memory.weights import adapter_weights, all_weights, save_bytes

__all__ = [
    "Architecture",
    "adapter_weights",
    "all_weights",
    "architecture_from",
    "model_architecture",
    "read_architecture",
    "save_bytes",
]
