"""Policies played without a trainer, and the fixed rows that are chosen from how their samples came out."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from genselect.config.base import Section

#: Questions in a part of what is played: a finished part outlives a stop.
PART_QUESTIONS = 16


class Rollout(Section):
    """The untrained policy, played through the rollout engine with no trainer."""

    like: str
    """The run whose episode it plays: prompt, caps, turns, temperature, reward, cards."""
    rows: Literal["train", "val"] = "train"
    """The built rows it plays."""
    first: int | None = Field(None, ge=1)
    """Only so many of them, in the file's order; null for all."""
    samples: int = Field(8, ge=1)
    """Episodes a row."""
    seed: int = 1
    """Seeds sampling."""


class Draws(Section):
    """Whose samples decide: a rollout's, or those of a run's steps."""

    rollout: str | None = None
    """A rollout by name."""
    run: str | None = None
    """Or a run by name, once it is done."""
    steps: list[int] | None = None
    """The run's steps; null for all."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Draws:
        if (self.rollout is None) == (self.run is None):
            raise ValueError("name either a rollout or a run")
        if self.steps is not None and self.run is None:
            raise ValueError("steps belong to a run, and none is named")
        return self


class OverfitSet(Section):
    """Fixed rows for the overfitting control.

    Either rows of all built training rows whose samples split as ``bands`` say (the study's 64); or, with ``of`` and
    ``second_draws``, rows of another set that two draws split (the study's 32).
    """

    draws: Draws
    """The samples that decide."""
    of: str | None = None
    """Another set to choose from; null for all built training rows."""
    second_draws: Draws | None = None
    """With `of`: a second draw, which must split a row too."""
    bands: list[int] = [2, 3, 4, 5]
    """Numbers of correct samples to take rows of."""
    per_band: int = Field(16, ge=1)
    """Rows of each."""
    samples: int = Field(8, ge=2)
    """Samples in a draw."""
    max_length_capped: int = Field(1, ge=0)
    """Length-capped samples that a draw may have."""
    max_mean_tokens: float = Field(12_000.0, gt=0)
    """A row's mean response must be shorter, in tokens."""
    seed: int = 1
    """Draws the rows of a band."""

    @model_validator(mode="after")
    def _the_second_draw_needs_a_set(self) -> OverfitSet:
        if (self.of is None) != (self.second_draws is None):
            raise ValueError("of and second_draws go together: name both, or neither")
        return self
