"""Taking GenSelect prompts apart."""

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genselect.dataset.miniature import render_prompt
from genselect.dataset.prompt import (
    ParsedPrompt,
    Refusal,
    parse_judgment,
    parse_prompt,
    regular_problem,
    split_batch,
    split_prompt,
)
from genselect.dataset.shards import string_buffers

A, B, C = "two and two\n\\boxed{4}", "three\n\\boxed{3}", "I add\n\n\\boxed{5}"


def prompt(problem, solutions, **changes):
    text = render_prompt(problem, solutions)
    for old, new in changes.get("replace", []):
        assert old in text
        text = text.replace(old, new)
    return text


def numbered(headers_and_texts, count):
    """A prompt whose headers are as given."""
    body = "\n\n".join(f"Solution {number}:\n{text}" for number, text in headers_and_texts)
    whole = render_prompt("2+2?", ["@"] * count)
    return whole.replace("\n\n".join(["Solution 0:\n@"] * count), body)


def test_problem_and_solutions_are_found_after_your_task():
    parsed = parse_prompt(prompt("How much is\n\n2 + 2?", [A, B]))
    assert parsed == ParsedPrompt("How much is\n\n2 + 2?", (A, B), (0, 1))


def test_sixteen_solutions():
    texts = [f"way {index}: \\boxed{{{index}}}" for index in range(16)]
    assert parse_prompt(prompt("p?", texts)).solutions == tuple(texts)


def test_more_solutions_than_the_short_cut_knows():
    texts = [f"way {index}: \\boxed{{{index}}}" for index in range(40)]
    assert parse_prompt(prompt("p?", texts)) == ParsedPrompt("p?", tuple(texts), tuple(range(40)))


def test_equal_texts_carry_the_first_number_and_are_split_by_position():
    text = prompt("p?", [A, B, A, B])
    assert "Solution 2:" not in text
    assert parse_prompt(text) == ParsedPrompt("p?", (A, B, A, B), (0, 1, 0, 1))


def test_the_text_may_begin_on_the_header_line():
    text = prompt("p?", [A, B], replace=[("Solution 0:\n", "Solution 0: "), ("Solution 1:\n", "Solution 1: ")])
    assert parse_prompt(text).solutions == (A, B)


def test_a_problem_on_its_own_lines_and_looser_spacing():
    text = prompt("p?", [A, B], replace=[("Problem: p?\n\nSolutions:\n", "Problem:\n\np?\nSolutions:\n\n")])
    assert parse_prompt(text) == ParsedPrompt("p?", (A, B), (0, 1))


def test_a_problem_that_speaks_of_solutions():
    problem = "Solutions:\nhow many does x = x + 1 have?\nSolution 0: is not one."
    assert parse_prompt(prompt(problem, [A, B])).problem == problem


def test_a_solution_that_speaks_of_the_evaluation_process():
    talks = "I follow the\nEvaluation Process:\nfirst, \\boxed{4}"
    assert parse_prompt(prompt("p?", [talks, B])).solutions == (talks, B)
    assert parse_prompt(prompt("p?", [B, talks])).solutions == (B, talks)


def test_a_prompt_converted_to_crlf_gives_the_same_candidates():
    text = prompt("p\nq?", [A, C])
    assert parse_prompt(text.replace("\n", "\r\n")) == parse_prompt(text)


def test_crlf_inside_one_solution_stays():
    mixed = "a\r\nb \\boxed{1}"
    assert parse_prompt(prompt("p?", [mixed, B])).solutions == (mixed, B)


def test_white_space_at_the_ends_is_not_part_of_a_solution_but_unicode_spaces_are():
    parsed = parse_prompt(prompt("p?", [f"  \t{A}\n\n\n", f"\u00a0{B}\u3000"]))
    assert parsed.solutions == (A, f"\u00a0{B}\u3000")


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("number", [0, 1, 2, 3, 7])
def test_a_decoy_header_inside_a_solution(position, number):
    decoy = f"compare with\nSolution {number}:\nwhich is close\n\\boxed{{9}}"
    texts = [A, B, C]
    texts[position] = decoy
    assert parse_prompt(prompt("p?", texts)).solutions == tuple(texts)


def test_decoys_of_every_kind_at_once():
    texts = ["x\nSolution 1: no\n\\boxed{1}", "Solution 2:\nSolution 0:\n\\boxed{2}", "\\boxed{3}\nSolution 1:"]
    assert parse_prompt(prompt("p?", texts)).solutions == tuple(texts)


def test_a_decoy_after_a_blank_line_is_told_by_the_boxes():
    texts = ["first\n\nSolution 1:\nsecond \\boxed{7}", B]
    assert parse_prompt(prompt("p?", texts)).solutions == tuple(texts)


def test_a_decoy_that_reads_like_a_real_header_is_refused():
    # Two places for the header of solution 1, each giving two texts of one box after a blank line.
    text = prompt("p?", [A, "first\n\nSolution 1:\nsecond \\boxed{7}"])
    assert parse_prompt(text) is Refusal.AMBIGUOUS


def test_a_prompt_full_of_decoys_is_given_up_in_bounded_time():
    texts = ["\n\n".join(f"Solution {index}:\nx" for index in range(12)) for _ in range(14)]
    texts = [f"{text} {index} \\boxed{{1}}" for index, text in enumerate(texts)]
    assert isinstance(parse_prompt(prompt("p?", texts)), Refusal)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("YOUR TASK", "TO DO", Refusal.NO_ANCHOR),
        ("followed by 2 solutions", "followed by solutions", Refusal.NO_COUNT),
        ("TASK\n\nProblem: p?", "TASK\n\nQuestion: p?", Refusal.NO_PROBLEM),
        ("TASK\n\nProblem: p?", "TASK\n\nProblem:", Refusal.NO_PROBLEM),
        ("p?\n\nSolutions:", "p?\n\nAnswers:", Refusal.NO_SOLUTIONS),
        ("\n\nEvaluation Process:", "\n\nWhat to do:", Refusal.NO_TAIL),
        ("followed by 2 solutions", "followed by 3 solutions", Refusal.COUNT_DISAGREES),
        ("followed by 2 solutions", "followed by 1 solutions", Refusal.COUNT_DISAGREES),
        ("followed by 2 solutions", "followed by 0 solutions", Refusal.COUNT_DISAGREES),
        (A, " ", Refusal.EMPTY_SOLUTION),
        ("Solution 1:", "Solution 0:", Refusal.NUMBERS_DISAGREE),
        ("Solution 1:", "Solution 01:", Refusal.COUNT_DISAGREES),
    ],
)
def test_what_is_refused(old, new, reason):
    assert parse_prompt(prompt("p?", [A, B], replace=[(old, new)])) is reason


def test_a_number_beyond_its_position_is_refused():
    assert parse_prompt(numbered([(0, A), (2, B), (1, C)], 3)) is Refusal.NUMBERS_DISAGREE


def test_a_repeated_number_before_another_text_is_refused():
    assert parse_prompt(numbered([(0, A), (1, B), (1, C)], 3)) is Refusal.NUMBERS_DISAGREE


@pytest.mark.parametrize("text", ["", "YOUR TASK", "YOUR TASK\n\nProblem: x", "\nEvaluation Process:", "Solution 0:\n"])
def test_fragments_are_refused(text):
    assert isinstance(parse_prompt(text), Refusal)


LINES = st.sampled_from(
    ["so", "Solution 0:", "Solution 1:", "Solution 2: as said", "Solution 12:", "Solution:", "", "x = 1", "Solutions:"]
)


@st.composite
def solutions(draw):
    """Texts as upstream made them: one box each, decoy lines not after a blank one, some equal."""
    made = []
    for _ in range(draw(st.integers(2, 6))):
        lines = draw(st.lists(LINES, max_size=4))
        lines.insert(draw(st.integers(0, len(lines))), f"\\boxed{{{draw(st.integers(0, 3))}}}")
        text = "\n".join(line for line in lines if line)
        # A text that begins with a header-like line would follow its own header's line.
        made.append("I say\n" + text)
    return made + draw(st.lists(st.sampled_from(made), max_size=2))


@settings(max_examples=400, deadline=None)
@given(solutions(), st.integers(0, 10**6))
def test_what_is_rendered_is_what_is_parsed(texts, seed):
    random.Random(seed).shuffle(texts)
    parsed = parse_prompt(prompt("What is x?", texts))
    assert parsed == ParsedPrompt("What is x?", tuple(texts), tuple(texts.index(text) for text in texts))


def short_cut(prompts):
    """What the merge's short cut finds in each prompt, None where it leaves it to split_prompt."""
    data, offsets = string_buffers(pa.array(prompts))
    split = split_batch(data, offsets)
    found = []
    for row, head in enumerate(split.heads):
        begin, end = split.first[row], split.first[row + 1]
        problem = regular_problem(bytes(data[offsets[row] : head]), end - begin) if head >= 0 else None
        spans = zip(split.starts[begin:end], split.ends[begin:end], strict=True)
        found.append(None if problem is None else (problem, [bytes(data[start:stop]) for start, stop in spans]))
    return found


DAMAGE = st.sampled_from(
    [
        ("", ""),
        ("YOUR TASK", "YOUR"),
        ("Evaluation Process:", "Evaluation"),
        ("Solutions:\n", "Solutions: "),
        ("\n\nSolution 1:", " Solution 1:"),
        ("Solution 1:", "Solution 0:"),
        ("Solution 2:", "Solution 2."),
        ("Solution 1:\n", "Solution 1: \t\n\n"),
        ("\n", "\r\n"),
        ("followed by 3", "followed by 4"),
        ("Here is", "Solution 0:\nYOUR TASK\nHere is"),
        ("Close with", "Solution 9:\nClose with\nEvaluation Process:"),
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(solutions(), DAMAGE, DAMAGE), min_size=1, max_size=5))
def test_the_short_cut_of_the_merge_finds_what_the_definition_does(made):
    prompts = [""]
    for texts, (old, new), (other, another) in made:
        prompts.append(prompt("What is é?", texts).replace(old or "\0", new).replace(other or "\0", another))
    for text, found in zip(prompts, short_cut(prompts), strict=True):
        wanted = split_prompt(text.encode())
        assert found is None or found == (wanted.problem, wanted.solutions)


def test_the_short_cut_is_taken_for_regular_prompts():
    texts = [f"way {index}:\nSolution of\n\n \\boxed{{{index}}} \n" for index in range(12)]
    prompts = [prompt("p?", texts), "", prompt("q?", [A, B, A]), prompt("r?", [A, B, C])]
    found = short_cut(prompts)
    assert found[0] == (b"p?", [text.strip().encode() for text in texts])
    assert found[1:3] == [None, None]
    assert found[3] == (b"r?", [text.encode() for text in (A, B, C)])


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="\n :0123SolutionProblemYOUR TASKEvaluation Process\\boxed{}", max_size=300))
def test_no_text_makes_it_fail(text):
    for candidate in (text, prompt("p?", [A, text or "x"]), prompt(text or "x", [A, B])):
        assert isinstance(parse_prompt(candidate), ParsedPrompt | Refusal)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so\n\nJudgment: 3", 3),
        ("Judgement: 0", 0),
        ("Judgment: 1, no wait\nJudgment: 12", 12),
        ("Judgment: 2\n\nJudgment: none", 2),
        ("Judgment:\n4", 4),
        ("Judgment: [IDX]", None),
        ("my judgment is 2", None),
        ("Judgment: 12345", None),
        ("", None),
    ],
)
def test_judgments(text, number):
    assert parse_judgment(text) == number
