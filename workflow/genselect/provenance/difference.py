"""What sets one run apart from another: ``extends`` and ``set`` resolved, and the difference of two identities by dotted key.

A comparison of two runs is worth something only when one thing differs. ``expect_difference`` says which keys may; anything
more, or less, is refused.
"""

from __future__ import annotations

import copy
import difflib
import enum
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from genselect.errors import GenselectError

#: Keys of a run that are about its descent. They are not handed on to runs that extend it.
_DESCENT = ("extends", "set", "expect_difference")
#: A table or message shows this much of a value.
_SHOWN = 60


class _Absent(enum.Enum):
    ABSENT = "(absent)"


#: Stands for a key that one of the two sides does not have (null is a value).
ABSENT: Final = _Absent.ABSENT


@dataclass(frozen=True)
class Change:
    """One key that differs."""

    key: str
    """Dotted path, such as ``actor.lr``. Lists are compared, and set, whole."""
    before: Any
    """The base's value, or ``ABSENT``."""
    after: Any
    """The run's value, or ``ABSENT``."""

    def __str__(self) -> str:
        return f"{self.key}: {show(self.before)} -> {show(self.after)}"

    def as_json(self) -> dict[str, Any]:
        """``key``, ``before``, ``after``; a side that does not have the key is left out."""
        sides = {"before": self.before, "after": self.after}
        return {"key": self.key, **{name: value for name, value in sides.items() if value is not ABSENT}}


def resolve_runs(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each run with what it extends filled in: the base's keys, then its own (mappings merge, all else replaces), then ``set``.

    Args:
        runs: By name, as in the configuration. ``extends`` names another run; ``set`` maps dotted keys to values.

    Returns:
        By name, in the same order, without ``extends``, ``set`` and ``expect_difference``. Nothing is shared with ``runs``.

    Raises:
        GenselectError: ``extends`` names no run or goes in a circle; ``set`` goes through something that is not a mapping.
    """
    resolved: dict[str, dict[str, Any]] = {}
    for name in runs:
        for link in reversed(_chain(name, runs)):
            if link not in resolved:
                resolved[link] = _resolve(link, runs[link], resolved)
    return {name: resolved[name] for name in runs}


def difference(base: Mapping[str, Any], run: Mapping[str, Any]) -> list[Change]:
    """What differs between two identities (plain JSON values), by dotted key in key order.

    Values count as equal when they are written alike in JSON, as in fingerprints: 1, 1.0 and true are three values.
    """
    return list(_changes("", dict(base), dict(run)))


def check_expected(run_name: str, changes: Sequence[Change], expected: Sequence[str] | None) -> None:
    """Hold the difference of a run against its ``expect_difference``; None (no such key) accepts any.

    Raises:
        GenselectError: A key differs that is not listed, or a listed key does not differ. Both kinds are named.
    """
    if expected is None:
        return
    changed = {change.key: change for change in changes}
    extra = [change for key, change in changed.items() if key not in expected]
    missing = [key for key in expected if key not in changed]
    if not extra and not missing:
        return
    lines = [f"  - differs and is not expected: {change}" for change in extra]
    lines += [f"  - expected and does not differ: {key}" for key in missing]
    raise GenselectError(
        f"run {run_name}: its difference from what it extends is not the expected one:\n" + "\n".join(lines),
        f"Mend extends: or set: of runs.{run_name}, or write the keys that are meant into its expect_difference: "
        f"[{', '.join(changed)}].",
    )


def format_table(run_name: str, base_name: str, changes: Sequence[Change]) -> str:
    """The difference as a person reads it: a heading and a line a key, in columns."""
    if not changes:
        return f"{run_name} does not differ from {base_name}"
    rows = [("key", base_name, run_name)] + [(c.key, show(c.before), show(c.after)) for c in changes]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([f"{run_name} differs from {base_name} in {len(changes)} key(s):", *lines])


def as_json(run_name: str, base_name: str, changes: Iterable[Change]) -> dict[str, Any]:
    """``run``, ``base`` and the list ``changes`` of ``key``, ``before``, ``after``."""
    return {"run": run_name, "base": base_name, "changes": [change.as_json() for change in changes]}


def from_json(values: Mapping[str, Any]) -> tuple[str, str, list[Change]]:
    """What :func:`as_json` was given."""
    changes = [
        Change(entry["key"], entry.get("before", ABSENT), entry.get("after", ABSENT)) for entry in values["changes"]
    ]
    return values["run"], values["base"], changes


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A hint: the name that was probably meant, or else the names there are."""
    names = list(names)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]}?"
    return f"There are: {', '.join(names)}." if names else "There are none yet."


def show(value: Any) -> str:
    """A value on one line, as JSON, cut when long."""
    if value is ABSENT:
        return str(ABSENT.value)
    text = _canonical(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _chain(name: str, runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """``name``, what it extends, what that extends, and so on."""
    chain = [name]
    while True:
        run = runs[chain[-1]]
        if not isinstance(run, Mapping):
            raise GenselectError(
                f"runs.{chain[-1]}: a run is a mapping of keys, not {type(run).__name__}", "Check its indentation."
            )
        base = run.get("extends")
        if base is None:
            return chain
        if not isinstance(base, str) or base not in runs:
            raise GenselectError(f"runs.{chain[-1]}.extends: there is no run {base}", did_you_mean(str(base), runs))
        if base in chain:
            circle = " -> ".join([*chain[chain.index(base) :], base])
            raise GenselectError(
                f"runs.{chain[-1]}.extends: the runs extend each other in a circle: {circle}",
                "Take extends: out of one of them and write its keys there.",
            )
        chain.append(base)


def _resolve(name: str, run: Mapping[str, Any], resolved: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    own = {key: value for key, value in run.items() if key not in _DESCENT}
    base = resolved[run["extends"]] if run.get("extends") is not None else {}
    values = _merged(base, own)
    changes = run.get("set") or {}
    if not isinstance(changes, Mapping):
        raise GenselectError(
            f"runs.{name}.set: a mapping of dotted keys to values was expected, not {type(changes).__name__}",
            "Write it as set: {actor.lr: 1.0e-5}.",
        )
    for key, value in changes.items():
        _set(values, str(key), copy.deepcopy(value), f"runs.{name}.set")
    return values


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(dict(base))
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = _merged(merged[key], value)
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def _set(values: dict[str, Any], key: str, value: Any, where: str) -> None:
    if not all(key.split(".")):
        raise GenselectError(
            f"{where}: {key!r} is not a dotted key", "Write section.key, with a name on each side of a dot."
        )
    section, done, rest = values, "", key
    # A key may itself hold dots (verl's overrides do): what stands there under the whole rest is what is meant.
    while rest not in section and "." in rest:
        part, _, rest = rest.partition(".")
        done = f"{done}.{part}" if done else part
        section = section.setdefault(part, {})
        if not isinstance(section, dict):
            raise GenselectError(
                f"{where}: {key} goes through {done}, which is {show(section)} and has no keys",
                f"Set {done} itself, or check the path.",
            )
    section[rest] = value


def _changes(key: str, before: Any, after: Any) -> Iterator[Change]:
    sides = [side for side in (before, after) if side is not ABSENT]
    # An empty mapping beside nothing has no key below it to report, so it is reported itself.
    if all(isinstance(side, Mapping) for side in sides) and (len(sides) == 2 or sides[0]):
        for name in sorted({str(name) for side in sides for name in side}):
            inner = [side.get(name, ABSENT) if side is not ABSENT else ABSENT for side in (before, after)]
            yield from _changes(f"{key}.{name}" if key else name, *inner)
    elif len(sides) == 1 or _canonical(before) != _canonical(after):
        yield Change(key, before, after)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
