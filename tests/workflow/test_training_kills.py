"""A training that is killed at seeded moments, against the same training left in peace. Real verl, Ray and vLLM: about 25 minutes.

All differences are printed (``-s``) and written to ``results/kill_series.json`` of the copy in which the trainings ran, before
anything is asserted.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from genselect.provenance.saves import Saves
from genselect.training.records import Trajectory, read_records, recorded_steps
from processes import running, trainer_below

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]

STEPS = 6
SEED = 71
SETTINGS: dict[str, Any] = {
    "kind": "smoke",  # a formal run would wait for the preregistration, and so for the untrained policy's evaluation
    "schedule": {"steps": STEPS, "save_every": 1, "anchor_every": 2, "critic_warmup": 1, "validate_every": 3},
    "potential": [{"name": "submit_probability", "weight": 0.1}],
}
#: Where in an attempt it is killed, and how many seconds after that place was reached (from, to).
PHASES = {
    "start-up": (5.0, 60.0),  # after the attempt's number is given: Ray, engines, the first weights
    "step": (0.5, 4.0),  # after a step was told: generation or updates of the next
    "save": (0.0, 0.2),  # after the save's folder appeared
    "records": (0.0, 0.0),  # verl's part of the save is written, and the step's records are being
}
#: Seconds after which nothing of Ray or vLLM may be alive. The keeper gives them ten to end by themselves.
GONE_S = 20.0
EXACT = ("submitted", "verdict", "explores", "response_tokens", "end", "text")
FLOATS = ("decision_logits", "decision_values", "decision_phi")


@dataclass(frozen=True)
class Moment:
    """When and how an attempt is ended."""

    phase: str
    seconds: float
    how: str
    """``kill``: SIGKILL to train.py. ``power cut``: to everything at once, Snakemake too. ``terminate``: SIGTERM to train.py."""


def moments(seed: int) -> list[Moment]:
    """Five kills, each phase at least once, and a SIGTERM somewhere between."""
    rng = random.Random(seed)
    phases = [*PHASES, rng.choice(list(PHASES))]
    rng.shuffle(phases)
    chosen = [Moment(phase, rng.uniform(*PHASES[phase]), "kill") for phase in phases]
    # The records take a tenth of a second: only a kill that leaves nobody time to end well lands among them.
    place = phases.index("records")
    chosen[place] = Moment("records", 0.0, "power cut")
    chosen.insert(rng.randrange(len(chosen) + 1), Moment("step", rng.uniform(0, 3), "terminate"))
    return chosen


# --- one attempt ----------------------------------------------------------------------------------------------------------


@dataclass
class Launch:
    """The run's command, started; its output as it comes."""

    root: Path
    run: str
    said: list[str] = field(default_factory=list)
    known: list[psutil.Process] = field(default_factory=list)
    """The family as of the last look."""

    def __post_init__(self) -> None:
        command = ["snakemake", "--profile", "profiles/mini", f"results/runs/{self.run}/done.json"]
        self.directory = self.root / "results" / "runs" / self.run
        self.process = subprocess.Popen(
            command, cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.said.extend(self.process.stdout)

    def wait_until(self, reached: Callable[[], Any], what: str, every_s: float = 0.02) -> None:
        """Look, for at most a quarter of an hour: the machine may be busy."""
        deadline = time.monotonic() + 900
        while not reached():
            ended = self.process.poll() is not None
            assert not ended, f"the attempt ended before {what}; take another seed:\n{''.join(self.said[-40:])}"
            assert time.monotonic() < deadline, f"no {what} within a quarter of an hour:\n{''.join(self.said[-40:])}"
            time.sleep(every_s)

    def told(self, opening: str) -> bool:
        """Whether a line begins so."""
        return any(line.startswith(opening) for line in self.said)

    def wait_for(self, moment: Moment) -> None:
        """Until the moment has come."""
        self.wait_until(lambda: any(": attempt " in line for line in self.said), "the attempt's number")
        if moment.phase == "step":
            self.wait_until(lambda: self.told("step "), "the first step")
        elif moment.phase == "save":
            self.wait_until(lambda: unsealed(self.directory), "a save that is being written")
        elif moment.phase == "records":
            self.wait_until(lambda: unsealed(self.directory), "a save that is being written")
            step = unsealed(self.directory)[0]
            self.family()  # looked up now, or the moment would be over
            written = self.directory / "records" / f"tokens_step_{step}.parquet"
            self.wait_until(written.exists, f"the records of step {step}", every_s=0.001)
        time.sleep(moment.seconds)

    def family(self) -> list[psutil.Process]:
        """Snakemake and all below it."""
        snakemake = psutil.Process(self.process.pid)
        self.known = [snakemake, *snakemake.children(recursive=True)]
        return self.known

    def end(self, how: str) -> list[psutil.Process]:
        """End the attempt; returns the processes that it had, Snakemake left out."""
        if how == "power cut":
            family = self.known
            for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that none sees another die
                for process in family:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.send_signal(number)
        else:
            family = self.family()
            trainer_below(self.process.pid).send_signal(signal.SIGTERM if how == "terminate" else signal.SIGKILL)
        return family[1:]


def unsealed(directory: Path) -> list[int]:
    """Steps whose save is being written, or was left so."""
    found = (
        re.fullmatch(r"global_step_(\d+)", path.name) for path in (directory / "checkpoints").glob("global_step_*")
    )
    steps = sorted(int(match[1]) for match in found if match)
    return [
        step for step in steps if not (directory / "checkpoints" / f"global_step_{step}" / "complete.json").exists()
    ]


def of_checkout(root: Path) -> list[psutil.Process]:
    """Every process with this checkout in its environment: the library's path is set for each job, and Ray hands it on."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(root) in process.environ().get("PYTHONPATH", ""):
                found.append(process)
    return found


# --- the series -----------------------------------------------------------------------------------------------------------


@dataclass
class Series:
    """What the two trainings left, and what was seen on the way."""

    whole: Path
    killed: Path
    ends: list[dict[str, Any]]
    """One for each ended attempt: the moment, and what lay in the run directory once everything was gone."""
    said: list[str]
    """One output for each attempt."""
    differences: dict[str, Any]


@pytest.fixture(scope="module")
def series(finished: Any, tmp_path_factory: pytest.TempPathFactory) -> Series:
    """Train once in peace and once with seeded ends, and compare."""
    root = tmp_path_factory.mktemp("kills") / "checkout"
    shutil.copytree(finished.root, root, symlinks=True)
    copy = type(finished)(root)
    formal = yaml.safe_load((root / "config" / "mini.yaml").read_text())["runs"]["formal"]
    whole = {**formal, **SETTINGS, "schedule": {**formal["schedule"], **SETTINGS["schedule"]}}
    runs = {"whole": whole, "killed": {"extends": "whole", "expect_difference": []}}
    # No run of another kind, so no gate to wait for.
    copy.configure([("runs", runs), ("rollouts", {}), ("overfit_sets", {}), ("waived_gates", {})])
    copy.snakemake("results/models/mini/base_model.json", timeout=1500)
    copy.snakemake("results/runs/whole/done.json", timeout=1500)

    ends, said = [], []
    for number, moment in enumerate(moments(SEED), start=1):
        launch = Launch(root, "killed")
        launch.wait_for(moment)
        end_and_check(launch, moment)
        ends.append({"attempt": number, **vars(moment), **state(launch.directory)})
        said.append("".join(launch.said))
        print(ends[-1], flush=True)
        if moment.how == "power cut":
            copy.snakemake("--unlock")
    last = copy.snakemake("results/runs/killed/done.json", timeout=1500)
    said.append(last.stdout + last.stderr)

    folder = root / "results" / "runs"
    differences = compare(folder / "whole", folder / "killed")
    report = {"ends": ends, "differences": differences}
    (root / "results" / "kill_series.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(differences, indent=1), f"\n{root / 'results' / 'kill_series.json'}", flush=True)
    return Series(folder / "whole", folder / "killed", ends, said, differences)


def end_and_check(launch: Launch, moment: Moment) -> None:
    """End the attempt; nothing of it may be alive soon after."""
    family = launch.end(moment.how)
    ended = time.monotonic()
    # Asked to stop, it ends with the step that it is in.
    assert launch.process.wait(timeout=300) != 0, "".join(launch.said)
    launch.reader.join(timeout=10)
    deadline = (time.monotonic() if moment.how == "terminate" else ended) + GONE_S
    while (left := running([*family, *of_checkout(launch.root)])) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == [], f"alive {GONE_S:.0f} s after {moment}: {left}"


def state(directory: Path) -> dict[str, Any]:
    """What an ended attempt left: the last complete save, half-written ones, and all that lies beyond it."""
    save = Saves(directory / "checkpoints").last_complete_save()
    step = save.step if save else None
    # Started anew, a run validates the untrained policy again, as step 0.
    kept = -1 if step is None else step
    beyond = {
        folder: sorted(
            path.name
            for path in (directory / folder).glob("*step_*")
            if (match := re.search(r"(?<!\.)step_(\d+)\.", path.name)) and int(match[1]) > kept
        )
        for folder in ("records", "potential", "validation")
    }
    lines = metrics(directory) if (directory / "metrics.jsonl").exists() else []
    return {
        "last_save": step,
        "half_written": unsealed(directory),
        "beyond": {folder: names for folder, names in beyond.items() if names},
        "metrics_beyond": [line["step"] for line in lines if line["step"] > kept],
    }


# --- the comparison -------------------------------------------------------------------------------------------------------


def metrics(directory: Path) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl``; a torn last one is left out."""
    found = []
    for line in (directory / "metrics.jsonl").read_text().splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found


def compare(whole: Path, killed: Path) -> dict[str, Any]:
    """How the killed run differs from the one in peace."""
    steps = recorded_steps(whole / "records")
    validations = recorded_steps(whole / "validation")
    done = [json.loads((run / "done.json").read_text()) for run in (whole, killed)]
    return {
        "recorded_steps": {"whole": steps, "killed": recorded_steps(killed / "records")},
        "records": {step: rows_difference(*(run / "records" / f"step_{step}.parquet" for run in (whole, killed)))
                    for step in steps},
        "validated_steps": {"whole": validations, "killed": recorded_steps(killed / "validation")},
        "validation": {step: rows_difference(*(run / "validation" / f"step_{step}.parquet" for run in (whole, killed)))
                       for step in validations},
        "metrics": metrics_difference(metrics(whole), metrics(killed)),
        "done": figures_difference(done[0]["last_metrics"], done[1]["last_metrics"])
        | {"steps": [entry["steps"] for entry in done], "attempts": [entry["attempts"] for entry in done]},
        "tensors": {name: tensors_difference(name, whole, killed)
                    for part in ("actor", "critic", "submit")
                    for name in (f"{part}/model_world_size_1_rank_0.pt", f"{part}/optim_world_size_1_rank_0.pt")},
    }  # fmt: skip


def rows_difference(whole: Path, killed: Path) -> dict[str, Any]:
    """Rows that differ in each exact field, and the largest difference of each real one."""
    ours, theirs = (read_records(path) for path in (whole, killed))
    by_key: tuple[dict[tuple[str, int], Trajectory], ...] = tuple(
        {(row.question_id, row.sample): row for row in rows} for rows in (ours, theirs)
    )
    shared = by_key[0].keys() & by_key[1].keys()
    pairs = [(by_key[0][key], by_key[1][key]) for key in sorted(shared)]
    found: dict[str, Any] = {
        "rows": [len(ours), len(theirs)],
        "rows_of_one_only": len(by_key[0].keys() ^ by_key[1].keys()),
        "twice": len(theirs) - len(by_key[1]),
        "unequal": {name: sum(getattr(a, name) != getattr(b, name) for a, b in pairs) for name in EXACT},
    }
    for name in FLOATS:
        columns = [(getattr(a, name), getattr(b, name)) for a, b in pairs]
        found[f"{name}_of_other_length"] = sum(len(a) != len(b) for a, b in columns)
        gaps = (abs(x - y) for a, b in columns if len(a) == len(b) for x, y in zip(a, b, strict=True))
        found[f"{name}_largest"] = max(gaps, default=0.0)
    return found


def metrics_difference(whole: list[dict[str, Any]], killed: list[dict[str, Any]]) -> dict[str, Any]:
    """The steps of both files in order, and the difference of each step's figures."""
    by_step = [{line["step"]: line for line in lines} for lines in (whole, killed)]
    return {
        "steps": {"whole": [line["step"] for line in whole], "killed": [line["step"] for line in killed]},
        "by_step": {step: figures_difference(line, by_step[1].get(step, {})) for step, line in by_step[0].items()},
    }


def figures_difference(whole: dict[str, Any], killed: dict[str, Any]) -> dict[str, Any]:
    """Figures of one step: those of one side only, verdict and score, the largest relative difference of the others."""
    compared = {
        name
        for name in whole.keys() | killed.keys()
        if not re.match(r"timing|perf/|.*/perf/|.*/mfu|step$|attempt$", name)
    }
    shared = {name for name in compared if whole.get(name) is not None and killed.get(name) is not None}
    gaps = {name: relative(whole[name], killed[name]) for name in shared}
    losses = {name: gap for name, gap in gaps.items() if name.endswith(("loss", "bce", "grad_norm"))}
    worst = max(gaps, key=lambda name: gaps[name], default=None)
    return {
        "of_one_only": sorted(compared - shared),
        "verdict": [line.get("episode/verdict") for line in (whole, killed)],
        "score": [line.get("episode/score") for line in (whole, killed)],
        "largest_loss": max(losses.values(), default=0.0),
        "largest": [worst, gaps.get(worst, 0.0)] if worst else None,
    }


def relative(a: float, b: float) -> float:
    """|a − b| over the larger magnitude; 0 when equal."""
    return 0.0 if a == b else abs(a - b) / max(abs(a), abs(b))


def tensors_difference(name: str, whole: Path, killed: Path) -> float:
    """The largest absolute difference over all tensors of one file of the final save; infinite if their names or shapes differ."""
    import torch

    # verl's own pickles: DTensors of one rank, which unpickle without a process group.
    loaded = [
        dict(tensors(torch.load(run / "checkpoints" / f"global_step_{STEPS}" / name, map_location="cpu", weights_only=False)))
        for run in (whole, killed)
    ]  # fmt: skip
    assert loaded[0], f"{name}: no tensor in it"
    if {key: value.shape for key, value in loaded[0].items()} != {key: value.shape for key, value in loaded[1].items()}:
        return math.inf
    return max((loaded[0][key].double() - loaded[1][key].double()).abs().max().item() for key in loaded[0])


def tensors(value: Any, name: str = "") -> Iterable[tuple[str, Any]]:
    """Every tensor of a nested state dictionary, with its path."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from tensors(part, f"{name}/{key}")
    elif hasattr(value, "to_local"):
        yield name, value.to_local()
    elif hasattr(value, "numel") and value.numel():
        yield name, value


# --- what must hold -------------------------------------------------------------------------------------------------------


def test_each_attempt_goes_on_from_the_last_complete_save(series: Series) -> None:
    attempts = json.loads((series.killed / "manifest.json").read_text())["attempts"]
    expected = ["signal" if end["how"] == "terminate" else "killed" for end in series.ends]
    assert [attempt["reason"] for attempt in attempts] == [*expected, "done"]
    assert [attempt["resumed_from"] for attempt in attempts] == [None, *(end["last_save"] for end in series.ends)]
    saves = [end["last_save"] or 0 for end in series.ends]
    assert saves == sorted(saves), "no attempt loses what an earlier one saved"
    for attempt, end in zip(attempts, series.ends, strict=False):
        trained = [*end["metrics_beyond"], end["last_save"] or 0]
        assert max(trained) - (end["last_save"] or 0) <= 1, f"with a save a step, a kill loses one step at most: {end}"
        if end["how"] == "terminate":
            assert attempt["exit_code"] == 75
        else:
            assert attempt["exit_code"] is None
            assert attempt["noticed"]


def test_every_step_stands_once(series: Series) -> None:
    assert recorded_steps(series.killed / "records") == list(range(1, STEPS + 1))
    assert series.differences["metrics"]["steps"] == {
        "whole": [0, *range(1, STEPS + 1)],
        "killed": [0, *range(1, STEPS + 1)],
    }
    for name in ("records", "validation"):
        for step, found in series.differences[name].items():
            assert found["twice"] == 0, f"{name} of step {step}"
    assert recorded_steps(series.killed / "validation") == [0, 3, STEPS]
    done = json.loads((series.killed / "done.json").read_text())
    assert (done["steps"], done["attempts"]) == (STEPS, len(series.ends) + 1)
    assert [save.step for save in Saves(series.killed / "checkpoints").complete()] == [2, 4, STEPS]


def test_what_lay_beyond_a_save_is_set_aside_and_said(series: Series) -> None:
    assert any(end["half_written"] for end in series.ends), "no kill hit a save in the writing: take another seed"
    assert any(end["beyond"] for end in series.ends), "no kill left records beyond a save: take another seed"
    for end, said in zip(series.ends, series.said[1:], strict=True):
        trimmed = next(line for line in said.splitlines() if "trimmed to " in line)
        if end["last_save"] is not None:
            assert f"trimmed to step {end['last_save']}: " in trimmed
        aside = series.killed / "superseded" / f"attempt_{end['attempt']}"
        for folder, names in end["beyond"].items():
            assert re.search(rf"\b{folder} of steps? ", trimmed), trimmed
            for name in names:
                assert (aside / folder / name).is_file(), f"{name} of {end}"
        if end["metrics_beyond"]:
            assert "metrics line(s) of" in trimmed
            assert [line["step"] for line in metrics(aside)] == end["metrics_beyond"]
        for step in end["half_written"]:
            assert f"half-written save of step {step} set aside" in said
            assert (series.killed / "checkpoints" / f"incomplete_global_step_{step}_attempt_{end['attempt']}").is_dir()
        if not end["beyond"] and not end["metrics_beyond"]:
            assert "nothing lay beyond it" in trimmed


def test_the_draws_are_those_of_the_run_in_peace(series: Series) -> None:
    """Sampling is seeded for each question, sample, step and place, so a redone step draws what the lost one drew."""
    for name in ("records", "validation"):
        for step, found in series.differences[name].items():
            assert found["rows_of_one_only"] == 0, f"{name} of step {step}: other questions"
            assert not any(found["unequal"].values()), f"{name} of step {step}: {found['unequal']}"
    for step, found in series.differences["metrics"]["by_step"].items():
        assert found["verdict"][0] == found["verdict"][1], f"step {step}"
        assert found["score"][0] == found["score"][1], f"step {step}"


def test_the_models_are_those_of_the_run_in_peace(series: Series) -> None:
    assert {name: gap for name, gap in series.differences["tensors"].items() if not gap <= 1e-5} == {}
    for step, found in series.differences["records"].items():
        for name in FLOATS:
            assert found[f"{name}_of_other_length"] == 0, f"step {step}"
            assert found[f"{name}_largest"] <= 1e-4, f"step {step}: {name}"
