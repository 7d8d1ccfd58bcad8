"""What the pictures of a comparison have in common: what sort of arm an arm is, and its mark."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from genselect.report.style import BLUE, GREY, VERMILION

Group = Literal["trained", "untrained", "candidates"]

#: Colour and marker of each group, in the order in which they are listed.
MARKS: dict[Group, dict[str, Any]] = {
    "trained": {"color": BLUE, "marker": "o"},
    "untrained": {"color": VERMILION, "marker": "s"},
    "candidates": {"color": GREY, "marker": "D"},
}

#: What each group is called.
GROUPS: dict[Group, str] = {
    "trained": "trained policy",
    "untrained": "untrained policy",
    "candidates": "candidates alone",
}


def group_of(arm: Mapping[str, Any]) -> Group:
    """Of an entry of ``arms``. Trained policies are ``<run>@<step>``, so a run may be called ``untrained`` too."""
    if arm.get("kind") == "baseline":
        return "candidates"
    return "untrained" if arm["name"].startswith("untrained") and "@" not in arm["name"] else "trained"


def number(value: object) -> float | None:
    """``value`` if it is a number that can be drawn, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
