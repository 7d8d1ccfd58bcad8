"""Playing rows without a trainer: some episodes of each row, by whoever plays, kept in parts so that a stop loses little.

Episodes are played in one stream, as many at once as the engine takes, and kept in parts of a few questions. A finished part is
on disk at once; the same call after a stop plays only what is missing. The untrained policy's rollout and the arms of the
evaluation are played here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from genselect.config import Judge, fingerprint
from genselect.config.rollout import PART_QUESTIONS
from genselect.config.training import Run
from genselect.episode import TOOLS, Episode, Generated, Limits, Played, Renderer, play, score
from genselect.errors import GenselectError
from genselect.judge.interrupt import interruptible, run_async
from genselect.provenance import file_sha256, read_seal
from genselect.training import episodes
from genselect.training.records import Trajectory, read_records, records_path, write_step
from genselect.training.reward import VerdictMaker
from genselect.training.rollout_engine import EPISODES_A_CARD, Policy, vllm_policy

#: The step and the attempt that records name: before any training, and the only one.
STEP, ATTEMPT = 0, 1
_FORECAST_FROM = 32

#: ``policy(model, run, log)``: the policy, for the length of a block.
Load = Callable[[Path, Run, Path], AbstractContextManager[Policy]]
Row = Mapping[str, Any]

logger = logging.getLogger("genselect")


def row_messages(row: Row) -> Sequence[Mapping[str, str]]:
    """The messages of a built row."""
    messages: Sequence[Mapping[str, str]] = row["prompt"]
    return messages


@dataclass(frozen=True)
class Task:
    """Who is asked what, how often, under which caps."""

    name: str
    """For the lines of progress, such as ``rollout untrained``."""
    run: Run
    """Whose caps, turns, temperature and reward count."""
    samples: int
    """Episodes a row."""
    seed: int
    """Seeds sampling."""
    template_options: Mapping[str, Any]
    """Passed to the chat template."""
    judge: Judge | None = None
    """Who labelled the candidates (:class:`VerdictMaker`)."""
    messages: Callable[[Row], Sequence[Mapping[str, str]]] = row_messages
    """What the policy reads of a row."""
    tools: Sequence[Mapping[str, Any]] = field(default=TOOLS)
    """What it may call."""
    prompt_key: str | None = None
    """The key that caps prompts: a longer one is refused. None: its episodes end at once, by length."""


@dataclass(frozen=True)
class Outcome:
    """What was played."""

    trajectories: list[Trajectory]
    """Of all rows, those of earlier starts included."""
    played: int
    """Episodes of this start."""
    seconds: float
    """From the engine's start to the last episode's end."""
    rate: float
    """Episodes a second."""


def play_rows(
    rows: Sequence[Row],
    model: Path,
    task: Task,
    parts: Path,
    identity: Mapping[str, Any],
    *,
    origin: Path,
    policy: Load = vllm_policy,
) -> Outcome:
    """Play ``task.samples`` episodes of each row.

    Args:
        rows: Built rows.
        model: Folder of the model.
        task: What is asked.
        parts: Folder of finished parts and of the engine's output; whoever calls deletes it when all is written.
        identity: Everything that decides the outcome: parts of another one are not taken.
        origin: Where the rows come from, for messages.
        policy: Who plays.

    Raises:
        GenselectError: A prompt is longer than its cap, or the engine fails.
        SystemExit: 75 after SIGTERM, 130 after SIGINT; finished parts are kept.
    """
    player = _Player(model, task)
    player.check_prompts(rows, origin)
    store = _Parts(parts / fingerprint(identity)[:16], rows, task.samples)
    missing = store.missing()
    progress = _Progress(task.name, len(rows) * task.samples, store.kept())
    if missing:
        with (
            interruptible(f"Finished parts are kept in {parts}; start the same command again to go on."),
            policy(model, task.run, parts / "engine.log") as playing,
        ):
            progress.begin()
            run_async(lambda: _play_parts(missing, store, player, playing, progress, EPISODES_A_CARD * task.run.cards))
    return Outcome(store.kept(), progress.played, progress.seconds, progress.rate)


def model_identity(model: Path) -> dict[str, Any]:
    """The model's files by sha256, from its seal; of a merged anchor, what it was made from; of others, their configuration's."""
    if not (model / "config.json").exists():
        raise GenselectError(f"{model}: holds no config.json", "Name the folder of a model.")
    seal = read_seal(model / "base_model.json")
    if (model / "merged.json").exists():
        return {"merged.json": file_sha256(model / "merged.json")}
    if seal is None:
        return {"config.json": file_sha256(model / "config.json")}
    return {file.path: file.sha256 for file in seal.outputs}


class _Player:
    """Plays one episode of a row, as the agent loop does."""

    def __init__(self, model: Path, task: Task) -> None:
        from transformers import AutoTokenizer  # seconds to import, and a wrong path should be told before

        self._task = task
        self._tokenizer = AutoTokenizer.from_pretrained(model)
        self._renderer: Renderer = episodes.renderer(self._tokenizer, task.template_options)
        self._verdicts = VerdictMaker(task.judge)

    def check_prompts(self, rows: Sequence[Row], path: Path) -> None:
        """Refuse prompts that are longer than the task allows, or say how many are."""
        task, cap = self._task, self._task.run.tokens.prompt
        lengths = {row["extra_info"]["question_id"]: len(self._prompt(row)) for row in rows}
        longest = max(lengths, key=lambda question: lengths[question])
        over = sum(length > cap for length in lengths.values())
        if over and task.prompt_key is None:
            logger.warning(
                "%s: %d of %d prompts are longer than %d tokens and count as unanswered; the longest has %d",
                *(task.name, over, len(lengths), cap, lengths[longest]),
            )
        elif over:
            raise GenselectError(
                f"{path}: the prompt of {longest} has {lengths[longest]} tokens, and {cap} are allowed "
                f"({over} of {len(lengths)} rows are over)",
                f"Raise {task.prompt_key} to {lengths[longest]} or more.",
            )

    async def play(self, row: Row, sample: int, policy: Policy) -> Trajectory:
        """Play one episode and have it judged."""
        run, extra = self._task.run, row["extra_info"]
        seed = episodes.episode_seed(self._task.seed, extra["question_id"], sample, STEP)

        async def generate(context: Sequence[int], max_tokens: int) -> Generated:
            return await policy.generate(context, max_tokens, episodes.turn_seed(seed, len(context)))

        episode = Episode([episodes.candidate(entry) for entry in extra["cached_candidates"]], run.max_turns)
        prompt = self._prompt(row)
        if len(prompt) > run.tokens.prompt:
            episode.cut()
            played = Played(episode, prompt, length_capped=True)
        else:
            limits = Limits(run.tokens.response, run.tokens.turn)
            played = await play(
                episode, prompt, self._renderer, generate, policy.parse, limits, self._tokenizer.eos_token_id
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

    def _prompt(self, row: Row) -> list[int]:
        return self._renderer.prompt(self._task.messages(row), self._task.tools)


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
    except BaseExceptionGroup as failures:
        # No `except*`: what is raised in there comes out in a group before Python 3.11.4.
        ours, others = failures.split(GenselectError)
        if ours is None or others is not None:
            raise
        # They fail together, of one cause.
        raise _first(ours) from None


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
            logger.info("%s: goes on behind %d of %d episodes", name, len(kept), total)

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
                "%s: %d/%d episodes, verdict %.2f, explores %.1f, %.0f s%s",
                *(self._name, self._done, self._total, self._correct / self._done, self._explores / self._done),
                *(self.seconds, left),
            )
