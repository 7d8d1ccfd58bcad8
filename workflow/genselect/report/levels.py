"""What run pictures are read against: accuracies of other arms, and which level each guard has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from genselect.training.guards import NON_FINITE, settings_from

#: Arms of a comparison that are drawn as lines, with the words on them.
_ARMS = {"majority_8": "majority of 8", "untrained": "untrained"}


def held_out_levels(comparison: Mapping[str, Any]) -> dict[str, float]:
    """Accuracies on the held-out questions to draw beside a run's own curve, by the words to write on them."""
    accuracies = {arm["name"]: float(arm["accuracy"]) for arm in comparison["arms"]}
    return {f"{words}, held out": accuracies[name] for name, words in _ARMS.items() if name in accuracies}


def guard_levels(overrides: Mapping[str, Mapping[str, Any] | None]) -> dict[str, str]:
    """The level of each guard by name, with a run's own changes (``runs.<name>.guards``)."""
    settings = settings_from(overrides)
    return {**{rule.name: rule.level.value for rule in settings.rules}, NON_FINITE: settings.non_finite.value}


def kl_limit(overrides: Mapping[str, Mapping[str, Any] | None]) -> float | None:
    """The limit of the guard ``kl``, in nats a token; None where the run leaves it out."""
    return next((rule.limit for rule in settings_from(overrides).rules if rule.name == "kl"), None)
