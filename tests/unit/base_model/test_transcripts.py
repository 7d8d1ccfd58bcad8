"""What the warm start learns from: the right distribution, nothing of the held-out set, and a loss on the policy's tokens."""

from __future__ import annotations

import itertools
import random

import pytest

from genselect.answers import extract_boxed
from genselect.base_model import problems
from genselect.base_model.calls import EXPLORE, submit_call
from genselect.base_model.transcripts import batches, transcripts
from genselect.dataset.miniature import generate_problems
from genselect.episode import NONE_LEFT, TOOLS
from genselect.errors import GenselectError


@pytest.fixture(scope="module")
def shards():
    return problems.shard_statements(1, 320)


def test_rows_have_the_shards_distribution():
    rows = problems.evaluation_rows(3, 1500, [])
    of_shards = [problem for problem in generate_problems(1, 1000) if problem.kind == "integer"]
    passing = {
        truth: sum(
            candidate.passes for problem in of_shards for candidate in problem.candidates if candidate.correct is truth
        )
        / sum(candidate.correct is truth for problem in of_shards for candidate in problem.candidates)
        for truth in (True, False)
    }
    for truth, share in passing.items():
        judged = [
            passes
            for row in rows
            for candidate, passes in zip(row.candidates, row.passes, strict=True)
            if candidate.is_correct is truth
        ]
        assert sum(judged) / len(judged) == pytest.approx(share, abs=0.02)
    assert problems.mean_candidate_accuracy(rows) == pytest.approx(0.5, abs=0.03)
    assert problems.majority_accuracy(rows) == pytest.approx(0.6, abs=0.05)
    assert problems.first_pass_accuracy(rows) > 0.85


def test_a_row_is_eight_candidates_with_their_truth_and_check(rows):
    for row in rows:
        assert len(row.candidates) == 8
        assert row.answer in map(str, range(100))
        assert 1 <= sum(candidate.is_correct for candidate in row.candidates) <= 7
        for candidate, passes in zip(row.candidates, row.passes, strict=True):
            assert candidate.answer == extract_boxed(candidate.reasoning)
            assert candidate.is_correct == (candidate.answer == row.answer)
            assert candidate.reasoning.endswith("check: pass" if passes else "check: fail")


def test_no_problem_of_the_shards_is_trained_on_or_evaluated_on(shards):
    evaluated = problems.evaluation_rows(1, 128, shards)
    away = [*shards, *(row.statement for row in evaluated)]
    trained = list(itertools.islice(problems.training_rows(1, away), 6000))
    asked = {problems.asks(statement) for statement in shards}
    held = {problems.asks(row.statement) for row in evaluated}
    seen = {problems.asks(row.statement) for row in trained}
    assert not asked & held
    assert not (asked | held) & seen


def test_a_drawn_problem_that_the_shards_hold_is_left_out():
    first = next(problems.training_rows(1, []))
    reworded = f"now find {first.statement.removeprefix('find the ').removeprefix('now find ')}"
    kept = itertools.islice(problems.training_rows(1, [reworded]), 200)
    assert problems.asks(first.statement) not in {problems.asks(row.statement) for row in kept}


def test_streams_of_rows_do_not_meet():
    streams = [[row.statement for row in itertools.islice(problems.training_rows(seed, []), 50)] for seed in (1, 2)] + [
        [row.statement for row in problems.evaluation_rows(seed, 50, [])] for seed in (1, 2)
    ]
    for one, two in itertools.combinations(streams, 2):
        assert len(set(one) & set(two)) < 3


def test_shards_may_not_take_the_base_models_seeds():
    with pytest.raises(GenselectError, match=r"dataset.generated.seed is 1000000000007"):
        problems.shard_statements(10**12 + 7, 10)


def test_the_policys_tokens_are_its_turns_and_nothing_else(tokenizer, writer, rows):
    row = rows[0]
    transcript = writer.plain(row, 3, random.Random(1))
    pieces = [
        (policy, tokenizer.decode([token for token, _ in group]))
        for policy, group in itertools.groupby(
            zip(transcript.ids, transcript.policy, strict=True), key=lambda pair: pair[1]
        )
    ]
    written = [text for policy, text in pieces if policy]
    notes = [f"{'pass' if row.passes[k] else 'fail'} {row.candidates[k].answer}\n\n" for k in range(3)]
    assert written[:3] == [f"{note}{EXPLORE}<|im_end|>" for note in ["", *notes[:2]]]
    answers = {submit_call(candidate.answer) for candidate in row.candidates[:3]}
    assert written[3].removeprefix(notes[2]).removesuffix("<|im_end|>") in answers
    read = [text for policy, text in pieces if not policy]
    assert [row.candidates[k].reasoning in read[k + 1] for k in range(3)] == [True] * 3
    assert len(read) == 4
    assert tokenizer.decode(transcript.ids[: transcript.first_response_end]).count("\\boxed") == 1


@pytest.mark.parametrize("careful", [True, False])
def test_a_transcript_is_what_the_chat_template_writes(tokenizer, writer, rows, careful):
    for row in rows[:10]:
        transcript = writer.careful(row) if careful else writer.plain(row, 8, random.Random(2))
        explores = sum(
            transcript.ids[at : at + 1] == tokenizer.encode("<tool_response>") for at in range(len(transcript.ids))
        )
        messages = writer.prompts.messages(row.statement, careful=careful)
        note = ""
        for candidate, passes in list(zip(row.candidates, row.passes, strict=True))[:explores]:
            call = {"type": "function", "function": {"name": "explore", "arguments": "{}"}}
            messages += [
                {"role": "assistant", "content": note, "tool_calls": [call]},
                {"role": "tool", "content": candidate.reasoning},
            ]
            note = f"{'pass' if passes else 'fail'} {candidate.answer}"
        told = tokenizer.apply_chat_template(messages, tools=list(TOOLS), add_generation_prompt=True, tokenize=False)
        text = tokenizer.decode(transcript.ids)
        assert text.startswith(told + note + "\n\n<tool_call>\n<function=submit>")


def test_the_careful_policy_submits_the_first_passing_answer(tokenizer, writer, rows):
    for row in rows:
        text = tokenizer.decode(writer.careful(row).ids)
        last = problems.first_pass(row)
        assert text.count("check: ") == last + 1
        assert (NONE_LEFT in text) == (not any(row.passes))
        assert submit_call(row.candidates[last].answer) in text
        assert "\n\ncheck<|im_end|>" in text


def test_a_policy_that_asks_once_too_often_reads_so_and_submits(tokenizer, writer, rows):
    row = rows[0]
    text = tokenizer.decode(writer.plain(row, 9, random.Random(1)).ids)
    assert text.count("check: ") == 8
    after = text.partition(NONE_LEFT)[2]
    note = f"{'pass' if row.passes[7] else 'fail'} {row.candidates[7].answer}"
    assert after.startswith(
        f"\n</tool_response><|im_end|>\n<|im_start|>assistant\n{note}\n\n<tool_call>\n<function=submit>"
    )


def test_the_plain_policy_is_as_good_as_a_candidate(tokenizer, writer):
    rng = random.Random(4)
    rows = problems.evaluation_rows(5, 600, [])
    texts = [tokenizer.decode(writer.plain(row, rng.randrange(1, 9), rng).ids) for row in rows]
    right = sum(submit_call(row.answer) in text for row, text in zip(rows, texts, strict=True))
    assert right / len(rows) == pytest.approx(0.5, abs=0.06)
    assert all("\n\nsolve<|im_end|>" in text for text in texts)


@pytest.mark.parametrize("most_explores", [1, 2, 8])
def test_the_mixture_keeps_its_share_and_its_limit(tokenizer, writer, most_explores):
    source = transcripts(
        writer, problems.training_rows(9, []), random.Random(3), careful_share=0.4, most_explores=most_explores
    )
    texts = [tokenizer.decode(transcript.ids) for transcript in itertools.islice(source, 400)]
    assert max(text.count("<tool_response>") for text in texts) == most_explores + (most_explores == 8)
    assert max(text.count("check: ") for text in texts) == most_explores
    assert sum("\n\ncheck<|im_end|>" in text for text in texts) / 400 == pytest.approx(0.4, abs=0.08)


def test_batches_fill_their_tokens_and_lose_nothing(writer):
    made = []

    def source():
        rng = random.Random(6)
        for transcript in transcripts(writer, problems.training_rows(1, []), rng, careful_share=0.5, most_explores=8):
            made.append(transcript)
            yield transcript

    taken = list(itertools.islice(batches(source(), random.Random(0), 2000), 5))
    assert all(len(batch) * max(len(each.ids) for each in batch) <= 2000 for batch in taken)
    padding = 1 - sum(len(t.ids) for b in taken for t in b) / sum(len(b) * max(len(t.ids) for t in b) for b in taken)
    assert padding < 0.25
    identities = [id(transcript) for batch in taken for transcript in batch]
    assert len(set(identities)) == len(identities)
    assert set(identities) <= set(map(id, made))
