"""Merging shards into problems."""

import hashlib
import json
import random
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genselect.answers import extract_boxed
from genselect.dataset.merge import last_boxed, merge_shards
from genselect.dataset.miniature import render_prompt
from genselect.dataset.shards import SHARD_SCHEMA
from genselect.errors import GenselectError
from genselect.formats import read_problems
from genselect.provenance import check_seal

A, B, C, D = "two \\boxed{4}", "three \\boxed{3}", "\\boxed{5", "\\boxed{1} then \\boxed{\\frac{1}{2"


def row(problem="2+2?", solutions=(A, B), judgment=0, **columns):
    return {
        "expected_answer": "4",
        "problem_type": "has_answer_extracted",
        "problem_source": "aops",
        "generation_model": "m",
        "pass_rate_72b_tir": "0.5",
        "problem": render_prompt(problem, list(solutions)),
        "generated_solution": f"…\nJudgment: {judgment}",
        "inference_mode": "genselect",
        "used_in_kaggle": False,
        **columns,
    }


def write_shard(path, rows, schema=SHARD_SCHEMA, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, **options)
    return path


class Merged:
    """A merge of ``shards`` (lists of rows) in a folder, read back."""

    def __init__(self, folder, shards, **options):
        paths = [write_shard(folder / "shards" / f"{index:02}.parquet", rows) for index, rows in enumerate(shards)]
        self.output = folder / "out" / "merged.jsonl"
        self.stats = merge_shards(paths, self.output, folder / "out" / "merge_stats.json", **options)
        self.problems = list(read_problems(self.output))
        side = (folder / "out" / "merged.judgments.jsonl").read_text().splitlines()
        self.judgments = [json.loads(line) for line in side]

    def texts(self, index=0):
        return [candidate.text for candidate in self.problems[index].candidates]


def test_one_line_a_problem_in_order_of_first_appearance(tmp_path):
    merged = Merged(tmp_path, [[row("q?"), row("2+2?", (B, A))], [row("q?", (B, C)), row("third?", (A, D))]])
    assert [(p.id, p.problem) for p in merged.problems] == [
        ("omr-000000", "q?"),
        ("omr-000001", "2+2?"),
        ("omr-000002", "third?"),
    ]
    assert merged.texts(0) == [A, B, C]
    assert merged.texts(1) == [B, A]
    first = merged.problems[0]
    assert (first.answer, first.pass_rate_72b_tir, first.problem_source) == ("4", "0.5", "aops")
    line = json.loads(merged.output.read_text().splitlines()[0])
    assert list(line) == ["id", "problem", "answer", "pass_rate_72b_tir", "problem_source", "candidates"]
    assert [list(candidate) for candidate in line["candidates"]] == [["text", "boxed"]] * 3


def test_the_last_complete_box_is_taken(tmp_path):
    merged = Merged(tmp_path, [[row(solutions=(A, C, D))]])
    assert [candidate.boxed for candidate in merged.problems[0].candidates] == ["4", None, "1"]
    assert merged.stats["candidates_without_box"] == 1


def test_equal_texts_are_one_candidate_and_counted(tmp_path):
    merged = Merged(tmp_path, [[row(solutions=(A, B, A)), row(solutions=(B, A, C))]])
    assert merged.texts() == [A, B, C]
    assert merged.stats["solutions_read"] == 6
    assert merged.stats["duplicates"] == {"within_prompt": 1, "over_prompts": 2}


def test_other_types_are_dropped_and_counted_by_type(tmp_path):
    rows = [row("no?", problem_type="no_answer_extracted")] * 2 + [row(), row("p?", problem_type="converted_proof")]
    merged = Merged(tmp_path, [rows])
    assert [problem.problem for problem in merged.problems] == ["2+2?"]
    assert merged.stats["rows_dropped_by_problem_type"] == {"converted_proof": 1, "no_answer_extracted": 2}


def test_types_to_keep_can_be_chosen(tmp_path):
    rows = [row("no?", problem_type="no_answer_extracted"), row()]
    merged = Merged(tmp_path, [rows], problem_types=["no_answer_extracted"], id_prefix="x")
    assert [(problem.id, problem.problem) for problem in merged.problems] == [("x-000000", "no?")]


def test_refused_rows_are_counted_and_sampled(tmp_path):
    no_anchor = row(problem="YOUR work \U0001d7da" + "z" * 400)
    no_anchor["problem"] = no_anchor["problem"].replace("YOUR TASK", "")
    rows = [row(), *[no_anchor] * 7, row(expected_answer=" "), row(problem_source=None), row(problem_type=None)]
    merged = Merged(tmp_path, [rows])
    assert merged.stats["refusals"] == {"no_anchor": 7, "no_answer": 1, "null_value": 2}
    assert merged.stats["rows_refused"] == 10
    assert (merged.stats["rows_read"], merged.stats["rows_kept"]) == (11, 1)
    samples = merged.stats["refusal_samples"]["no_anchor"]
    assert [sample["row"] for sample in samples] == [1, 2, 3, 4, 5]
    assert samples[0] == {"shard": "00.parquet", "row": 1, "text": no_anchor["problem"][:300]}


def test_na_pass_rates_are_kept_as_they_are(tmp_path):
    assert Merged(tmp_path, [[row(pass_rate_72b_tir="n/a")]]).problems[0].pass_rate_72b_tir == "n/a"


def test_of_two_expected_answers_the_first_counts_and_the_conflict_is_reported(tmp_path):
    rows = [row(), row(solutions=(A, C), expected_answer="5"), row(expected_answer="5"), row("q?")]
    merged = Merged(tmp_path, [rows])
    assert merged.problems[0].answer == "4"
    assert merged.texts() == [A, B, C]
    assert merged.stats["conflicts"] == {
        "problems": 1,
        "rows": 2,
        "samples": [{"problem": "2+2?", "answers": {"4": 1, "5": 2}}],
    }


def test_judgments_are_counted_by_candidate(tmp_path):
    rows = [
        row(solutions=(A, B), judgment=1),
        row(solutions=(C, B), judgment=1),
        row(solutions=(C, A), judgment=0),
        row(solutions=(A, B), judgment=2),
        row(generated_solution="no verdict"),
        row("q?", solutions=(A, B, A, C), judgment=3),
    ]
    assert Merged(tmp_path, [rows]).judgments == [
        {"id": "omr-000000", "selected": {"1": 2, "2": 1}, "unreadable": 2},
        {"id": "omr-000001", "selected": {"2": 1}, "unreadable": 0},
    ]


def random_shards(seed):
    """Five shards over few problems, with everything that has to be joined: conflicts, refusals, judgments, repeats."""
    rng = random.Random(seed)
    texts = [f"way {index} \\boxed{{{index % 3}}}" for index in range(12)]
    shards = []
    for _ in range(5):
        rows = []
        for _ in range(rng.randrange(1, 30)):
            made = row(f"p{rng.randrange(9)}?", rng.choices(texts, k=4), rng.randrange(6))
            made["expected_answer"] = rng.choice(["1", "1", "2", ""])
            made["problem_type"] = rng.choice(["has_answer_extracted", "has_answer_extracted", "converted_proof"])
            if rng.random() < 0.2:
                made["problem"] = made["problem"].replace("Evaluation", "")
            rows.append(made)
        shards.append(rows)
    return shards


@pytest.mark.parametrize("seed", [1, 2])
def test_the_number_of_processes_changes_nothing(tmp_path, seed):
    def files(workers):
        merged = Merged(tmp_path / str(workers), random_shards(seed), workers=workers)
        folder = merged.output.parent
        return {path.name: path.read_bytes() for path in folder.iterdir() if ".seal." not in path.name}

    alone = files(1)
    assert sorted(alone) == ["merge_stats.json", "merged.jsonl", "merged.judgments.jsonl"]
    assert files(2) == alone
    assert files(5) == alone


def test_outputs_are_sealed_with_their_inputs(tmp_path):
    merged = Merged(tmp_path, [[row()], [row("q?")]])
    seal = check_seal(merged.output)
    assert seal.kind == "merged"
    assert seal.counts["problems"] == 2
    assert [entry.path for entry in seal.outputs] == ["merged.jsonl", "merged.judgments.jsonl", "merge_stats.json"]
    assert [entry.sha256 for entry in seal.inputs] == [shard["sha256"] for shard in merged.stats["shards"]]


def test_nothing_left_is_an_error_that_says_what_was_read(tmp_path):
    bad = row()
    bad["problem"] = "?"
    with pytest.raises(GenselectError) as caught:
        Merged(tmp_path, [[row(problem_type="converted_proof"), bad]])
    assert "no row is left of 2 read. Of other problem types: converted_proof 1. Refused: no_anchor 1." in str(
        caught.value
    )
    assert "Hint: Rows of dataset.problem_types (has_answer_extracted)" in str(caught.value)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_row_that_is_not_utf8_leaves_nothing_behind(tmp_path):
    good, bad = row()["problem"].encode(), row()["problem"].encode().replace(b"2+2?", b"2\xff2?")
    columns = {name: [row()[name]] * 2 for name in SHARD_SCHEMA.names}
    raw = pa.array([good, bad], pa.binary())
    columns["problem"] = pa.StringArray.from_buffers(2, *raw.buffers()[1:])
    path = tmp_path / "bad.parquet"
    pq.write_table(pa.table(columns, schema=SHARD_SCHEMA), path)
    with pytest.raises(
        GenselectError, match=r"bad.parquet, row 1 \(from 0\), column problem: not UTF-8: invalid start"
    ):
        merge_shards([path], tmp_path / "out" / "m.jsonl", tmp_path / "out" / "s.json")
    assert list((tmp_path / "out").iterdir()) == []


BOXES = st.lists(
    st.sampled_from(["\\boxed{", "\\boxed", "\\fbox{", "{", "}", "\\}", "\\\\", "\\", "1", " ", "x"]), max_size=14
)


@given(BOXES.map("".join))
def test_looking_at_the_end_first_finds_the_same_box(text):
    assert last_boxed(text) == extract_boxed(text)


# --- the program ----------------------------------------------------------------------------------------------------------


def test_the_program_takes_types_from_the_configuration(script, tmp_path):
    write_shard(tmp_path / "a.parquet", [row(), row("no?", problem_type="no_answer_extracted")])
    config = tmp_path / "c.yaml"
    config.write_text("dataset: {name: omr, source: generated, problem_types: [no_answer_extracted]}\n")
    files = ["--shards", tmp_path, "--output", tmp_path / "m.jsonl", "--stats", tmp_path / "s.json"]
    done = script("merge_candidates", *files, "--config", config)
    assert done.returncode == 0, done.stderr
    assert [problem.problem for problem in read_problems(tmp_path / "m.jsonl")] == ["no?"]
    assert "1 problems, 2 distinct candidates, from 1 of 2 rows" in done.stderr


def test_the_program_tells_a_user_what_to_mend(script, tmp_path):
    files = ["--shards", tmp_path / "none", "--output", tmp_path / "m.jsonl", "--stats", tmp_path / "s.json"]
    done = script("merge_candidates", *files)
    assert done.returncode == 2
    assert "there is no such file or folder\nHint: Download the shards first" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_disk_is_named_and_nothing_is_left(repository, tmp_path):
    texts = [f"{index} " + "x" * 4000 + " \\boxed{1}" for index in range(1500)]
    write_shard(tmp_path / "in" / "a.parquet", [row(f"p{i}?", texts[i : i + 3]) for i in range(0, 1500, 3)])
    out = tmp_path / "out"
    # A file size limit of 4 MB stands in for a full disk; ignoring SIGXFSZ turns it into an OSError, as a full disk is.
    limit = "import resource, signal, sys, runpy; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (4_000_000, 4_000_000)); sys.argv = sys.argv[1:];"
    limit += "runpy.run_path(sys.argv[0], run_name='__main__')"
    arguments = ["--shards", tmp_path / "in", "--output", out / "m.jsonl", "--stats", out / "s.json"]
    command = [
        sys.executable,
        "-c",
        limit,
        str(repository / "workflow/scripts/merge_candidates.py"),
        *map(str, arguments),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "could not be written: the file size limit is reached\nHint: Free space" in done.stderr
    assert list(out.iterdir()) == []


PEAK = """
import resource, sys
from genselect.dataset.merge import merge_shards
merge_shards([sys.argv[1]], sys.argv[1] + "/m.jsonl", sys.argv[1] + "/s.json", workers=1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_with_rows_that_repeat_candidates(tmp_path):
    texts = [f"{index} " + "step " * 300 + "\\boxed{1}" for index in range(40)]
    rows = [row(f"p{i}?", texts[i : i + 8]) for i in range(32)] * 32

    def peak_mb(shards):
        folder = tmp_path / str(shards)
        for index in range(shards):
            write_shard(folder / f"{index}.parquet", [*rows, row(f"own {index}")], row_group_size=256)
        done = subprocess.run([sys.executable, "-c", PEAK, str(folder)], capture_output=True, text=True, check=True)
        return int(done.stdout) / 1024

    few, many = peak_mb(3), peak_mb(12)
    # Nine more shards are 110 MB of prompts.
    assert many - few < 25, f"{few:.0f} MB for 3 shards, {many:.0f} MB for 12"


# --- the shared sample ----------------------------------------------------------------------------------------------------


@pytest.fixture
def sample(shared):
    return shared / "data" / "genselect_sample"


def test_every_candidate_set_of_the_sample_is_exact(sample, tmp_path):
    stats = merge_shards([sample / "data"], tmp_path / "m.jsonl", tmp_path / "s.json")
    wanted = {}
    for line in (sample / "labels.jsonl").read_text(encoding="utf-8").splitlines():
        values = json.loads(line)
        if values["problem_type"] == "has_answer_extracted":
            hashes = {candidate["sha256"] for candidate in values["candidates"]}
            wanted[values["problem"]] = (values["expected_answer"], hashes)
    got = {}
    for problem in read_problems(tmp_path / "m.jsonl"):
        hashes = [hashlib.sha256(candidate.text.encode()).hexdigest() for candidate in problem.candidates]
        assert len(set(hashes)) == len(hashes)
        got[problem.problem] = (problem.answer, set(hashes))
    assert got == wanted
    assert len(got) == 795
    assert stats["rows_refused"] == 0
    assert set(stats["rows_dropped_by_problem_type"]) == {"converted_proof", "no_answer_extracted"}


def test_two_runs_over_the_sample_give_the_same_bytes(sample, tmp_path):
    def run(name, **options):
        merge_shards([sample / "data"], tmp_path / name / "m.jsonl", tmp_path / name / "s.json", **options)
        return [(tmp_path / name / file).read_bytes() for file in ("m.jsonl", "m.judgments.jsonl", "s.json")]

    assert run("a") == run("b") == run("c", workers=3)
