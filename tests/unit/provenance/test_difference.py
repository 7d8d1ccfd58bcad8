"""Runs that extend runs, and a difference that is exactly what was announced."""

from __future__ import annotations

import json
from typing import Any

import pytest

from genselect.errors import GenselectError
from genselect.provenance.difference import (
    ABSENT,
    Change,
    as_json,
    check_expected,
    difference,
    format_table,
    from_json,
    resolve_runs,
)

BASE: dict[str, Any] = {
    "kind": "formal",
    "actor": {"lr": 5e-5, "epochs": 2},
    "verl": {"actor.fused.backend": "triton"},
    "potential": [{"name": "submit_probability", "weight": 1.0}],
}


def test_a_chain_of_runs_is_filled_in_from_its_root() -> None:
    runs = {
        "slow": {"extends": "cheap", "set": {"actor.lr": 1e-5, "critic.lr": 1e-5}, "expect_difference": ["actor.lr"]},
        "cheap": {"extends": "base", "actor": {"epochs": 1}, "set": {"verl.actor.fused.backend": "torch"}},
        "base": BASE,
    }
    resolved = resolve_runs(runs)
    assert list(resolved) == ["slow", "cheap", "base"]
    assert resolved["base"] == BASE
    assert resolved["cheap"] == {
        **BASE,
        "actor": {"lr": 5e-5, "epochs": 1},
        "verl": {"actor.fused.backend": "torch"},
    }
    assert resolved["slow"] == {**resolved["cheap"], "actor": {"lr": 1e-5, "epochs": 1}, "critic": {"lr": 1e-5}}


def test_resolved_runs_share_nothing_with_each_other() -> None:
    resolved = resolve_runs({"base": BASE, "copy": {"extends": "base"}})
    resolved["copy"]["actor"]["lr"] = 1.0
    resolved["copy"]["potential"][0]["weight"] = 2.0
    assert resolved["base"] == BASE
    assert BASE["potential"][0]["weight"] == 1.0


@pytest.mark.parametrize(
    ("runs", "says"),
    [
        (
            {"control": {}, "a": {"extends": "contrl"}},
            r"runs\.a\.extends: there is no run contrl\n.*Did you mean control",
        ),
        ({"a": {"extends": "zzz"}, "b": {}}, r"there is no run zzz\nHint: There are: a, b\."),
        (
            {"a": {"extends": "b"}, "b": {"extends": "c"}, "c": {"extends": "b"}},
            r"runs\.c\.extends: .*in a circle: b -> c -> b",
        ),
        ({"a": {"extends": "a"}}, r"in a circle: a -> a"),
        ({"a": {"actor": 3, "set": {"actor.lr": 1}}}, r"runs\.a\.set: actor\.lr goes through actor, which is 3"),
        ({"a": {"set": {"actor.": 1}}}, r"'actor\.' is not a dotted key"),
        ({"a": {"set": ["actor.lr"]}}, r"runs\.a\.set: a mapping of dotted keys"),
        ({"a": None}, r"runs\.a: a run is a mapping"),
    ],
)
def test_runs_that_cannot_be_resolved_say_why(runs: dict[str, Any], says: str) -> None:
    with pytest.raises(GenselectError, match=says):
        resolve_runs(runs)


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, [Change("a.c", 2, 3)]),
        ({"a": 1}, {"b": 1}, [Change("a", 1, ABSENT), Change("b", ABSENT, 1)]),
        ({"a": {"b": {"c": 1, "d": 2}}}, {}, [Change("a.b.c", 1, ABSENT), Change("a.b.d", 2, ABSENT)]),
        ({}, {"a": {}}, [Change("a", ABSENT, {})]),
        ({"a": {}}, {"a": {"b": 1}}, [Change("a.b", ABSENT, 1)]),
        ({"a": None}, {}, [Change("a", None, ABSENT)]),
        ({"a": {"b": 1}}, {"a": 1}, [Change("a", {"b": 1}, 1)]),
        ({"a": 1}, {"a": True}, [Change("a", 1, True)]),
        ({"a": [1, 2]}, {"a": [2, 1]}, [Change("a", [1, 2], [2, 1])]),
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}}, []),
    ],
)
def test_difference_lists_each_key_once(before: dict[str, Any], after: dict[str, Any], changes: list[Change]) -> None:
    found = difference(before, after)
    assert [change.as_json() for change in found] == [change.as_json() for change in changes]


@pytest.mark.parametrize(
    ("expected", "says"),
    [
        (None, None),
        (["actor.lr", "critic.lr"], None),
        (["actor.lr"], r"differs and is not expected: critic\.lr: 0\.0002 -> 1e-05"),
        (["actor.lr", "critic.lr", "seed"], r"expected and does not differ: seed"),
        ([], r"not expected: actor\.lr.*\n.*not expected: critic\.lr"),
        (["actor"], r"not expected: actor\.lr[\s\S]*does not differ: actor\n"),
    ],
)
def test_expect_difference_refuses_more_and_less(expected: list[str] | None, says: str | None) -> None:
    changes = [Change("actor.lr", 5e-5, 1e-5), Change("critic.lr", 2e-4, 1e-5)]
    if says is None:
        check_expected("slow", changes, expected)
        return
    with pytest.raises(GenselectError, match=says) as caught:
        check_expected("slow", changes, expected)
    assert "run slow" in caught.value.message
    assert "expect_difference: [actor.lr, critic.lr]" in caught.value.hint


def test_the_table_and_the_file_say_the_same() -> None:
    changes = [Change("actor.lr", 5e-5, 1e-5), Change("note", ABSENT, "x" * 100)]
    lines = format_table("slow", "base", changes).splitlines()
    assert lines[0] == "slow differs from base in 2 key(s):"
    assert lines[1].split() == ["key", "base", "slow"]
    assert lines[2].split() == ["actor.lr", "5e-05", "1e-05"]
    assert lines[3].split()[:2] == ["note", "(absent)"]
    assert len(lines[3]) < 90
    written = json.loads(json.dumps(as_json("slow", "base", changes)))
    assert written == {
        "run": "slow",
        "base": "base",
        "changes": [{"key": "actor.lr", "before": 5e-5, "after": 1e-5}, {"key": "note", "after": "x" * 100}],
    }
    assert from_json(written) == ("slow", "base", changes)
    assert format_table("slow", "base", []) == "slow does not differ from base"
