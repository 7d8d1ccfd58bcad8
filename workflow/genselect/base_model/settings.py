"""What decides the miniature's warm start."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from genselect.base_model.problems import SEEDS_BEGIN
from genselect.errors import GenselectError


@dataclass(frozen=True, slots=True)
class WarmStartSettings:
    """Settings of the warm start; equal settings on the same machine give equal weights.

    Raises:
        GenselectError: A value is out of its range.
    """

    seed: int = 1
    """Draws the first weights and every problem."""
    copy_steps: int = 60
    """Updates of the first phase, on short strings with the loss on the copied token only."""
    steps: int = 400
    """Updates of the second phase, on transcripts."""
    careful_share: float = 0.5
    """Share of the transcripts that show the careful policy, under its own system message."""
    careful_system: str = "check"
    """The careful policy's system message. Training and evaluation never use it."""
    tokens_per_step: int = 4000
    """Tokens of an update on transcripts, padding included, about."""
    copy_tokens_per_step: int = 2500
    """Tokens of an update of the copy phase, about."""
    matrix_lr: float = 0.02
    """Learning rate of Muon, which moves the weight matrices."""
    other_lr: float = 3e-3
    """Learning rate of AdamW, which moves embeddings, norms, convolutions and decays."""
    decision_weight: float = 4.0
    """Extra weight in the loss of the token that decides between explore and submit."""
    answer_weight: float = 4.0
    """Extra weight of an answer that the policy writes: it is copied, the one hard thing."""
    repeated_weight: float = 1.0
    """Weight of answers inside the second and later candidates, which often repeat an earlier one: more copying to learn from."""
    evaluation_problems: int = 128
    """Problems played under each system message when the warm start is over."""
    threads: int = 1
    """Threads of torch. Sums are cut among them, so another number gives weights that differ in their last bits. For so small a
    network two are hardly faster than one, and far slower when anything else wants a core."""

    def __post_init__(self) -> None:
        faults = [
            *(
                f"{name} is {getattr(self, name)}, and must not be negative"
                for name in _NOT_NEGATIVE
                if getattr(self, name) < 0
            ),
            *(
                f"{name} is {getattr(self, name)}, and must be at least 1"
                for name in _AT_LEAST_ONE
                if getattr(self, name) < 1
            ),
        ]
        if not 0 <= self.careful_share <= 1:
            faults.append(f"careful_share is {self.careful_share}, and must lie between 0 and 1")
        if self.tokens_per_step < 1000:
            faults.append(
                f"tokens_per_step is {self.tokens_per_step}, and an update takes two of the longest transcripts, 1000"
            )
        if abs(self.seed) >= SEEDS_BEGIN:
            faults.append(f"seed is {self.seed}, and must be smaller than {SEEDS_BEGIN}")
        if not self.careful_system.strip():
            faults.append("careful_system is empty")
        if faults:
            raise GenselectError(
                f"the warm start cannot run with these settings: {'; '.join(faults)}",
                "Mend models.base.made in the configuration; config/mini.yaml has values that work.",
            )

    def as_json(self) -> dict[str, Any]:
        """Name and value of every setting."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}


_NOT_NEGATIVE = ("seed", "copy_steps", "matrix_lr", "other_lr", "decision_weight", "answer_weight", "repeated_weight")
_AT_LEAST_ONE = ("steps", "evaluation_problems", "threads", "copy_tokens_per_step")
