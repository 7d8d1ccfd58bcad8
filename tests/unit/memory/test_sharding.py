"""What FSDP2 leaves on a card, by torch's own tracker over eight cards that are not there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from small_model import trained
from torch import distributed
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from genselect.memory import Architecture, all_weights
from genselect.memory.activations import Shape, build_stack
from genselect.memory.predict import model_memory

CARDS = 8


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    distributed.init_process_group("fake", rank=0, world_size=CARDS, store=FakeStore())
    yield init_device_mesh("cpu", (CARDS,))
    distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
def test_a_card_holds_the_cut_weights_gradients_and_moments_that_were_foreseen(
    mesh: DeviceMesh, small: Architecture
) -> None:
    shape = Shape(small, "value", 8, (64,), checkpointing=False, number_bytes=4)
    stack = build_stack(shape, torch.device("cpu"))
    options = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    for layer in stack.layers:
        fully_shard(layer, **options)
    fully_shard(stack, **options)
    optimiser = torch.optim.AdamW([weight for weight in stack.parameters() if weight.requires_grad])
    tracker = FSDPMemTracker(stack, optimiser)
    hidden = torch.zeros(1, 64, small.hidden_size)
    tracker.track_inputs((hidden,))
    gathered: list[int] = []
    with tracker:
        values = stack(hidden)
        gathered.append(_gathered(tracker, "peak"))
        values.float().sum().backward()
        gathered.append(_gathered(tracker, "peak"))
        optimiser.step()
    found = _sizes(tracker, "current")
    foreseen = model_memory(small, trained("critic"), CARDS)
    # The stack has no embedding, and Adam counts its steps in a number a tensor.
    embedding = next(w for w in all_weights(small, "value", 8) if w.name == "embed_tokens.weight")
    assert found["Sharded Param"] == pytest.approx(foreseen.weights - 4 * embedding.shard(CARDS), rel=0.001)
    assert found["Sharded Grad"] == foreseen.gradients
    tensors = sum(w.trained for w in all_weights(small, "value", 8))
    assert found["OptState"] == foreseen.moments + 4 * tensors
    # At most: between one layer and the three that are allowed for.
    assert foreseen.gathered / 4 < max(gathered) <= foreseen.gathered


def _sizes(tracker: FSDPMemTracker, when: str) -> dict[str, int]:
    snapshot = tracker.get_tracker_snapshot(when)[torch.device("cpu")]
    return {str(getattr(kind, "value", kind)): size for kind, size in snapshot.items()}


def _gathered(tracker: FSDPMemTracker, when: str) -> int:
    sizes = _sizes(tracker, when)
    return sum(sizes[kind] for kind in ("Unsharded Param", "All Gather", "Unsharded Grad", "Reduce Scatter"))
