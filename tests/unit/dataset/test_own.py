"""A dataset of one's own: what comes out of the merge is what went in, and what does not fit is refused with a way out."""

import json
import random

import orjson
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from genselect.dataset.merge import judgments_path, merge_shards
from genselect.dataset.own import make_own_shards
from genselect.errors import GenselectError
from genselect.formats import read_json, read_jsonl, read_problems

A, B, C = "two and two\n\\boxed{4}", "three\n\\boxed{3}", "I add\n\n\\boxed{5}"
ROW = {"problem": "2+2?", "answer": "4", "candidates": [A, B]}
WHITE = " \t\n\r\x0b\x0c"


def write(path, rows):
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def long_form(rows):
    for row in rows:
        rest = {name: value for name, value in row.items() if name != "candidates"}
        for text in row["candidates"]:
            yield rest | {"candidate": text}


def merged(folder, shards):
    output = folder / "merged.jsonl"
    stats = merge_shards([shards], output, folder / "merge_stats.json")
    return list(read_problems(output)), stats


def error_of(tmp_path, rows, name="mine.jsonl", **options):
    with pytest.raises(GenselectError) as caught:
        make_own_shards(write(tmp_path / name, rows), tmp_path / "shards", **options)
    assert not list(tmp_path.glob("shards/*")), "something was left"
    return str(caught.value)


def shard_bytes(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.parquet")}


# --- what comes out is what went in -------------------------------------------------------------------------------------


def test_every_problem_and_candidate_comes_back_in_order(tmp_path):
    rows = [
        ROW | {"source": "contest", "pass_rate": 0.25},
        {"problem": "3+3?", "answer": "6", "candidates": [f"way {n} \\boxed{{{n}}}" for n in range(40)]},
        {"problem": "\n 1+1? ", "answer": " 2 ", "candidates": [f"  {A}\n\n", B]},
    ]
    counts = make_own_shards(write(tmp_path / "mine.jsonl", rows), tmp_path / "shards", shards=3)
    assert counts["prompts"] == 5  # forty candidates take three prompts of sixteen at most
    problems, stats = merged(tmp_path, tmp_path / "shards")
    assert [p.problem for p in problems] == ["2+2?", "3+3?", "1+1?"]
    assert [p.answer for p in problems] == ["4", "6", "2"]
    assert [c.text for c in problems[1].candidates] == rows[1]["candidates"]
    assert [c.text for c in problems[2].candidates] == [A, B]
    assert [(p.problem_source, p.pass_rate_72b_tir) for p in problems[:2]] == [("contest", "0.25"), ("own", "n/a")]
    assert stats["rows_refused"] == 0
    assert [shard["rows"] for shard in stats["shards"]] == [1, 2, 2]


# Lines that the prompt's own frame is made of, among them those that pose as the next solution.
FRAME = ["Solution 0:", "Solution 1:", "Solution 2: x", "Solutions:", "Problem: q", "YOUR TASK", "Evaluation Process:"]
OTHERS = [
    "followed by 3 solutions",
    "Judgment: 1",
    "{count} {",
    "\\boxed{5}",
    "",
    "x",
    "\r",
    "\u00a0é∑",
    "a\r\nb",
    "\x0b",
]
LINES = st.sampled_from(FRAME + OTHERS)
TEXTS = st.one_of(
    st.lists(LINES, min_size=1, max_size=7).map("\n".join),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30),
).filter(lambda text: text.strip())


@given(
    problems=st.dictionaries(
        TEXTS.map(lambda text: text.strip(WHITE)), st.lists(TEXTS, min_size=1, max_size=6), min_size=1, max_size=3
    ),
    per_prompt=st.integers(1, 4),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_odd_texts_come_back_exactly_or_are_refused_by_place(tmp_path_factory, problems, per_prompt):
    folder = tmp_path_factory.mktemp("odd")
    rows = [{"problem": problem, "answer": "1", "candidates": texts} for problem, texts in problems.items()]
    try:
        make_own_shards(write(folder / "mine.jsonl", rows), folder / "shards", per_prompt=per_prompt)
    except GenselectError as error:
        refused = str(error)
    else:
        refused = ""
    event("refused" if refused else "written")
    if refused:
        assert "cannot be told from the prompt around it" in refused
        assert not list(folder.glob("shards/*"))
        return
    found, stats = merged(folder, folder / "shards")
    assert stats["rows_refused"] == 0
    wanted = {problem: list(dict.fromkeys(text.strip(WHITE) for text in texts)) for problem, texts in problems.items()}
    assert {problem.problem: [c.text for c in problem.candidates] for problem in found} == wanted
    assert [problem.problem for problem in found] == list(wanted)


def test_a_line_that_looks_like_a_header_is_no_obstacle_while_one_box_tells(tmp_path):
    decoys = [A, "first\n\nSolution 1:\nsecond \\boxed{7}", B]
    make_own_shards(write(tmp_path / "mine.jsonl", [ROW | {"candidates": decoys}]), tmp_path / "shards")
    problems, _ = merged(tmp_path, tmp_path / "shards")
    assert [c.text for c in problems[0].candidates] == decoys


def test_the_long_form_gives_the_same_bytes(tmp_path):
    rows = [ROW, ROW | {"problem": "3?", "answer": "3", "candidates": [A, B, C, A]}]
    make_own_shards(write(tmp_path / "wide.jsonl", rows), tmp_path / "wide")
    make_own_shards(write(tmp_path / "long.jsonl", long_form(rows)), tmp_path / "long")
    assert shard_bytes(tmp_path / "wide") == shard_bytes(tmp_path / "long")


def test_a_shuffled_long_form_gives_the_same_problems(tmp_path, caplog):
    rows = [{"problem": f"{n}?", "answer": str(n), "candidates": [A, B, C]} for n in range(5)]
    shuffled = list(long_form(rows))
    random.Random(1).shuffle(shuffled)
    make_own_shards(write(tmp_path / "long.jsonl", shuffled), tmp_path / "shards")
    problems, _ = merged(tmp_path, tmp_path / "shards")
    assert {p.problem: (p.answer, {c.text for c in p.candidates}) for p in problems} == {
        row["problem"]: (row["answer"], {A, B, C}) for row in rows
    }
    assert "come again further down" in caplog.text


@pytest.mark.parametrize("form", [list, long_form])
def test_parquet_gives_the_same_bytes_as_json_lines(tmp_path, form):
    rows = list(form([ROW | {"source": None}, ROW | {"problem": "3?", "source": "contest"}]))
    pd.DataFrame(rows).to_parquet(tmp_path / "mine.parquet")
    make_own_shards(tmp_path / "mine.parquet", tmp_path / "one")
    make_own_shards(write(tmp_path / "mine.jsonl", rows), tmp_path / "two")
    assert shard_bytes(tmp_path / "one") == shard_bytes(tmp_path / "two")


def test_the_same_input_gives_the_same_bytes_and_may_be_written_again(tmp_path):
    path = write(tmp_path / "mine.jsonl", [ROW | {"problem": f"{n}?"} for n in range(600)])
    make_own_shards(path, tmp_path / "one", shards=2)
    before = shard_bytes(tmp_path / "one")
    make_own_shards(path, tmp_path / "one", shards=2)
    make_own_shards(path, tmp_path / "two", shards=2)
    assert before == shard_bytes(tmp_path / "one") == shard_bytes(tmp_path / "two")
    assert set(before) == {"own-00000-of-00002.parquet", "own-00001-of-00002.parquet"}


def test_no_judgment_is_claimed(tmp_path):
    make_own_shards(write(tmp_path / "mine.jsonl", [ROW, ROW | {"problem": "3?"}]), tmp_path / "shards")
    _, stats = merged(tmp_path, tmp_path / "shards")
    assert stats["judgments"] == {"rows_that_select": 0, "rows_unreadable": 2}
    lines = [row for _, row in read_jsonl(judgments_path(tmp_path / "merged.jsonl"))]
    assert [(line["selected"], line["unreadable"]) for line in lines] == [({}, 1), ({}, 1)]


def test_what_deserves_a_look_is_counted_with_the_first_place(tmp_path, caplog):
    rows = [
        ROW | {"candidates": [A, f" {A} ", "no box", "\\boxed{ }"]},
        ROW | {"problem": "3?", "candidates": [C]},
        ROW,
    ]
    counts = make_own_shards(write(tmp_path / "mine.jsonl", rows), tmp_path / "shards")
    assert (counts["problems"], counts["candidates"]) == (2, 5)
    assert (counts["duplicates"], counts["without_box"], counts["too_few"]) == (2, 2, 2)
    assert "2 candidates repeat another one" in caplog.text
    assert "mine.jsonl, line 1, column candidates, item 1 (from 0)" in caplog.text
    assert "2 candidates have no answer in \\boxed{}" in caplog.text
    assert "1 problems come again further down" in caplog.text
    assert "2 problems have fewer than 8 distinct candidates" in caplog.text


def test_nothing_is_said_when_all_is_well(tmp_path, caplog):
    rows = [ROW | {"candidates": [f"way {n} \\boxed{{{n}}}" for n in range(8)]}]
    make_own_shards(write(tmp_path / "mine.jsonl", rows), tmp_path / "shards")
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


# --- what is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        ({"problm": "x"}, "line 2: column problm is not known", "Did you mean problem?"),
        ({"label": 1}, "line 2: column label is not known", "There are: problem, answer"),
        ({"problem": None}, "line 2, column problem: must be a string, not null", "Fill it in"),
        ({"problem": " \u3000"}, "line 2, column problem: is empty", "Fill it in"),
        ({"answer": 5}, "line 2, column answer: must be a string, not a number", 'Write it in quotes: "5".'),
        ({"answer": ""}, "line 2, column answer: is empty", "Fill it in"),
        ({"candidates": A}, "column candidates: must be a list of strings, not a string", "candidate"),
        ({"candidates": None}, "column candidates: must be a list of strings, not null", "Write ["),
        ({"candidates": []}, "line 2, column candidates: the list is empty", "Leave the problem out"),
        ({"candidates": [A, "\n"]}, "line 2, column candidates, item 1 (from 0): is empty", "Fill it in"),
        ({"candidates": [A, {"text": B}]}, "item 1 (from 0): must be a string, not an object", "Fill it in"),
        ({"candidate": A}, "line 2: columns candidates and candidate are both here", "a row a problem"),
        ({"source": True}, "line 2, column source: must be a string, not true or false", "Fill it in"),
        ({"pass_rate": 43}, "line 2, column pass_rate: must be from 0 to 1, not 43", "share of right"),
        ({"pass_rate": [1]}, "line 2, column pass_rate: must be a string, not a list", "Fill it in"),
    ],
)
def test_a_row_that_does_not_fit(tmp_path, change, message, hint):
    text = error_of(tmp_path, [ROW, ROW | {"problem": "3?"} | change])
    assert str(tmp_path / "mine.jsonl") in text
    assert message in text.partition("\nHint: ")[0]
    assert hint in text.partition("\nHint: ")[2]


@pytest.mark.parametrize("name", ["problem", "answer"])
def test_a_missing_column(tmp_path, name):
    row = {key: value for key, value in ROW.items() if key != name}
    assert f"mine.jsonl, line 1: column {name} is missing\nHint: Each row holds" in error_of(tmp_path, [row])


def test_no_candidates_column(tmp_path):
    text = error_of(tmp_path, [{"problem": "p?", "answer": "1"}])
    assert "mine.jsonl, line 1: columns candidates and candidate are both missing\nHint: Give candidates" in text


def test_two_forms_in_one_file(tmp_path):
    text = error_of(tmp_path, [ROW, *long_form([ROW])])
    assert "line 2: column candidate is here, and the lines before it have the column candidates\nHint: Use one" in text


def test_a_problem_with_two_answers(tmp_path):
    text = error_of(tmp_path, [ROW, ROW | {"problem": "3?"}, ROW | {"answer": "5", "problem": " 2+2?\n"}])
    assert "mine.jsonl, line 3, column answer: '5', but the same problem has the answer '4'" in text
    assert "mine.jsonl, line 1)\nHint: A problem is its statement" in text


def test_an_empty_file(tmp_path):
    assert "mine.jsonl: the file holds no row\nHint: Write a row a problem" in error_of(tmp_path, [])


def test_a_line_that_is_not_json(tmp_path):
    (tmp_path / "mine.jsonl").write_text(json.dumps(ROW) + '\n{"problem": "cut\n')
    with pytest.raises(GenselectError, match=r"mine.jsonl, line 2: not JSON"):
        make_own_shards(tmp_path / "mine.jsonl", tmp_path / "shards")


def test_another_kind_of_file(tmp_path):
    assert "mine.csv: neither a .jsonl nor a .parquet file\nHint: Write JSON lines" in error_of(
        tmp_path, [ROW], "mine.csv"
    )


@pytest.mark.parametrize("name", ["gone.jsonl", "gone.parquet"])
def test_a_missing_file(tmp_path, name):
    with pytest.raises(GenselectError, match=rf"{name}: there is no such file"):
        make_own_shards(tmp_path / name, tmp_path / "shards")


def test_parquet_that_does_not_fit(tmp_path):
    def error(table, name="mine.parquet"):
        pq.write_table(table, tmp_path / name)
        with pytest.raises(GenselectError) as caught:
            make_own_shards(tmp_path / name, tmp_path / "shards")
        return str(caught.value)

    columns = {"problem": ["p?", "q?"], "answer": ["1", None], "candidates": [[A], [B]]}
    assert "mine.parquet, row 1 (from 0), column answer: must be a string, not null" in error(pa.table(columns))
    text = error(pa.table({"problem": ["p?"], "answr": ["1"], "candidate": [A]}))
    assert "mine.parquet: column answr is not known\nHint: Did you mean answer?" in text
    bad = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff\xfe"]).buffers())
    text = error(pa.table({"problem": bad, "answer": ["1"], "candidate": [A]}))
    assert "mine.parquet, row 0 (from 0): a string is not UTF-8" in text
    doubled = pa.Table.from_arrays([pa.array(["x"])] * 4, names=["problem", "answer", "candidate", "problem"])
    assert "mine.parquet: there are two columns problem\nHint: Take one" in error(doubled)
    (tmp_path / "text.parquet").write_text("not Parquet")
    with pytest.raises(GenselectError, match=r"text.parquet: cannot be read as Parquet"):
        make_own_shards(tmp_path / "text.parquet", tmp_path / "shards")


def test_a_candidate_that_could_be_several_solutions(tmp_path):
    decoy = "first \\boxed{1}\n\nSolution 1:\nsecond \\boxed{7}"
    text = error_of(tmp_path, [ROW, ROW | {"problem": "3?", "candidates": [A, decoy, B]}])
    assert "mine.jsonl, line 2, column candidates, item 1 (from 0): the text cannot be told" in text
    assert "it holds the line 'Solution 1:', which looks like the header of a solution, and 2 boxes" in text
    assert "\nHint: Reword every such line" in text


def test_a_statement_that_could_be_the_frame(tmp_path):
    text = error_of(tmp_path, [ROW | {"problem": "what is\nSolutions:\nSolution 0: good for?"}])
    assert "mine.jsonl, line 1, column problem: the statement cannot be told" in text
    assert "\nHint: Reword one of the two lines" in text


def test_a_folder_that_holds_other_files(tmp_path):
    path = write(tmp_path / "mine.jsonl", [ROW, ROW | {"problem": "3?"}])
    make_own_shards(path, tmp_path / "shards")
    with pytest.raises(GenselectError, match=r"already holds other files \(own-00000-of-00001.parquet, own-"):
        make_own_shards(path, tmp_path / "shards", shards=2)
    with pytest.raises(GenselectError, match=r"already holds other files \(mine.jsonl, shards\)"):
        make_own_shards(path, tmp_path)
    with pytest.raises(GenselectError, match=r"mine.jsonl: is a file, not a folder"):
        make_own_shards(path, path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shards": 2}, "1 prompts do not fill 2 shards"),
        ({"shards": 0}, "0 shards cannot be written"),
        ({"per_prompt": 0}, "0 candidates in a prompt cannot be written"),
        ({"per_prompt": 101}, "--per-prompt takes 1 to 100"),
    ],
)
def test_numbers_that_do_not_fit(tmp_path, options, message):
    assert message in error_of(tmp_path, [ROW], **options)


# --- by the programs ----------------------------------------------------------------------------------------------------


def thirty_problems():
    rng = random.Random(1)
    for number in range(30):
        one, two = rng.randrange(10, 99), rng.randrange(10, 99)
        right = 1 + number % 7
        answers = [one + two] * right + [one + two + wrong for wrong in range(1, 10 - right)]
        texts = [f"Way {index}: I add and get \\boxed{{{answer}}}." for index, answer in enumerate(answers)]
        yield {"problem": f"Number {number}: what is {one} + {two}?", "answer": str(one + two), "candidates": texts}


def test_from_a_file_to_rows_by_the_programs(script, tmp_path):
    write(tmp_path / "mine.jsonl", thirty_problems())
    (tmp_path / "mine.yaml").write_text(
        "dataset: {name: mine, source: local, local_dir: shards}\njudge: {kind: rule, model: null, revision: null, shards: 1}\n"
        "build: {benchmark: mine, train_fraction: 0.6}\n"
    )
    for name, *arguments in (
        ("candidates_to_shards", "--candidates", "mine.jsonl", "--output-dir", "shards", "--shards", 2),
        ("merge_candidates", "--shards", "shards", "--output", "merged.jsonl", "--stats", "merge_stats.json"),
        ("label_candidates", "--merged", "merged.jsonl", "--config", "mine.yaml", "--journal", "journal",
         "--output", "labels.jsonl"),
        ("build_rows", "--merged", "merged.jsonl", "--labels", "labels.jsonl", "--config", "mine.yaml",
         "--output-dir", "rows"),
    ):  # fmt: skip
        done = script(name, *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    stats = read_json(tmp_path / "rows" / "stats.json")
    assert stats["problems_merged"] == 30
    assert stats["problems_kept"] >= 25
    assert stats["candidates_correct"] == sum(1 + number % 7 for number in range(30))
    assert stats["upstream_agreement"]["rows"] == stats["upstream_agreement"]["unreadable_judgment"] == 30
    row = pd.read_parquet(tmp_path / "rows" / "train.parquet").iloc[0]
    assert row["extra_info"]["benchmark"] == "mine"
    assert len(row["extra_info"]["cached_candidates"]) == 8


def test_the_program_says_what_is_wrong(script, tmp_path):
    done = script("candidates_to_shards", "--candidates", tmp_path / "gone.jsonl", "--output-dir", tmp_path / "shards")
    assert done.returncode == 2
    assert "gone.jsonl: there is no such file" in done.stderr
    assert "Hint:" in done.stderr
