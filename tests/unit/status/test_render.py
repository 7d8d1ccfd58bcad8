"""What is shown fits the terminal, whatever it is, and the JSON keeps its keys."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from status_folder import Results, shown

from genselect.formats import write_json
from genselect.status.render import duration, in_bytes


@pytest.fixture
def busy(results: Results) -> Results:
    """A folder in which everything has something to say."""
    results.built().rolled_out().evaluated_before()
    smoke = results.run("smoke")
    smoke.step(1)
    smoke.end("done")
    results.gate("smoke")
    formal = results.run("formal")
    for step in range(1, 6):
        formal.step(step, 10.0, **{"val__verdict": 0.615, "val__rows": 24.0} if step == 4 else {})
    formal.age(4.0)
    return results


@pytest.mark.parametrize("width", [60, 80, 100, 118, 200])
def test_no_line_is_wider_than_the_terminal_and_no_figure_is_lost(busy: Results, width: int) -> None:
    status = busy.status()
    text = shown(status, width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    if width >= 80:
        for figure in ("5/12", "66 s", "0.500", "0.615 @4", "3.25", "0.400", "0.0020", "10.0", "healthy"):
            assert figure in text, figure
        part = next(part for part in status.disk.parts if part.part == "runs/formal")
        sizes = (part.bytes, part.checkpoints, part.records, part.rest, part.expected)
        assert "runs/formal " + " ".join(map(in_bytes, sizes)) in " ".join(text.split())
    assert "…" not in text


def test_at_80_columns_a_run_is_one_line_of_progress_and_one_of_figures(busy: Results) -> None:
    lines = [line.split() for line in shown(busy.status()).splitlines()]
    assert ["formal", "formal", "running", "5/12", "66", "s", "4", "s", "1", "4", "healthy"] in lines
    assert ["formal", "0.500", "0.615", "@4", "3.25", "0.400", "0.0020", "10.0"] in lines


def test_a_wide_terminal_has_a_run_on_one_line(busy: Results) -> None:
    lines = shown(busy.status(), 160).splitlines()
    assert any("running" in line and "0.615 @4" in line for line in lines)


def test_a_terminal_without_colour_gets_none(busy: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" in shown(busy.status(), force_terminal=True, color_system="standard")
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in shown(busy.status())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    coloured = re.compile("\x1b\\[(?:[0-9;]*;)?3[0-7]m")
    assert not coloured.search(shown(busy.status(), force_terminal=True))
    # `watch` draws the screen itself.
    assert not re.search("\x1b\\[[0-9;?]*[A-HJKhl]", shown(busy.status(), force_terminal=True))


def test_text_of_a_file_is_shown_as_text(results: Results) -> None:
    results.log("make_base_model.log", "2026-11-29 11:00:00,000 INFO [red]loss[/red] \x1b[2J[/] of [bold]nothing")
    text = " ".join(shown(results.status(), 160).split())
    assert "[red]loss[/red] [2J[/] of [bold]nothing" in text
    assert "\x1b" not in text


def test_the_totals_are_one_glance(busy: Results) -> None:
    text = " ".join(shown(busy.status(), 200).split())
    assert "stages 10 of 15; gates 1 of 1; runs 1 done, 1 running, 1 waiting; what runs ends in 66 s; disk " in text


def test_durations_and_sizes_read_as_a_person_says_them() -> None:
    assert [duration(seconds) for seconds in (None, 0, 119.4, 120, 7199, 7200, 40000, 200000)] == [
        *("-", "0 s", "119 s", "2 min", "120 min", "2.0 h", "11 h", "2.3 d"),
    ]
    assert [in_bytes(count) for count in (None, 0, 999, 1000, 99_400, 1_234_567, 5 * 10**12)] == [
        *("-", "0 B", "999 B", "1.0 kB", "99.4 kB", "1.2 MB", "5.0 TB"),
    ]


# JSON


def keys(value: Any, prefix: str = "") -> set[str]:
    """Dotted, with [] for the entries of a list; the free names under totals.runs left out."""
    if isinstance(value, dict):
        if prefix == "totals.runs":
            return set()
        below = [keys(entry, f"{prefix}.{name}" if prefix else name) for name, entry in value.items()]
        return {f"{prefix}.{name}" if prefix else name for name in value}.union(*below)
    if isinstance(value, list):
        return set().union(*(keys(entry, f"{prefix}[]") for entry in value if isinstance(entry, dict)))
    return set()


def test_the_json_has_exactly_the_documented_keys(busy: Results, repository: Path) -> None:
    status = busy.status()
    documented = re.findall(r"^\| `([a-z_.\[\]]+)` \|", (repository / "docs" / "status.md").read_text(), re.MULTILINE)
    assert len(documented) == len(set(documented))
    assert keys(status.as_json()) == set(documented)
    assert status.as_json()["schema_version"] == 1


def test_a_state_is_one_of_the_documented(repository: Path) -> None:
    from genselect.status.model import State

    text = (repository / "docs" / "status.md").read_text()
    assert [state for state in State if f"| {state} |" not in text] == []


def test_the_program_prints_the_same_as_json(busy: Results, script: Any) -> None:
    busy_json = script("status", "--results", busy.root, "--json")
    assert busy_json.returncode == 0, busy_json.stderr
    values = json.loads(busy_json.stdout)
    here = json.loads(json.dumps(busy.status().as_json()))
    assert keys(values) == keys(here)
    assert [(run["run"], run["step"]) for run in values["runs"]] == [("smoke", 1), ("formal", 5), ("second", 0)]


def test_the_program_ends_well_whatever_it_finds_and_badly_only_elsewhere(
    busy: Results, script: Any, tmp_path: Path
) -> None:
    (busy.root / "runs" / "formal" / "manifest.json").write_text("{")
    write_json(busy.root / "gates" / "smoke.json", {"passed": False, "failed": [{"check": "x"}]})
    table = script("status", "--results", busy.root, env={"COLUMNS": "80", "PATH": "/usr/bin", "TERM": "dumb"})
    assert table.returncode == 0, table.stderr
    assert "unreadable" in table.stdout
    assert "Traceback" not in table.stdout + table.stderr
    elsewhere = script("status", "--results", tmp_path / "nowhere")
    assert elsewhere.returncode == 2
    assert elsewhere.stderr.count("\n") == 2
    assert "Hint: " in elsewhere.stderr


def test_a_configuration_can_be_named(busy: Results) -> None:
    path = busy.root.with_name("other.yaml")
    text = (busy.root / "data" / "mini" / "config.yaml").read_text()
    path.write_text(text.replace("steps: 12", "steps: 24"))
    second = next(run for run in busy.status(config=path).runs if run.run == "second")
    assert second.steps == 24
    assert replace(second, steps=12, waits_for=[]).run == "second"
