"""Metric assertions: one-line expressions over a step's metrics, such as ``abs(actor/ppo_kl) < 0.1``.

What may stand in one: metric names, numbers, ``+ - * /``, comparisons (chained ones too), ``and or not``, parentheses, and the
functions ``abs min max isfinite``. A slash inside a name belongs to the name; a division has spaces around its slash. A metric
that is a list (one number a mini-batch) goes through ``max(...)`` or ``min(...)``; ``abs`` takes it entry by entry.

Nothing is ever handed to ``eval``: the expression is parsed and its tree walked, and any other construct is refused.
"""

from __future__ import annotations

import ast
import difflib
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from genselect.errors import GenselectError

_WORDS = {"and", "or", "not"}
_FUNCTIONS = ("abs", "min", "max", "isfinite")
_MAX_LENGTH = 500

# Numbers are matched first, so that the e of 1e-3 begins no name.
_TOKEN = re.compile(
    r"(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[^\W\d][\w.@]*(?:/[\w.@]+)*)|(?P<other>.)", re.S
)
_NAME_GOES_ON = re.compile(r"[\w.@/]")

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


@dataclass(frozen=True, slots=True)
class AssertionResult:
    """What came of one assertion."""

    expression: str
    passed: bool
    values: dict[str, Any]
    """The metrics it names, with their values."""
    message: str
    """``holds``, or why not, with the values."""


class _Failed(Exception):
    """The metrics do not allow a yes; not a fault of the expression."""


def check_syntax(expression: str) -> None:
    """Check an assertion before there are metrics, as the configuration is read.

    Raises:
        GenselectError: It is not such an expression.
    """
    tree, _ = _parse(expression, ())
    _check_tree(tree, expression)


def evaluate_assertion(expression: str, metrics: Mapping[str, Any]) -> AssertionResult:
    """Evaluate one assertion.

    An assertion over a metric that is null, nan or infinite fails, whatever it says; so does a division by zero. The exception
    is one that asks ``isfinite``, which then answers.

    Args:
        expression: The assertion.
        metrics: Numbers, or lists of numbers, by name.

    Raises:
        GenselectError: It is not such an expression, does not answer yes or no, or names a metric that is not there.
    """
    tree, names = _parse(expression, metrics)
    _check_tree(tree, expression)
    for name in names.values():
        if name not in metrics:
            raise _unknown(name, expression, metrics)
    values = {name: _plain(metrics[name]) for name in names.values()}
    asks = any(isinstance(node, ast.Name) and node.id == "isfinite" for node in ast.walk(tree))
    broken = [name for name, value in values.items() if not _all_finite(value)]
    if broken and not asks:
        return AssertionResult(expression, False, values, f"fails: {broken[0]} is {_shown(values[broken[0]])}")
    try:
        passed = _value(tree.body, {key: values[name] for key, name in names.items()}, expression)
    except (_Failed, OverflowError) as failure:
        return AssertionResult(expression, False, values, f"fails: {failure}")
    shown = ", ".join(f"{name} = {_shown(value)}" for name, value in values.items())
    return AssertionResult(expression, bool(passed), values, "holds" if passed else f"fails with {shown}")


def evaluate_assertions(expressions: Iterable[str], metrics: Mapping[str, Any]) -> list[AssertionResult]:
    """Evaluate assertions in their order; see :func:`evaluate_assertion`."""
    return [evaluate_assertion(expression, metrics) for expression in expressions]


def _parse(expression: str, known: Iterable[str]) -> tuple[ast.Expression, dict[str, str]]:
    """The tree, with metrics as ``metric_<n>``, and the metric that each of those stands for."""
    if len(expression) > _MAX_LENGTH:
        raise _refused(expression, f"it has {len(expression)} characters, and {_MAX_LENGTH} are allowed")
    if "#" in expression:
        raise _refused(expression, "what follows a # would be ignored")
    source, names = _name_metrics(expression, sorted(known, key=len, reverse=True))
    try:
        return ast.parse(source.strip(), mode="eval"), names
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise _refused(expression, "it cannot be read as an expression") from None


def _name_metrics(expression: str, known: list[str]) -> tuple[str, dict[str, str]]:
    source, names, at = "", dict[str, str](), 0
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        assert match is not None  # the last alternative matches any character
        text = match[0]
        if match["name"]:
            text = _longest_known(expression, at, known) or text
        if match["name"] and text not in _WORDS and text not in _FUNCTIONS:
            key = next((key for key, name in names.items() if name == text), f"metric_{len(names)}")
            names[key] = text
            source += key
        else:
            source += text
        at += len(text)
    return source, names


def _longest_known(expression: str, at: int, known: list[str]) -> str | None:
    """The longest metric that stands at ``at`` whole: only so can a name hold a hyphen, as verl's ``val-core/...`` do."""
    for name in known:
        end = at + len(name)
        if expression.startswith(name, at) and not _NAME_GOES_ON.match(expression, end):
            return name
    return None


def _check_tree(tree: ast.Expression, expression: str) -> None:
    if not _answers(tree.body):
        raise _refused(expression, "it does not answer yes or no; compare with something")
    for node in ast.walk(tree):
        allowed: bool | tuple[type, ...]
        if isinstance(node, ast.Constant):
            allowed = type(node.value) in (int, float)
        elif isinstance(node, ast.Call):
            allowed = (
                isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords and bool(node.args)
            )
            allowed = allowed and (len(node.args) == 1 or ast.unparse(node.func) in ("min", "max"))
        elif isinstance(node, ast.BinOp):
            allowed = type(node.op) in _ARITHMETIC
        elif isinstance(node, ast.Compare):
            allowed = all(type(comparison) in _COMPARISONS for comparison in node.ops)
        elif isinstance(node, ast.UnaryOp):
            allowed = isinstance(node.op, ast.Not | ast.USub | ast.UAdd)
        else:
            structure = (ast.Expression, ast.BoolOp, ast.Name, ast.expr_context, ast.operator, ast.unaryop)
            allowed = isinstance(node, (*structure, ast.boolop, ast.cmpop))
        if not allowed:
            shown = ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__
            raise _refused(expression, f"{re.sub(r'metric_[0-9]+', '…', shown)!r} may not stand in it")


def _answers(node: ast.expr) -> bool:
    if isinstance(node, ast.BoolOp):
        return all(map(_answers, node.values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _answers(node.operand)
    is_finite = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isfinite"
    return isinstance(node, ast.Compare) or is_finite


def _value(node: ast.expr, values: Mapping[str, Any], expression: str) -> Any:
    def inner(child: ast.expr) -> Any:
        return _value(child, values, expression)

    def number(child: ast.expr) -> Any:
        found = inner(child)
        if isinstance(found, list):
            raise _refused(expression, "a metric in it is a list of numbers; take its max(...) or min(...)")
        if found is None:
            raise _Failed("a metric is null")
        return found

    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            if node.id not in values:
                raise _refused(expression, f"{node.id} is a function and needs an argument")
            return values[node.id]
        case ast.BoolOp(op=ast.And()):
            return all(inner(child) for child in node.values)
        case ast.BoolOp():
            return any(inner(child) for child in node.values)
        case ast.UnaryOp(op=ast.Not()):
            return not inner(node.operand)
        case ast.UnaryOp(op=ast.USub()):
            return -number(node.operand)
        case ast.UnaryOp():
            return number(node.operand)
        case ast.BinOp():
            left, right = number(node.left), number(node.right)
            if isinstance(node.op, ast.Div) and right == 0:
                raise _Failed("division by zero")
            return _ARITHMETIC[type(node.op)](left, right)
        case ast.Compare():
            sides = [number(side) for side in (node.left, *node.comparators)]
            pairs = zip(node.ops, sides, sides[1:], strict=False)
            return all(_COMPARISONS[type(op)](left, right) for op, left, right in pairs)
        case ast.Call(func=ast.Name(id=name)):
            return _call(name, [inner(argument) for argument in node.args], expression)
    raise AssertionError(f"{type(node).__name__} passed the check of the tree")


def _call(name: str, arguments: list[Any], expression: str) -> Any:
    first = arguments[0]
    if name == "isfinite":
        return _all_finite(first)
    if any(argument is None for argument in arguments):
        raise _Failed("a metric is null")
    if name == "abs":
        return [abs(entry) for entry in first] if isinstance(first, list) else abs(first)
    numbers = [entry for argument in arguments for entry in (argument if isinstance(argument, list) else [argument])]
    if not numbers:
        raise _Failed(f"{name} of an empty list")
    if any(entry is None for entry in numbers):
        raise _Failed("a metric holds null")
    return min(numbers) if name == "min" else max(numbers)


def _plain(value: Any) -> Any:
    """A metric as float, list of floats or None."""
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(entry) for entry in value]
    if isinstance(value, bool | int | float | np.number | np.bool_):
        return float(value)
    return None


def _all_finite(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_all_finite, value))
    return value is not None and math.isfinite(value)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return "null" if value is None else f"{value:.6g}"


def _refused(expression: str, why: str) -> GenselectError:
    return GenselectError(
        f"assertion {expression[:80]!r}: {why}",
        "Write a comparison of metrics and numbers, such as abs(actor/ppo_kl) < 0.1; abs, min, max, isfinite, and, or, not and "
        "+ - * / are known. A division has spaces around its slash.",
    )


def _unknown(name: str, expression: str, metrics: Mapping[str, Any]) -> GenselectError:
    close = difflib.get_close_matches(name, metrics, n=3, cutoff=0.6)
    tail = [metric for metric in metrics if metric.rsplit("/", 1)[-1] == name.rsplit("/", 1)[-1]]
    found = list(dict.fromkeys([*tail[:1], *close]))[:3]
    hint = f"Did you mean {' or '.join(found)}?" if found else "metrics.jsonl of a run shows every name."
    return GenselectError(f"assertion {expression[:80]!r}: there is no metric {name}", hint)
