"""A small results folder of the miniature, every kind of file in it, written with the library's own writers where there are any."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from genselect.config import Config, load_config
from genselect.config.training import Run
from genselect.evaluation.baselines import COLUMNS
from genselect.formats import ROW_SCHEMA, write_json, write_jsonl, write_text
from genselect.formats.arm_results import write_arm_results
from genselect.formats.records import Candidate, Label, Problem
from genselect.plan.inputs import write_differences, write_resolved_config
from genselect.plan.runs import resolved_runs
from genselect.provenance.run_directory import RunDirectory
from genselect.provenance.seal import write_seal
from genselect.training.records import TokenArrays, Trajectory, write_step

CONFIG = Path(__file__).parents[3] / "config" / "mini.yaml"
NOW = datetime.datetime(2026, 11, 30, tzinfo=datetime.UTC)
WORDS = "first try sums then halves, \\boxed{42}; a second look says the same. machine learning, password of the day, risk-averse".split()


def mini(**publish: Any) -> Config:
    """The miniature's configuration with keys of ``publish`` set, and one run more, which extends another."""
    values = yaml.safe_load(CONFIG.read_text())
    values["runs"]["slow"] = {"extends": "formal", "set": {"optimiser.actor_lr": 5e-4}}
    values["publish"] = publish
    return Config.model_validate(values)


def small_results(root: Path, config: Config | None = None, *, steps: int = 3) -> Path:
    """Write it; returns ``root``."""
    config = config or mini()
    runs = resolved_runs(config)
    _data(root / "data" / "mini", config)
    write_json(root / "models/mini/base_model.json", {"source": "made"})
    write_text(root / "models/mini/tokenizer.json", "{}")
    (root / "models/mini/model.safetensors").write_bytes(bytes(1000))
    for name in ("smoke", "overfit", "formal"):
        _run(root / "runs" / name, name, runs[name], steps)
    for gate in ("smoke", "overfit"):
        write_json(
            root / f"gates/{gate}.json",
            {"gate": gate, "passed": gate == "smoke", "waived": None if gate == "smoke" else "known"},
        )
    write_step(root / "rollouts/untrained/records", 0, [_trajectory(0, row) for row in range(4)])
    write_json(root / "rollouts/untrained/rollout.json", {"verdict": 0.5})
    _evaluation(root / "evaluation" / "mini")
    write_text(root / "report/mini/index.html", "<html>the report</html>\n")
    for kind in ("svg", "png"):
        for figure in ("did_it_rise", "accuracy", "cost", "strata"):
            write_text(root / f"report/mini/figures/formal/{figure}.{kind}", figure)
    for log in ("build_rows.log", "train_run/formal.log", "train_run/smoke.log"):
        write_text(root / "logs/mini" / log, "build_rows: 12 rows\n")
    write_text(root / "benchmarks/mini/train_run/formal.tsv", "s\tmax_rss\n1.0\t2.0\n")
    return root


def _data(folder: Path, config: Config) -> None:
    write_resolved_config(config, folder / "config.yaml")
    write_differences(config, folder / "differences.json")
    problems = [
        Problem(
            f"omr-{n:06d}", f"What is {n}+{n}?", str(2 * n), "n/a", "generated", (Candidate(" ".join(WORDS), "42"),)
        )
        for n in range(6)
    ]
    write_jsonl(folder / "merged.jsonl", (problem.as_json() for problem in problems))
    write_jsonl(
        folder / "merged.judgments.jsonl",
        ({"id": problem.id, "selected": {"0": 1}, "unreadable": 0} for problem in problems),
    )
    labels = [Label(problem.id, 0, True, True, "equal", "stop", "symbolic").as_json() for problem in problems]
    write_jsonl(folder / "labels.jsonl", labels)
    write_jsonl(folder / "labels/1-of-1/labels.jsonl", labels)
    write_jsonl(folder / "labels/1-of-1/journal/journal.jsonl", [{"key": "0" * 32, "verdict": True}])
    rows = [_row(problem) for problem in problems]
    write_jsonl(
        folder / "questions.jsonl",
        ({"question_id": row["extra_info"]["question_id"], "split": "train"} for row in rows),
    )
    for part in ("train", "val", "overfit/control/train", "overfit/control/val", "shards/genselect-00000-of-00001"):
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=ROW_SCHEMA), folder / f"{part}.parquet", compression="zstd")
    write_text(folder / "overfit/control/selection.csv", "question_id,passed\nomr-000000,3\n")
    for name in ("partition", "stats", "merge_stats"):
        write_json(folder / f"{name}.json", {"seed": 1})
    write_seal(folder / "stats.json", kind="rows", counts={"rows": 6}, outputs=[folder / "stats.json"], inputs=[folder / "merged.jsonl"],
               started=NOW, config={"benchmark": "mini"})  # fmt: skip


def _row(problem: Problem) -> dict[str, Any]:
    candidate = {
        "answer": "42",
        "reasoning": problem.candidates[0].text,
        "cost_usd": 0.0,
        "timed_out": False,
        "is_correct": True,
    }
    extra = {
        "question_id": problem.id,
        "question": problem.problem,
        "benchmark": "mini",
        "benchmark_spec": {"name": "mini", "judge": {"kind": "rule", "model": None, "fingerprint": "ab" * 32}},
        "max_explores": 8,
        "correct_of_eight": 1,
        "pass_rate_72b_tir": "n/a",
        "cached_candidates": [candidate] * 8,
    }
    return {
        "data_source": "atts_omr",
        "agent_name": "atlas_sequential",
        "ability": "orchestration",
        "prompt": [{"role": "system", "content": "solve"}, {"role": "user", "content": problem.problem}],
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "extra_info": extra,
    }


def _run(folder: Path, name: str, run: Run, steps: int) -> None:
    """Two attempts: the first was killed behind its save of step 1."""
    with RunDirectory(folder) as directory:
        directory.open({"run": run.identity()}, {"kind": run.kind})
        first = directory.begin_attempt(None)
        first.log.write_text("step 1/3\nhuggingface_hub: 6d3a6c01f3b92af0a1f04c5c3e8e6a4c2d9f7b10\n")
        _steps(folder, range(1, 3), 1)
        save = folder / "checkpoints/global_step_1/actor"
        save.mkdir(parents=True)
        (save / "model_world_size_1_rank_0.pt").write_bytes(b"weights" * 100)
        directory.saves.mark_complete(1, world_size=1, attempt=1)
        second = directory.begin_attempt(directory.prepare_resume(1))
        directory.trim_beyond(1)
        second.log.write_text("step 2/3\n")
        (folder / "attempts/2.verl.yaml").write_text("trainer: {logger: [console]}\n")
        _steps(folder, range(2, steps + 1), 2)
        write_json(
            folder / "health.json",
            {"worst_level": "warning", "steps": [{"step": 2, "level": "warning", "guards": ["explores_fall"]}]},
        )
        second.end("done", steps, 0)
        directory.finish({"kind": run.kind, "steps": steps})


def _steps(folder: Path, steps: range, attempt: int) -> None:
    for step in steps:
        rows = [_trajectory(step, number, attempt) for number in range(4)]
        tokens = [
            TokenArrays(row.question_id, row.sample, attempt, np.arange(3, dtype=np.int32), np.ones(3, np.int8))
            for row in rows
        ]
        write_step(folder / "records", step, rows, tokens)
        write_step(folder / "validation", step, rows[:2])
        for kind in ("potential", "proofs"):
            write_json(folder / kind / f"step_{step}.json", {"step": step})
        with (folder / "metrics.jsonl").open("a") as lines:
            lines.write(
                json.dumps({"step": step, "attempt": attempt, "episode/verdict": 0.5, "val/verdict": 0.25 * step})
                + "\n"
            )


def _trajectory(step: int, number: int, attempt: int = 1) -> Trajectory:
    return Trajectory(
        question_id=f"omr-{number:06d}", sample=0, step=step, attempt=attempt, explores=1, revealed=1, submitted="42", verdict=True,
        verdict_source="candidate", well_formed=True, end="submit", score_verdict=1.0, score_format=0.0, score_cost=0.0, shaping=0.0,
        prompt_tokens=4, response_tokens=3, turns=2, length_capped=False, decision_tokens=(0,), decision_k=(0,), text=" ".join(WORDS),
    )  # fmt: skip


def _evaluation(folder: Path) -> None:
    for arm in ("untrained", "formal@20"):
        rows = [
            {"question_id": f"omr-{n:06d}", "seed": 1, "sample": 0, "correct": n % 2, "shown": 2, "answer": "42", "explores": 2,
             "end": "submit", "tokens": 30, "verdict_source": "label"} for n in range(6)
        ]  # fmt: skip
        write_arm_results(folder / "arms" / f"{arm}.parquet", rows)
    baselines = pd.DataFrame([["omr-000000", "mean", 1.0, 0.5, 1]], columns=list(COLUMNS))
    baselines.to_parquet(folder / "baselines.parquet")
    write_json(folder / "anchors/formal@20.json", {"step": 20})
    write_json(folder / "preregistration.json", {"written": "2026-11-30T00:00:00+00:00"})
    said = {
        "word": "yes",
        "sentence": "Yes, it rose above: +20.0 points (95% interval +10.0 to +30.0, adjusted p = 0.001).",
    }
    hypothesis = {"arm": "formal@20", "against": "untrained", "exploratory": False, "verdict": said}
    comparison = {
        "questions": 100,
        "preregistered": "2026-11-30T00:00:00+00:00",
        "hypotheses": [hypothesis],
        "waived_gates": {"overfit": "known"},
    }
    write_json(folder / "comparison.json", comparison)
    write_text(folder / "comparison.md", "# Did it rise?\n")
    (folder / "parts/untrained").mkdir(parents=True)
    write_json(folder / "parts/untrained/part_0.json", {})


def publish(config: Config, results: Path) -> dict[str, Any]:
    """Stage it; the publications by target."""
    from genselect.publishing.stage import stage

    return dict(stage(config, resolved_runs(config), results))


def reload(path: Path) -> Config:
    """A written configuration."""
    return load_config(path)
