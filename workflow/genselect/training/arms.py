"""The model arms of the evaluation: a policy played on every held-out question, its answers in one Parquet file with a seal."""

from __future__ import annotations

import datetime
import hashlib
import logging
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from genselect.config import Config, fingerprint
from genselect.config.evaluation import Selector
from genselect.config.training import Run
from genselect.dataset.held_out import FILES, held_out_rows
from genselect.episode import SUBMIT_ONLY
from genselect.errors import GenselectError
from genselect.formats.arm_results import write_arm_results
from genselect.judge.fingerprint import judge_fingerprint
from genselect.plan.evaluation import ModelArm, Plan, arm_identity
from genselect.provenance import file_sha256, write_seal
from genselect.training.playing import Load, Row, Task, model_identity, play_rows
from genselect.training.records import Trajectory
from genselect.training.rollout_engine import vllm_policy

logger = logging.getLogger("genselect")


def evaluate_arm(
    name: str,
    config: Config,
    runs: Mapping[str, Run],
    plan: Plan,
    *,
    data: Path,
    model: Path,
    output: Path,
    parts: Path,
    policy: Load = vllm_policy,
) -> dict[str, Any]:
    """Play ``evaluation.samples`` episodes of every held-out question; write the arm's file and its seal.

    Args:
        name: Of the policy, as in ``plan.played``.
        config: The configuration.
        runs: Resolved.
        plan: Of :func:`genselect.plan.evaluation.evaluation_plan`.
        data: Folder of the built rows.
        model: Folder of the policy's weights.
        output: The arm's Parquet file.
        parts: Folder of finished parts and of the engine's output, deleted when all is written.
        policy: Who plays.

    Returns:
        The counts in the seal.

    Raises:
        GenselectError: The judge is not that of the labels, the rows cannot be used, or the engine fails.
        SystemExit: 75 after SIGTERM, 130 after SIGINT; finished parts are kept.
    """
    started = datetime.datetime.now(datetime.UTC)
    rows, judge = held_out_rows(data, config)
    _check_judge(name, judge, judge_fingerprint(config))
    assert plan.like is not None
    arm = plan.played[name]
    identity = {
        "arm": arm_identity(config, runs, plan, name),
        "questions": file_sha256(data / FILES[0]),
        "partition": file_sha256(data / FILES[1]),
        "model": model_identity(model),
        "judge": judge,
    }
    task = arm_task(arm, config, runs[plan.like], prompt_key=f"runs.{plan.like}.tokens.prompt")
    outcome = play_rows(rows, model, task, parts, identity, origin=data / FILES[0], policy=policy)
    training_seed = runs[arm.run].seed if arm.run is not None else 0
    candidates = {row["extra_info"]["question_id"]: len(row["extra_info"]["cached_candidates"]) for row in rows}
    write_arm_results(
        output, [_result(row, arm, training_seed, candidates[row.question_id]) for row in outcome.trajectories]
    )
    counts = _counts(outcome.trajectories, len(rows))
    write_seal(
        output,
        kind="arm",
        counts=counts,
        outputs=[output],
        inputs=[*(data / file for file in FILES), model / "config.json"],
        started=started,
        fingerprints={"judge": judge, "arm": fingerprint(identity)},
        config=identity,
    )
    shutil.rmtree(parts, ignore_errors=True)
    logger.info(
        "arm %s: accuracy %.3f over %d episodes of %d questions, %d in this start at %.1f a second",
        *(name, counts["accuracy"], counts["episodes"], counts["questions"], outcome.played, outcome.rate),
    )
    if undecided := counts["verdict_sources"].get("none", 0) - counts["episodes"] + counts["submitted"]:
        logger.warning(
            "arm %s: nothing decided %d of %d submissions, which count as wrong; judge.kind endpoints asks a running judge",
            *(name, undecided, counts["submitted"]),
        )
    return counts


def arm_task(arm: ModelArm, config: Config, like: Run, prompt_key: str) -> Task:
    """What the policy is asked: the episode of ``like``, or, for the selector, all candidates at once and one turn."""
    section = config.evaluation
    common: dict[str, Any] = {
        "name": f"arm {arm.name}",
        "samples": section.samples,
        # A seed of its own: arms that drew alike would agree more than two policies do.
        "seed": _seed(section.seed, arm.name),
        "template_options": config.models.base.template_options,
        "judge": config.judge,
    }
    if not arm.selector:
        return Task(**common, run=like, prompt_key=prompt_key)
    selector = section.selector
    caps = {"prompt": selector.prompt_tokens, "response": selector.answer_tokens, "turn": selector.answer_tokens}
    run = like.model_copy(update={"tokens": like.tokens.model_copy(update=caps), "max_turns": 1})
    return Task(**common, run=run, messages=lambda row: selector_messages(row, selector), tools=SUBMIT_ONLY)


def selector_messages(row: Row, selector: Selector) -> Sequence[Mapping[str, str]]:
    """All candidates of a row in one prompt. The renderer writes contents as data: no candidate can pose as structure."""
    extra = row["extra_info"]
    candidates = "".join(
        selector.candidate.format(number=number, text=entry["reasoning"])
        for number, entry in enumerate(extra["cached_candidates"], start=1)
    )
    return [
        {"role": "system", "content": selector.system},
        {"role": "user", "content": selector.user.format(problem=extra["question"], candidates=candidates)},
    ]


def _seed(seed: int, arm: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{arm}".encode()).digest()[:4], "big") % 2**31


def _check_judge(name: str, labels: str, now: str) -> None:
    if labels != now:
        raise GenselectError(
            f"arm {name}: would be judged by {now[:12]}, and the candidates were labelled by {labels[:12]}",
            "Answers judged in different ways cannot be compared: restore the judge section, or label and build again with the new one.",
        )


def _result(row: Trajectory, arm: ModelArm, seed: int, candidates: int) -> dict[str, Any]:
    return {
        "question_id": row.question_id,
        "seed": seed,
        "sample": row.sample,
        "correct": int(row.verdict),
        "shown": candidates if arm.selector else row.revealed,
        "answer": row.submitted,
        "explores": row.explores,
        "end": row.end,
        "tokens": row.response_tokens,
        "verdict_source": row.verdict_source,
    }


def _counts(rows: Sequence[Trajectory], questions: int) -> dict[str, Any]:
    return {
        "questions": questions,
        "episodes": len(rows),
        "accuracy": sum(row.verdict for row in rows) / len(rows),
        "submitted": sum(row.well_formed for row in rows),
        "ends": dict(sorted(Counter(row.end for row in rows).items())),
        "verdict_sources": dict(sorted(Counter(row.verdict_source for row in rows).items())),
    }
