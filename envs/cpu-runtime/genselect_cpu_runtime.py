"""Lets a CUDA build of torchvision be imported beside a CPU build of torch. See pyproject.toml for why, and when it can go."""

from __future__ import annotations

import importlib.util
from pathlib import Path

#: The two operators whose fake kernels torchvision registers without asking whether its library was loaded.
SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

# A torch.library.Library takes its definitions away when it is collected.
_kept: list[object] = []


def declare_torchvision_operators() -> None:
    """Declare the operators that torchvision expects, if torch is a CPU build and torchvision's own library does not load."""
    import torch

    if torch.version.cuda is not None or torch.version.hip is not None or _kept:
        return
    spec = importlib.util.find_spec("torchvision")
    if spec is None or not spec.submodule_search_locations:
        return
    extension = Path(spec.submodule_search_locations[0]) / "_C.so"
    try:
        torch.ops.load_library(str(extension))
    except (ImportError, OSError):
        library = torch.library.Library("torchvision", "DEF")
        for schema in SCHEMAS:
            library.define(schema)
        _kept.append(library)
