"""The untrained policy's rollout: rows of built data, played as a training step would play them, with no trainer.

Episodes are played in one stream, as many at once as the engine takes, and kept in parts of a few questions. A finished part is
on disk at once, so a rollout that was stopped goes on; the records are put together when the last part is there.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from genselect.config import Judge, fingerprint
from genselect.config.rollout import Rollout
from genselect.config.training import Run
from genselect.episode import Episode, Generated, Limits, Renderer, play, score
from genselect.errors import GenselectError
from genselect.formats import write_json
from genselect.judge.interrupt import interruptible, run_async
from genselect.plan.selection import rollout_identity
from genselect.provenance import file_sha256, read_seal, write_seal
from genselect.training import episodes
from genselect.training.records import Trajectory, episode_metrics, read_records, records_path, write_step
from genselect.training.reward import VerdictMaker
from genselect.training.rollout_engine import EPISODES_A_CARD, Policy, vllm_policy

#: The step and the attempt that a rollout's records name: before any training, and the only one.
STEP, ATTEMPT = 0, 1
#: Questions in a part.
PART_QUESTIONS = 16
_FORECAST_FROM = 32
#: The columns of a row that are played.
_COLUMNS = ["prompt", "reward_model", "extra_info"]

#: ``policy(model, run, log)``: the policy, for the length of a block.
Load = Callable[[Path, Run, Path], AbstractContextManager[Policy]]
Row = Mapping[str, Any]

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
    player = _Player(model, run, rollout, template_options, judge)
    player.check_prompts(chosen, rows)
    identity = {
        "rollout": rollout_identity(rollout, run),
        "rows": file_sha256(rows),
        "model": _model_identity(model),
        "template_options": dict(template_options),
    }
    store = _Parts(parts / fingerprint(identity)[:16], chosen, rollout.samples)
    missing = store.missing()
    progress = _Progress(output.name, len(chosen) * rollout.samples, store.kept())
    if missing:
        with (
            interruptible(f"Finished parts are kept in {parts}; start the same command again to go on."),
            policy(model, run, parts / "engine.log") as playing,
        ):
            progress.begin()
            run_async(lambda: _play_parts(missing, store, player, playing, progress, EPISODES_A_CARD * run.cards))
    trajectories = store.kept()
    summary = {
        "rollout": output.name,
        "rows": len(chosen),
        "samples": rollout.samples,
        "episodes": len(trajectories),
        "verdict": sum(row.verdict for row in trajectories) / len(trajectories),
        "pass_counts": pass_counts(trajectories, rollout.samples),
        "mean_response_tokens": sum(row.response_tokens for row in trajectories) / len(trajectories),
        "metrics": episode_metrics(trajectories, max(len(row["extra_info"]["cached_candidates"]) for row in chosen)),
        "played_in_this_start": progress.played,
        "seconds": round(time.monotonic() - began, 1),
        "generation_seconds": round(progress.seconds, 1),
        "episodes_per_second": round(progress.rate, 2),
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


class _Player:
    """Plays one episode of a row, as the agent loop does."""

    def __init__(
        self, model: Path, run: Run, rollout: Rollout, template_options: Mapping[str, Any], judge: Judge | None
    ) -> None:
        from transformers import AutoTokenizer  # seconds to import, and a wrong path should be told before

        self._run = run
        self._rollout = rollout
        self._tokenizer = AutoTokenizer.from_pretrained(model)
        self._renderer: Renderer = episodes.renderer(self._tokenizer, template_options)
        self._verdicts = VerdictMaker(judge)

    def check_prompts(self, rows: Sequence[Row], path: Path) -> None:
        """Refuse prompts that are longer than the run allows."""
        cap = self._run.tokens.prompt
        lengths = {row["extra_info"]["question_id"]: len(self._renderer.prompt(row["prompt"])) for row in rows}
        longest = max(lengths, key=lambda question: lengths[question])
        if lengths[longest] > cap:
            over = sum(length > cap for length in lengths.values())
            raise GenselectError(
                f"{path}: the prompt of {longest} has {lengths[longest]} tokens, and {cap} are allowed "
                f"({over} of {len(lengths)} rows are over)",
                f"Raise runs.{self._rollout.like}.tokens.prompt to {lengths[longest]} or more.",
            )

    async def play(self, row: Row, sample: int, policy: Policy) -> Trajectory:
        """Play one episode and have it judged."""
        run, extra = self._run, row["extra_info"]
        seed = episodes.episode_seed(self._rollout.seed, extra["question_id"], sample, STEP)

        async def generate(context: Sequence[int], max_tokens: int) -> Generated:
            return await policy.generate(context, max_tokens, episodes.turn_seed(seed, len(context)))

        played = await play(
            Episode([episodes.candidate(entry) for entry in extra["cached_candidates"]], run.max_turns),
            self._renderer.prompt(row["prompt"]),
            self._renderer,
            generate,
            policy.parse,
            Limits(run.tokens.response, run.tokens.turn),
            self._tokenizer.eos_token_id,
        )
        ruling = await episodes.rule(self._verdicts, played, row)
        pieces = score(
            played.episode,
            verdict=ruling.correct,
            format_score=run.reward.format_score,
            cost_per_explore=run.reward.cost_per_explore,
        )
        text = self._tokenizer.decode(played.response_ids)
        values = episodes.trajectory(played, ruling, pieces, extra["question_id"], sample)
        return episodes.record(STEP, ATTEMPT, {**values, "text": text})


@dataclass(frozen=True)
class _Part:
    """Some questions, all samples of each."""

    folder: Path
    rows: Sequence[Row]
    samples: int

    @property
    def keys(self) -> set[tuple[str, int]]:
        return {(row["extra_info"]["question_id"], sample) for row in self.rows for sample in range(self.samples)}

    def read(self) -> list[Trajectory] | None:
        """Its trajectories, if it is finished."""
        path = records_path(self.folder, STEP)
        if not path.exists():
            return None
        found = read_records(path)
        return found if {(row.question_id, row.sample) for row in found} == self.keys else None


class _Parts:
    """What is played already, by part."""

    def __init__(self, folder: Path, rows: Sequence[Row], samples: int) -> None:
        cuts = range(0, len(rows), PART_QUESTIONS)
        self._parts = [
            _Part(folder / f"part_{number:05d}", rows[start : start + PART_QUESTIONS], samples)
            for number, start in enumerate(cuts)
        ]

    def missing(self) -> list[_Part]:
        """Parts to play."""
        return [part for part in self._parts if part.read() is None]

    def kept(self) -> list[Trajectory]:
        """Every trajectory of the finished ones."""
        return [row for part in self._parts for row in part.read() or []]


async def _play_parts(
    parts: Sequence[_Part], store: _Parts, player: _Player, policy: Policy, progress: _Progress, at_once: int
) -> None:
    """Play the parts, ``at_once`` episodes at a time; a part is written as soon as its last episode has ended."""
    found: dict[Path, list[Trajectory]] = {part.folder: [] for part in parts}
    todo = _episodes(parts)

    async def work() -> None:
        for part, row, sample in todo:  # shared: each takes the next
            trajectory = await player.play(row, sample, policy)
            progress.add(trajectory)
            done = found[part.folder]
            done.append(trajectory)
            if len(done) == len(part.rows) * part.samples:
                write_step(part.folder, STEP, found.pop(part.folder))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(work())
    except* GenselectError as failures:
        # They fail together, of one cause.
        raise _first(failures) from None


def _first(failures: BaseExceptionGroup[GenselectError]) -> GenselectError:
    error: BaseException = failures
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, GenselectError)
    return error


def _episodes(parts: Sequence[_Part]) -> Iterator[tuple[_Part, Row, int]]:
    for part in parts:
        for row in part.rows:
            for sample in range(part.samples):
                yield part, row, sample


class _Progress:
    """A line every few seconds for the person who waits, less often as time goes by."""

    def __init__(self, name: str, total: int, kept: Sequence[Trajectory]) -> None:
        self.played = 0
        """Episodes since :meth:`begin`."""
        self._name = name
        self._total = total
        self._done = self._kept = len(kept)
        self._correct = sum(row.verdict for row in kept)
        self._explores = sum(row.explores for row in kept)
        self._began = self._said = self._last = time.monotonic()
        if kept:
            logger.info("rollout %s: goes on behind %d of %d episodes", name, len(kept), total)

    def begin(self) -> None:
        """The engine is up."""
        self._began = self._said = self._last = time.monotonic()

    @property
    def seconds(self) -> float:
        """From the engine's start to the last episode's end."""
        return self._last - self._began

    @property
    def rate(self) -> float:
        """Episodes a second."""
        return self.played / self.seconds if self.seconds > 0 else 0.0

    def add(self, row: Trajectory) -> None:
        """An episode has ended."""
        self.played += 1
        self._done += 1
        self._correct += row.verdict
        self._explores += row.explores
        self._last = time.monotonic()
        if self._last - self._said >= min(60.0, max(5.0, self.seconds / 20)) or self._done == self._total:
            self._said = self._last
            # The first to end are the short ones: too early for a forecast.
            early = self.played < _FORECAST_FROM
            left = "" if early else f", about {(self._total - self._done) / self.rate:.0f} s left"
            logger.info(
                "rollout %s: %d/%d episodes, verdict %.2f, explores %.1f, %.0f s%s",
                *(self._name, self._done, self._total, self._correct / self._done, self._explores / self._done),
                *(self.seconds, left),
            )


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


def _model_identity(model: Path) -> dict[str, Any]:
    """The model's files by sha256, from its seal; of a folder without one, its configuration's."""
    if not (model / "config.json").exists():
        raise GenselectError(f"{model}: holds no config.json", "Name the folder of a model.")
    seal = read_seal(model / "base_model.json")
    if seal is None:
        return {"config.json": file_sha256(model / "config.json")}
    return {file.path: file.sha256 for file in seal.outputs}
