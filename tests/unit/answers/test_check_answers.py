"""The program that measures the cascade: counts, last line, boxes, and words for bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "workflow" / "scripts" / "check_answers.py"
SHARED = Path(__file__).parents[4] / "shared" / "data" / "answer_cases.jsonl"


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def test_counts_by_stage_and_the_last_line(tmp_path):
    cases = [
        ("5", r"so \boxed{4}, no, \boxed{5}", True),  # identical
        ("1/2", "**Answer:** 0.5.", True),  # symbolic
        (r"\boxed{1/2}", "1/3", False),  # rule
        ("1/2", "1/3", True),  # a wrong mark: counts as a false reject
        ("1/2", "0.5", False),  # a wrong mark: counts as a false accept
        ("5", r"\boxed{\frac{1", False),  # cut: no answer
        ("5", r"it goes in \boxed as asked", False),
        ("D", r"\boxed{\Delta E} is large. Answer: D", True),
    ]
    path = tmp_path / "cases.jsonl"
    path.write_text(
        "\n".join(json.dumps({"gold": g, "pred": p, "equivalent": e, "note": "n"}) for g, p, e in cases) + "\n"
    )
    done = _run("--cases", str(path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "cases": 8,
        "agree": 4,
        "false_accepts": 1,
        "false_rejects": 1,
        "no_verdict": 2,
        "by_stage": {
            "identical": {"decided": 2, "agree": 2, "false_accepts": 0, "false_rejects": 0},
            "symbolic": {"decided": 2, "agree": 1, "false_accepts": 1, "false_rejects": 0},
            "rule": {"decided": 2, "agree": 1, "false_accepts": 0, "false_rejects": 1},
        },
    }
    assert "false accept by symbolic, line 5" in done.stdout
    assert "false reject by rule, line 4" in done.stdout


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"gold": "1", "pred": "1", "equivalent": true}\n{"gold": "1"}\n', "line 2: the key 'pred' is missing"),
        (b"not json\n", "line 1: not JSON"),
        (b'{"gold": "1", "pred": "1", "equivalent": true}\n{"gold": "\xff"}\n', "line 2: not UTF-8"),
        (b"", "no cases in it"),
        (b"\n\n", "no cases in it"),
        (b"[1]\n", "line 1: not a JSON object"),
        (b'{"gold": 1, "pred": "1", "equivalent": true}\n', "line 1: 'gold' is not a string"),
        (b'{"gold": "1", "pred": "1", "equivalent": "yes"}\n', "'equivalent' is not true or false"),
    ],
)
def test_bad_input_is_named_with_file_and_line_and_a_way_out(tmp_path, content, words):
    path = tmp_path / "cases.jsonl"
    path.write_bytes(content)
    done = _run("--cases", str(path))
    assert done.returncode == 2
    assert words in done.stderr
    assert str(path) in done.stderr
    assert "\nHint: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_not_there(tmp_path):
    done = _run("--cases", str(tmp_path / "absent.jsonl"))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")


@pytest.mark.skipif(not SHARED.exists(), reason="the shared answer cases are not beside this checkout")
def test_shared_cases_have_no_disagreement():
    done = _run("--cases", str(SHARED))
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["false_accepts"] == 0
    assert counts["agree"] >= 0.9 * counts["cases"]
