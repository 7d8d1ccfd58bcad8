"""The untrained policy's rollout, with a policy of arithmetic in place of vLLM."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from genselect.base_model.calls import EXPLORE, read_calls, submit_call
from genselect.base_model.tokenizer import END_OF_TURN, build_tokenizer
from genselect.config.rollout import Rollout
from genselect.config.training import Run
from genselect.dataset.selection import SelectionSettings, select_bands
from genselect.episode import Call, Generated
from genselect.errors import GenselectError
from genselect.formats import ROW_SCHEMA
from genselect.provenance import check_seal, read_seal
from genselect.training import episodes
from genselect.training.records import read_records
from genselect.training.rollout import roll_out

QUESTIONS, SAMPLES = 80, 4
TOKENS = {"prompt": 64, "response": 448, "turn": 40}
RUN = Run.model_validate({"tokens": TOKENS, "cards": 1, "reward": {"cost_per_explore": 0.02}})
ROLLOUT = Rollout(like="smoke", samples=SAMPLES, seed=5)


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    """A folder with a tokenizer and a configuration; nobody reads weights here."""
    folder = tmp_path_factory.mktemp("model")
    build_tokenizer(["solve"]).save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "qwen3_5"}')
    return folder


def write_rows(path: Path, statement: str = "1 plus 1", questions: int = QUESTIONS) -> Path:
    def row(number: int) -> dict[str, Any]:
        candidates = [
            {
                "answer": str(10 + k),
                "reasoning": f"so {10 + k}",
                "cost_usd": 0.0,
                "timed_out": False,
                "is_correct": k < 4,
            }
            for k in range(8)
        ]
        return {
            "data_source": "x",
            "agent_name": "x",
            "ability": "x",
            "prompt": [
                {"role": "system", "content": "solve"},
                {"role": "user", "content": f"{statement} plus {number}"},
            ],
            "reward_model": {"style": "rule", "ground_truth": "77"},
            "extra_info": {"question_id": f"omr-{number:06d}", "question": statement, "cached_candidates": candidates},
        }

    pq.write_table(pa.Table.from_pylist([row(n) for n in range(questions)], schema=ROW_SCHEMA), path)
    return path


@dataclass
class Arithmetic:
    """Explores or submits as a generator with the seed it is given says, and remembers what it was asked."""

    tokenizer: Any
    parts: Path
    stop_after: int | None = None
    after_a_part: bool = False
    """Stop no sooner than a part is on disk: verdicts are decided in a thread, which may lag behind."""
    stop: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGTERM)
    asked: list[tuple[int, int, int]] = field(default_factory=list)

    async def generate(self, context: Sequence[int], max_tokens: int, seed: int) -> Generated:
        self.asked.append((len(context), max_tokens, seed))
        if len(self.asked) == self.stop_after:
            while self.after_a_part and not list(self.parts.rglob("step_0.parquet")):
                await asyncio.sleep(0.01)
            self.stop()
        await asyncio.sleep(0)  # others have their turn, and signals are seen
        rng = random.Random(seed)
        text = EXPLORE if rng.random() < 0.25 else submit_call(str(10 + rng.randrange(8)))
        ids = self.tokenizer.encode(text + END_OF_TURN, add_special_tokens=False)[:max_tokens]
        return Generated(ids, [0.0] * len(ids))

    async def parse(self, turn: Sequence[int]) -> Sequence[Call]:
        return read_calls(self.tokenizer.decode(turn))


@dataclass
class Rig:
    """One place in which a rollout is played, stopped and played again."""

    root: Path
    model: Path
    rows: Path
    asked: list[list[tuple[int, int, int]]] = field(default_factory=list)

    def play(self, *, rollout: Rollout = ROLLOUT, run: Run = RUN, **policy: Any) -> dict[str, Any]:
        @contextlib.contextmanager
        def load(model: Path, run: Run, log: Path) -> Iterator[Arithmetic]:
            from genselect.base_model.tokenizer import load_tokenizer

            player = Arithmetic(load_tokenizer(model), out / "parts", **policy)
            self.asked.append(player.asked)
            yield player

        out = self.root / "untrained"
        return roll_out(self.rows, self.model, run, rollout, out, out / "parts", {}, policy=load)

    @property
    def records(self) -> Path:
        return self.root / "untrained" / "records" / "step_0.parquet"


@pytest.fixture
def rig(tmp_path: Path, model: Path) -> Callable[..., Rig]:
    def make(name: str = "a", **options: Any) -> Rig:
        (tmp_path / name).mkdir()
        return Rig(tmp_path / name, model, write_rows(tmp_path / name / "train.parquet", **options))

    return make


def test_every_question_is_played_as_often_as_asked_and_sealed(rig) -> None:
    here = rig()
    summary = here.play()
    rows = read_records(here.records)
    assert {(row.question_id, row.sample) for row in rows} == {
        (f"omr-{number:06d}", sample) for number in range(QUESTIONS) for sample in range(SAMPLES)
    }
    assert {(row.step, row.attempt, row.shaping) for row in rows} == {(0, 1, 0.0)}
    assert len({row.text for row in rows if row.question_id == "omr-000000"}) > 1
    assert sum(summary["pass_counts"].values()) == QUESTIONS
    assert sum(int(k) * n for k, n in summary["pass_counts"].items()) == sum(row.verdict for row in rows)
    assert json.loads((here.root / "untrained" / "rollout.json").read_text()) == summary
    seal = check_seal(here.root / "untrained" / "rollout.json")
    assert seal is not None
    assert [entry.path for entry in seal.outputs] == ["step_0.parquet", "rollout.json"]
    assert not (here.root / "untrained" / "parts").exists()


def test_a_selection_reads_the_records(rig) -> None:
    here = rig()
    counts = here.play()["pass_counts"]
    band = max(counts, key=lambda passed: counts[passed])
    settings = SelectionSettings(bands=(int(band),), per_band=2, samples=SAMPLES)
    lines = select_bands(here.rows, [here.records], here.root / "set", settings)
    assert [line["pass_count"] for line in lines] == [int(band)] * 2


@pytest.mark.parametrize("turns", [1, 100, 330])
def test_a_stopped_rollout_goes_on_and_ends_as_if_it_had_not_been_stopped(rig, turns: int) -> None:
    whole = rig("whole")
    whole.play()
    here = rig("stopped")
    with pytest.raises(SystemExit) as stopped:
        here.play(stop_after=turns, after_a_part=turns == 330)
    assert stopped.value.code == 75
    assert not here.records.exists()
    summary = here.play()
    assert here.records.read_bytes() == whole.records.read_bytes()
    if turns == 330:
        # Some parts had been finished: their episodes are not played again.
        assert 0 < summary["played_in_this_start"] <= QUESTIONS * SAMPLES - 16 * SAMPLES
        assert len(here.asked[1]) < len(whole.asked[0]) - 16 * SAMPLES


def test_parts_of_other_settings_are_not_taken(rig) -> None:
    here = rig()
    with pytest.raises(SystemExit):
        here.play(stop_after=330, after_a_part=True)
    other = here.play(rollout=Rollout(like="smoke", samples=SAMPLES, seed=6))
    assert other["played_in_this_start"] == QUESTIONS * SAMPLES


def test_a_failed_engine_is_told_and_its_finished_parts_are_kept(rig) -> None:
    def fail() -> None:
        raise GenselectError("the engine failed", "Mend it.")

    here = rig()
    with pytest.raises(GenselectError, match="the engine failed"):
        here.play(stop_after=330, after_a_part=True, stop=fail)
    assert not here.records.exists()
    assert here.play()["played_in_this_start"] < QUESTIONS * SAMPLES


def test_turns_are_seeded_and_capped_as_in_training(rig) -> None:
    here = rig(questions=1)
    here.play(rollout=Rollout(like="smoke", samples=1, seed=5))
    seed = episodes.episode_seed(5, "omr-000000", 0, 0)
    prompt = here.asked[0][0][0]
    assert [asked[2] for asked in here.asked[0]] == [(seed + context) % 2**31 for context, _, _ in here.asked[0]]
    assert all(most == min(40, 448 - (context - prompt)) for context, most, _ in here.asked[0])


def test_the_first_rows_are_played_and_too_many_are_told(rig, caplog) -> None:
    here = rig()
    assert here.play(rollout=Rollout(like="smoke", samples=1, first=3))["rows"] == 3
    with caplog.at_level("INFO", logger="genselect"):
        assert here.play(rollout=Rollout(like="smoke", samples=1, first=300))["rows"] == QUESTIONS
    assert "first is 300, and there are 80 rows" in caplog.text


def test_a_prompt_that_is_too_long_names_the_question_and_the_key(rig) -> None:
    here = rig(statement="1 plus " * 60)
    with pytest.raises(GenselectError) as caught:
        here.play()
    assert "the prompt of omr-000000 has" in caught.value.message
    assert "Raise runs.smoke.tokens.prompt to" in caught.value.hint
    assert here.asked == []


def test_rows_that_cannot_be_played_are_refused(rig, tmp_path: Path, model: Path) -> None:
    here = rig(questions=0)
    with pytest.raises(GenselectError, match="holds no row"):
        here.play()
    here.rows.write_text("no parquet")
    with pytest.raises(GenselectError, match="no built rows"):
        here.play()
    here.rows.unlink()
    with pytest.raises(GenselectError, match="there is no such file"):
        here.play()


def test_the_seal_names_what_decides(rig) -> None:
    here = rig()
    here.play()
    first = read_seal(here.root / "untrained" / "rollout.json")
    here.play(run=Run.model_validate({**RUN.model_dump(), "temperature": 0.5}))
    second = read_seal(here.root / "untrained" / "rollout.json")
    assert first is not None
    assert second is not None
    assert first.fingerprints != second.fingerprints
