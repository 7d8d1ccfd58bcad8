r"""Units, count nouns and number words that may follow a number."""

from __future__ import annotations

from fractions import Fraction

__all__ = ["NUMBER_WORDS", "SCALE_WORDS", "canonical_unit", "conversion", "is_unit_word", "number_from_words"]

_TABLE: dict[str, tuple[str, str, Fraction]] = {}


def _add(dimension: str, factor: str, *names: str) -> None:
    for name in names:
        _TABLE[name] = (names[0], dimension, Fraction(factor))


_add("length", "1/1000", "mm", "millimeter", "millimeters", "millimetre", "millimetres")
_add("length", "1/100", "cm", "centimeter", "centimeters", "centimetre", "centimetres")
_add("length", "1", "m", "meter", "meters", "metre", "metres")
_add("length", "1000", "km", "kilometer", "kilometers", "kilometre", "kilometres")
_add("length", "254/10000", "inch", "inches", "in")
_add("length", "3048/10000", "ft", "foot", "feet")
_add("length", "9144/10000", "yd", "yard", "yards")
_add("length", "1609344/1000", "mile", "miles", "mi")
_add("mass", "1/1000", "mg", "milligram", "milligrams")
_add("mass", "1", "g", "gram", "grams")
_add("mass", "1000", "kg", "kilogram", "kilograms")
_add("mass", "45359237/100000", "lb", "lbs", "pound", "pounds")
_add("mass", "45359237/1600000", "oz", "ounce", "ounces")
_add("time", "1/1000", "ms", "millisecond", "milliseconds")
_add("time", "1", "s", "sec", "second", "seconds")
_add("time", "60", "min", "minute", "minutes", "mins")
_add("time", "3600", "h", "hr", "hour", "hours", "hrs")
_add("time", "86400", "day", "days")
_add("time", "604800", "week", "weeks")
_add("months", "1", "month", "months")
_add("months", "12", "year", "years", "yr", "yrs")
_add("volume", "1/1000", "ml", "mL", "milliliter", "milliliters", "millilitre", "millilitres")
_add("volume", "1", "L", "liter", "liters", "litre", "litres", "l")
_add("dollars", "1", "dollars", "dollar", "usd", "USD", "$")
_add("dollars", "1/100", "cents", "cent", "¢")
_add("euros", "1", "euros", "euro", "eur", "€")
_add("british pounds", "1", "£", "gbp")
_add("angle", "1", "°", "degree", "degrees", "deg")
_add("percent", "1", "%", "percent", "percents")
_add("radian", "1", "radians", "radian", "rad")
for _name in "N J W V A K Pa Hz mol newton joule watt volt ampere kelvin pascal hertz mph rpm kwh".split():
    _add(_name, "1", _name, _name + "s")
_COUNT_NOUNS = frozenset(
    "units unit people person students student ways way apples oranges items item children boys girls men women coins coin "
    "balls cards marbles books pages points point votes tickets cookies dogs cats cars houses rooms workers games words letters "
    "digits numbers solutions solution values triangles squares sides edges vertices faces cubes elements pairs-of-shoes "
    "eggs trees flowers bottles boxes bags pieces slices questions problems members sheep fish dollars-each steps moves "
    "u sq arrangements combinations permutations outcomes subsets paths routes functions sequences".split()
)  # fmt: skip
# Plural-looking words that change the number they follow.
_NOT_NOUNS = frozenset(
    "halves thirds fourths quarters fifths sixths sevenths eighths ninths tenths hundredths thousandths millionths dozens dozen "
    "pairs hundreds thousands millions billions trillions tens scores times plus minus less radians modulus mods sets is was has "
    "others this thus as us ones twos others'".split()
)  # fmt: skip

SCALE_WORDS = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12,
    "hundreds": 0, "thousands": 0, "millions": 0, "billions": 0, "trillions": 0,
}  # fmt: skip
_UNITS_AND_TEENS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
NUMBER_WORDS = {word: n for n, word in enumerate(_UNITS_AND_TEENS)} | {w: 10 * (n + 2) for n, w in enumerate(_TENS)}


def is_unit_word(word: str, *, in_text: bool) -> bool:
    """Whether ``word`` may stand as a unit after a number; single letters only inside a text command."""
    if len(word) == 1 and word.isalpha():
        return in_text and word in _TABLE
    lowered = word.lower()
    if word in _TABLE or lowered in _TABLE or lowered in _COUNT_NOUNS:
        return True
    return lowered.isalpha() and len(word) >= 5 and lowered.endswith("s") and lowered not in _NOT_NOUNS


def canonical_unit(words: list[str]) -> str:
    """The words of a unit in one spelling: 'square meters', 'm ^2' -> 'm^2'; 'miles per hour' -> 'mile/h'."""
    out = ""
    power = ""
    for word in words:
        lowered = word.lower()
        if lowered in {"square", "squared", "sq", "cubic", "cubed"}:
            mark = "^2" if lowered.startswith("sq") else "^3"
            if lowered in {"squared", "cubed"}:
                out += mark
            else:
                power = mark
        elif lowered in {"per", "/", "an", "a", "each"}:
            out += "/" if not out.endswith("/") else ""
        elif word.startswith("^"):
            out += word
        else:
            known = _TABLE.get(word) or _TABLE.get(lowered)
            out += ("" if not out or out.endswith("/") else " ") + (known[0] if known else lowered) + power
            power = ""
    return out.replace("mile/h", "mph")


def conversion(gold_unit: str, pred_unit: str) -> Fraction | None:
    """Factor that turns a value in ``pred_unit`` into ``gold_unit``; None when they are not commensurable.

    Raises:
        KeyError: One of them is no unit of the table, so nothing is known.
    """
    gold_base, _, gold_power = gold_unit.partition("^")
    pred_base, _, pred_power = pred_unit.partition("^")
    _, gold_dimension, gold_factor = _TABLE[gold_base]
    _, pred_dimension, pred_factor = _TABLE[pred_base]
    if gold_dimension != pred_dimension or gold_power != pred_power:
        return None
    return (pred_factor / gold_factor) ** int(gold_power or 1)


def number_from_words(words: list[str]) -> int | None:
    """Value of an English number in words ("three hundred and five", "forty-two"), or None."""
    total, current, seen = 0, 0, False
    for word in (part for item in words for part in item.lower().split("-")):
        if word in NUMBER_WORDS:
            value = NUMBER_WORDS[word]
            if seen and current % (100 if value >= 20 or 10 <= value < 20 else 10):
                return None  # "two three" is no number
            current += value
            seen = True
        elif word == "hundred" and seen and 0 < current < 100:
            current *= 100
        elif SCALE_WORDS.get(word, 0) >= 1000 and seen and current:
            total, current = total + current * SCALE_WORDS[word], 0
        elif word != "and" or not seen:
            return None
    return total + current if seen else None
