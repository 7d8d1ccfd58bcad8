"""What is compared at the end, with what, and which rise would matter."""

from __future__ import annotations

import string
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from genselect.config.base import Section

_SYSTEM = (
    "You are given a mathematics problem and several candidate solutions to it, of which some may be wrong. "
    "Decide on the answer and call submit once with it."
)


class Anchor(Section):
    """A save of a run."""

    run: str
    """A run by name."""
    step: int = Field(ge=1)
    """A step whose save is kept."""


class Selector(Section):
    """The untrained policy as a selector that reads all candidates at once (arm `untrained_selector`)."""

    enabled: bool = True
    """Evaluate it."""
    system: str = _SYSTEM
    """System message."""
    user: str = "{problem}\n\n{candidates}"
    """User message; `{problem}` and `{candidates}` are filled in."""
    candidate: str = "Candidate {number}:\n{text}\n\n"
    """One candidate in it; `{number}` counts from 1, `{text}` is its text. They follow each other as they are."""
    prompt_tokens: int = Field(73728, ge=1)
    """Longest prompt. A question whose prompt is longer is not asked and counts as unanswered (`end` is `length`)."""
    answer_tokens: int = Field(8192, ge=1)
    """Longest answer."""

    @field_validator("user", "candidate")
    @classmethod
    def _the_fields_are_in_it(cls, value: str, info: object) -> str:
        wanted = {"user": ["candidates", "problem"], "candidate": ["number", "text"]}[getattr(info, "field_name")]  # noqa: B009
        found = sorted(name for _, name, _, _ in string.Formatter().parse(value) if name is not None)
        if found != wanted:
            listed = " and ".join(f"{{{name}}}" for name in wanted)
            raise ValueError(f"it must hold {listed}, each once, and no other field (double a brace to write one)")
        return value


class Evaluation(Section):
    """The final word: arms on the whole held-out population, hypotheses, and what is fixed before the formal run."""

    like: str | None = None
    """The run whose episode all model arms play (caps, turns, temperature); null is the first formal run."""
    anchors: list[Anchor] = []
    """Trained policies to evaluate; empty for the last step of each formal run."""
    replicates: dict[str, list[str]] = {}
    """Runs that differ in nothing but their seed, by a name: their anchors of one step make one arm."""
    against: list[str] = ["untrained", "majority_8"]
    """What each trained policy is compared with: the primary hypotheses."""
    exploratory: list[str] = []
    """Arms that were added after the preregistration. They are labelled so, and decide nothing."""
    samples: int = Field(4, ge=1)
    """Episodes a question of each model arm. With one, the untrained policy's own spread can only be bounded."""
    seed: int = 1
    """Seeds sampling, ties, draws and the bootstrap."""
    alpha: float = Field(0.05, gt=0, lt=1)
    """Of the primary family, two-sided."""
    power: float = Field(0.8, gt=0, lt=1)
    """Chance with which the minimum detectable effect would be found."""
    smallest_effect: float = Field(0.02, gt=0, lt=1)
    """The smallest rise that matters, as a share."""
    thresholds: list[Annotated[float, Field(gt=0.5, lt=1)]] = [0.8, 0.9, 0.95]
    """Confidences at which adaptive consistency stops."""
    selector: Selector = Selector()
    """The untrained policy that sees all candidates at once."""

    @model_validator(mode="after")
    def _power_is_more_than_chance(self) -> Evaluation:
        if self.power <= self.alpha:
            raise ValueError("power must be larger than alpha")
        return self
