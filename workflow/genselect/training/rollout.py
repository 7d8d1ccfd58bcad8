"""The untrained policy's rollout: rows of built data, played as a training step would play them, with no trainer."""

from __future__ import annotations

import datetime
import logging
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from genselect.config import Judge, fingerprint
from genselect.config.rollout import Rollout
from genselect.config.training import Run
from genselect.errors import GenselectError
from genselect.formats import write_json
from genselect.plan.selection import rollout_identity
from genselect.provenance import file_sha256, write_seal
from genselect.training.playing import STEP, Load, Row, Task, model_identity, play_rows
from genselect.training.records import Trajectory, episode_metrics, write_step
from genselect.training.rollout_engine import vllm_policy

#: The columns of a row that are played.
_COLUMNS = ["prompt", "reward_model", "extra_info"]

logger = logging.getLogger("genselect")


def roll_out(
    rows: Path,
    model: Path,
    run: Run,
    rollout: Rollout,
    output: Path,
    parts: Path,
    template_options: Mapping[str, Any],
    *,
    judge: Judge | None = None,
    policy: Load = vllm_policy,
) -> dict[str, Any]:
    """Play ``rollout.samples`` episodes of each row; write ``records/step_0.parquet``, ``rollout.json`` and its seal.

    Args:
        rows: A built ``train.parquet`` or ``val.parquet``.
        model: Folder of the model.
        run: Resolved; the run whose episode is played (``rollout.like``).
        rollout: Which rows, how often.
        output: The rollout's folder; its name is the rollout's.
        parts: Folder of finished parts and of the engine's output, deleted when all is written.
        template_options: Passed to the chat template.
        judge: Who labelled the candidates (:class:`VerdictMaker`).
        policy: Who plays.

    Returns:
        What ``rollout.json`` holds.

    Raises:
        GenselectError: The rows cannot be used, a prompt is longer than its cap, or the engine fails.
        SystemExit: 75 after SIGTERM, 130 after SIGINT; finished parts are kept.
    """
    started, began = datetime.datetime.now(datetime.UTC), time.monotonic()
    chosen = _read_rows(rows, rollout.first, output.name)
    task = Task(
        name=f"rollout {output.name}",
        run=run,
        samples=rollout.samples,
        seed=rollout.seed,
        template_options=template_options,
        judge=judge,
        prompt_key=f"runs.{rollout.like}.tokens.prompt",
    )
    identity = {
        "rollout": rollout_identity(rollout, run),
        "rows": file_sha256(rows),
        "model": model_identity(model),
        "template_options": dict(template_options),
    }
    outcome = play_rows(chosen, model, task, parts, identity, origin=rows, policy=policy)
    trajectories = outcome.trajectories
    summary = {
        "rollout": output.name,
        "rows": len(chosen),
        "samples": rollout.samples,
        "episodes": len(trajectories),
        "verdict": sum(row.verdict for row in trajectories) / len(trajectories),
        "pass_counts": pass_counts(trajectories, rollout.samples),
        "mean_response_tokens": sum(row.response_tokens for row in trajectories) / len(trajectories),
        "metrics": episode_metrics(trajectories, max(len(row["extra_info"]["cached_candidates"]) for row in chosen)),
        "played_in_this_start": outcome.played,
        "seconds": round(time.monotonic() - began, 1),
        "generation_seconds": round(outcome.seconds, 1),
        "episodes_per_second": round(outcome.rate, 2),
    }
    records = write_step(output / "records", STEP, trajectories)
    write_json(output / "rollout.json", summary)
    write_seal(
        output / "rollout.json",
        kind="rollout",
        counts={name: summary[name] for name in ("rows", "samples", "episodes", "pass_counts")},
        outputs=[records, output / "rollout.json"],
        inputs=[rows, model / "config.json"],
        started=started,
        fingerprints={"rollout": fingerprint(identity)},
        config=identity,
    )
    shutil.rmtree(parts, ignore_errors=True)
    return summary


def pass_counts(trajectories: Sequence[Trajectory], samples: int) -> dict[str, int]:
    """How many questions have 0, 1, … ``samples`` correct samples."""
    passed = Counter({row.question_id: 0 for row in trajectories})
    passed.update(row.question_id for row in trajectories if row.verdict)
    counts = Counter(passed.values())
    return {str(number): counts[number] for number in range(samples + 1)}


def _read_rows(path: Path, first: int | None, name: str) -> list[Row]:
    try:
        table = pq.read_table(path, columns=_COLUMNS)
    except FileNotFoundError:
        raise GenselectError(f"{path}: there is no such file", "Build the rows first: snakemake data.") from None
    except (pa.ArrowInvalid, pa.ArrowKeyError, OSError) as error:
        raise GenselectError(
            f"{path}: no built rows: {error}", "Name a built train.parquet or val.parquet, or build it again."
        ) from None
    if missing := [column for column in _COLUMNS if column not in table.column_names]:
        raise GenselectError(
            f"{path}: no built rows: without {', '.join(missing)}", "Name a built train.parquet or val.parquet."
        )
    if not table.num_rows:
        raise GenselectError(f"{path}: holds no row", "Build rows again, with more problems or looser filters.")
    if first is not None and first > table.num_rows:
        logger.info(
            "rollout %s: first is %d, and there are %d rows: all of them are played", name, first, table.num_rows
        )
    rows: list[Row] = table.slice(0, first).to_pylist()
    return rows
