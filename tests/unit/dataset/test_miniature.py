"""The miniature's shards: what they promise to whoever trains on them."""

import json
import random
import time
from collections import Counter
from itertools import combinations

import pyarrow.parquet as pq
import pytest

from genselect.answers import extract_boxed
from genselect.dataset.merge import merge_shards
from genselect.dataset.miniature import generate_problems, make_shards
from genselect.dataset.prompt import parse_judgment, parse_prompt
from genselect.dataset.shards import SHARD_SCHEMA
from genselect.errors import GenselectError
from genselect.formats import read_problems


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mini")
    make_shards(folder, seed=1)
    return folder


@pytest.fixture(scope="module")
def stats(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("merged")
    values = merge_shards([folder], out / "merged.jsonl", out / "stats.json")
    return values | {"path": out / "merged.jsonl"}


def test_the_program_is_quick_and_the_same_seed_gives_the_same_bytes(folder, script, tmp_path):
    start = time.perf_counter()
    done = script("make_mini_shards", "--output", tmp_path, "--seed", 1)
    assert done.returncode == 0, done.stderr
    assert time.perf_counter() - start < 10
    shards = sorted(folder.glob("*.parquet"))
    assert [path.name for path in shards] == [f"genselect-0000{index}-of-00004.parquet" for index in range(4)]
    assert [path.read_bytes() for path in shards] == [(tmp_path / path.name).read_bytes() for path in shards]


def test_another_seed_gives_other_problems():
    one, two = ({problem.statement for problem in generate_problems(seed, 100)} for seed in (1, 2))
    assert len(one & two) < 5


def test_the_schema_is_the_real_one(folder):
    for path in folder.glob("*.parquet"):
        assert pq.read_schema(path).equals(SHARD_SCHEMA)


def test_merging_gives_back_every_problem_and_candidate(folder, stats):
    made = {problem.statement: problem for problem in generate_problems(1, 320)}
    assert len(made) == stats["problems"] == 320
    for problem in read_problems(stats["path"]):
        truth = made[problem.problem]
        assert problem.answer == truth.answer
        assert {c.text for c in problem.candidates} == {c.text for c in truth.candidates}
        assert len(problem.candidates) >= 8


def test_every_trap_is_there(folder, stats):
    rows = [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    assert set(stats["rows_dropped_by_problem_type"]) == {"converted_proof", "no_answer_extracted"}
    assert {"count_disagrees", "no_anchor", "no_tail", "no_answer"} <= set(stats["refusals"])
    assert stats["rows_refused"] < 0.03 * len(rows)
    assert stats["candidates_without_box"] > 0
    assert stats["duplicates"]["within_prompt"] > 0
    assert stats["duplicates"]["over_prompts"] > stats["candidates"] / 10
    rates = Counter(row["pass_rate_72b_tir"] for row in rows)
    assert rates.pop("n/a") > 0
    assert all((float(rate) * 32).is_integer() for rate in rates)
    texts = [c.text for problem in read_problems(stats["path"]) for c in problem.candidates]
    assert any("\nSolution 1:\n" in text for text in texts)
    assert any("\r\n" in row["problem"] for row in rows)
    assert any(row["expected_answer"].startswith(("$", "\\(")) for row in rows)


def test_every_row_shows_right_and_wrong_and_selects_a_right_one(folder):
    made = {problem.statement: problem for problem in generate_problems(1, 352)}
    parsed = 0
    for path in folder.glob("*.parquet"):
        for row in pq.read_table(path).to_pylist():
            prompt = parse_prompt(row["problem"])
            if not hasattr(prompt, "solutions"):
                continue
            truth = {c.text: c.correct for c in made[prompt.problem].candidates}
            shown = [truth.get(text) for text in prompt.solutions]
            if None in shown:  # a truncated or decoy row that reads otherwise is a refusal, never another text
                pytest.fail(f"{path.name}: a text that was not written: {prompt.solutions}")
            assert 2 <= len(shown) <= 16
            assert {True, False} == set(shown)
            assert shown[parse_judgment(row["generated_solution"])]
            parsed += 1
    assert parsed > 1000


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_reading_the_check_beats_the_vote(seed):
    rng = random.Random(seed)
    counts = Counter()
    problems = generate_problems(seed, 320)
    for problem in problems:
        for _ in range(10):
            eight = rng.sample(problem.candidates, 8)
            right = sum(candidate.correct for candidate in eight)
            if not 1 <= right <= 7:
                continue
            votes = Counter("right" if c.correct else extract_boxed(c.text) for c in eight)
            most = max(votes.values())
            winner = rng.choice([answer for answer, number in votes.items() if number == most])
            first = next((c for c in eight if c.passes), None)
            counts.update(
                rows=1,
                right=right,
                wrong=8 - right,
                majority=winner == "right",
                first=bool(first and first.correct),
                right_passes=sum(c.correct and c.passes for c in eight),
                wrong_passes=sum(c.passes and not c.correct for c in eight),
            )
    rows = counts["rows"]
    assert rows > 0.9 * 10 * len(problems)
    assert counts["right"] / (8 * rows) == pytest.approx(0.49, abs=0.03)
    assert counts["majority"] / rows == pytest.approx(0.6, abs=0.04)
    assert counts["first"] / rows == pytest.approx(0.9, abs=0.04)
    assert counts["right_passes"] / counts["right"] == pytest.approx(0.9, abs=0.04)
    assert counts["wrong_passes"] / counts["wrong"] == pytest.approx(0.1, abs=0.04)


def test_most_answers_are_small_integers_and_their_candidates_short():
    problems = generate_problems(1, 320)
    kinds = Counter(problem.kind for problem in problems)
    assert set(kinds) == {"integer", "fraction", "decimal", "tuple", "surd", "interval", "text"}
    assert kinds["integer"] >= 0.75 * len(problems)
    lengths = set()
    for problem in problems:
        if problem.kind != "integer":
            continue
        assert 0 <= int(problem.answer) <= 99
        lengths.add(len(problem.statement))
        for candidate in problem.candidates:
            assert len(candidate.text.split()) <= 9
            assert candidate.text.endswith(("check: pass", "check: fail"))
            assert (extract_boxed(candidate.text) == problem.answer) is candidate.correct
    assert len(lengths) > 10


def test_right_answers_come_in_several_notations():
    notations = {}
    for problem in generate_problems(1, 320):
        boxes = {extract_boxed(c.text) for c in problem.candidates if c.correct} - {None}
        notations.setdefault(problem.kind, []).append(len(boxes))
    for kind in set(notations) - {"integer"}:
        assert max(notations[kind]) >= 2, kind


def test_statements_are_not_nearly_the_same():
    shingles = [{s[i : i + 5] for i in range(len(s) - 4)} for s in (p.statement for p in generate_problems(1, 352))]
    close = [1 for one, two in combinations(shingles, 2) if len(one & two) >= 0.85 * len(one | two)]
    assert len(close) <= 1


def test_more_problems_keep_the_first_ones():
    assert generate_problems(4, 30) == generate_problems(4, 60)[:30]


def test_a_folder_with_other_shards_is_refused(tmp_path):
    make_shards(tmp_path, problems=20, shards=3)
    make_shards(tmp_path, problems=20, shards=3, seed=2)
    with pytest.raises(GenselectError, match=r"already holds other shards \(genselect-00000-of-00003.parquet"):
        make_shards(tmp_path, problems=20, shards=2)
    assert len(list(tmp_path.glob("*.parquet"))) == 3
    assert json.loads((tmp_path / "genselect-00000-of-00003.parquet.seal.json").read_text())["config"]["seed"] == 2
