"""The word: yes, no, or cannot tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Word = Literal["yes", "no", "cannot tell"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to "did it rise above?"."""

    word: Word
    why: Literal["rose", "fell", "too small to matter", "too little data"]
    sentence: str
    """For a person who reads nothing else."""


def verdict(
    difference: float,
    interval: tuple[float, float],
    *,
    p_adjusted: float,
    alpha: float,
    smallest_effect: float,
    detectable: float,
    power: float = 0.8,
    level: float = 0.95,
) -> Verdict:
    """Decide.

    - ``yes``: p adjusted < alpha and the difference is above 0;
    - ``no``: p adjusted < alpha and it is below 0 (it fell); or the interval ends below the smallest effect of interest;
    - ``cannot tell``: anything else. The sentence names the effect that the data could have shown.

    Args:
        difference: Arm minus reference, in [-1, 1].
        interval: Of the difference, two-sided.
        p_adjusted: Two-sided, adjusted over the family.
        alpha: Of the family.
        smallest_effect: The smallest rise that would matter, fixed before the data, above 0.
        detectable: The minimum detectable effect at this size.
        power: That ``detectable`` is for.
        level: Of the interval.
    """
    low, high = interval
    numbers = (
        f"{points(difference)} points ({level:.0%} interval {points(low)} to {points(high)}, {p_text(p_adjusted)})"
    )
    if p_adjusted < alpha and difference > 0:
        small = difference < smallest_effect
        more = f" That is less than the {size(smallest_effect)} points that were named as mattering." if small else ""
        return Verdict("yes", "rose", f"Yes, it rose above: {numbers}.{more}")
    if p_adjusted < alpha and difference < 0:
        return Verdict("no", "fell", f"No, it fell below: {numbers}.")
    if high < smallest_effect:
        return Verdict(
            "no",
            "too small to matter",
            f"No: {numbers}; a rise of {size(smallest_effect)} points, the smallest named as mattering, lies outside the interval.",
        )
    return Verdict(
        "cannot tell",
        "too little data",
        f"Cannot tell: {numbers}. A true rise of {size(detectable)} points would have been found with chance {power:.0%}; a "
        f"smaller one may be there and not show, and {size(smallest_effect)} points, the smallest named as mattering, are not ruled out.",
    )


def points(share: float) -> str:
    """A difference in percentage points, with its sign."""
    return f"{100 * share:+.1f}".replace("-0.0", "+0.0")


def size(share: float) -> str:
    """A size in percentage points, without a sign."""
    return f"{100 * share:.1f}"


def p_text(p_value: float) -> str:
    """A p value as read."""
    return "adjusted p < 0.0001" if p_value < 1e-4 else f"adjusted p = {p_value:.2g}"
