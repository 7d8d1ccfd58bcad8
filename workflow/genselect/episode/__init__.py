"""The explore / submit episode: state machine, tools, rendering and scoring. Pure Python, no model."""

from genselect.episode.play import Generated, Limits, Played, play
from genselect.episode.rendering import Renderer
from genselect.episode.scoring import Score, score
from genselect.episode.state import NONE_LEFT, CachedCandidate, Call, EndReason, Episode
from genselect.episode.tools import SUBMIT_ONLY, TOOLS

__all__ = [
    "NONE_LEFT",
    "SUBMIT_ONLY",
    "TOOLS",
    "CachedCandidate",
    "Call",
    "EndReason",
    "Episode",
    "Generated",
    "Limits",
    "Played",
    "Renderer",
    "Score",
    "play",
    "score",
]
