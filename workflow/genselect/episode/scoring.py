"""What an episode is worth, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass

from genselect.episode.state import Episode


@dataclass(frozen=True, slots=True)
class Score:
    """The pieces of a trajectory's score; they add up to it."""

    verdict: float
    """1 when the submitted answer is correct, else 0."""
    format: float
    """The format score when an answer was submitted and is not correct, else 0."""
    cost: float
    """Minus the cost of the explores that revealed a candidate."""

    @property
    def total(self) -> float:
        """The score."""
        return self.verdict + self.format + self.cost


def score(episode: Episode, *, verdict: bool, format_score: float, cost_per_explore: float) -> Score:
    """``(1 if verdict else format_score if well-formed else 0) - cost_per_explore * explores``.

    Args:
        episode: A finished episode.
        verdict: The submitted answer equals the expected one. Ignored for an episode without a submission, whose verdict is 0.
        format_score: Worth of a submission that is wrong.
        cost_per_explore: Price of revealing a candidate.
    """
    correct = verdict and episode.well_formed
    return Score(
        verdict=1.0 if correct else 0.0,
        format=format_score if episode.well_formed and not correct else 0.0,
        cost=-cost_per_explore * episode.charged_explores if episode.charged_explores else 0.0,
    )
