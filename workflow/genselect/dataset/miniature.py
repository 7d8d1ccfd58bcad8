r"""The miniature's shards: small, generated, in the real schema and prompt form, with the traps of the real ones.

They are a positive control with a **planted signal**. A candidate ends with a self-check that passes for about nine in ten of
the right ones and one in ten of the wrong ones, while the majority of eight is right on only about 60 per cent of problems,
because wrong ones mostly share one wrong answer. So a policy that reads candidates can beat the vote, and a trainer under which
it does not is broken. Four problems in five have an integer answer from 0 to 99 and candidates of a few words, for a tiny
model to learn on; the others exercise fractions, decimals, tuples, surds, intervals and words in several notations.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from genselect.dataset.questions import OTHER_KINDS, Question, integer
from genselect.dataset.shards import SHARD_SCHEMA
from genselect.errors import GenselectError
from genselect.formats import atomic_path
from genselect.provenance import write_seal

__all__ = ["MiniCandidate", "MiniProblem", "generate_problems", "make_shards", "render_prompt"]

#: Share of problems whose answer is an integer from 0 to 99.
_INTEGER_SHARE = 0.8
_CANDIDATES = 10
#: Share of the wrong candidates that give the problem's common wrong answer (others may hit it by chance).
_COMMON_WRONG = 0.65
_PASSES_RIGHT, _PASSES_WRONG = 0.92, 0.08
#: Statements of the minority kinds are drawn again when this similar to an earlier one.
_TOO_CLOSE = 0.75

_WORDS = ("parts", "cases", "sums", "hand", "trial", "halves", "steps", "rows", "pairs", "signs", "tables", "rounds")

# Same structure as the publisher's frame, in words of our own.
_FRAME = r"""Here is a mathematics question followed by {count} solutions. Compare them and find the one to trust most.

What you will read:
Problem: the question
Solutions: the solutions, numbered 0-{last}, each with an answer in \boxed{{}}

YOUR TASK

Problem: {problem}

Solutions:
{solutions}

Evaluation Process:

1. Group the solutions by their answers.
2. Look for a step that does not hold in each.
3. Weigh what is left.

Close with this line:
Judgment: [IDX]
where IDX is one of 0-{last}."""


@dataclass(frozen=True, slots=True)
class MiniCandidate:
    """One generated candidate, with its truth."""

    text: str
    correct: bool
    passes: bool
    """What its self-check says."""


@dataclass(frozen=True, slots=True)
class MiniProblem:
    """One generated problem, with distinct candidates: one right and one wrong at least."""

    statement: str
    answer: str
    """As it stands in the shard: a few are wrapped in ``$`` or ``\\( \\)``."""
    kind: str
    """``integer``, ``fraction``, ``decimal``, ``tuple``, ``surd``, ``interval`` or ``text``."""
    pass_rate: str
    candidates: tuple[MiniCandidate, ...]


def render_prompt(problem: str, solutions: Sequence[str]) -> str:
    """A GenSelect prompt. As upstream, a solution's number is ``list.index`` of its text, so equal texts share one."""
    shown = "\n\n".join(f"Solution {solutions.index(text)}:\n{text}" for text in solutions)
    count = len(solutions)
    return _FRAME.format(count=count, last=count - 1, problem=problem, solutions=shown)


def generate_problems(seed: int, problems: int) -> list[MiniProblem]:
    """``problems`` problems with distinct statements. The first ones do not depend on how many are asked for."""
    made: list[MiniProblem] = []
    shingles: dict[str, list[set[str]]] = {}
    for index in range(problems):
        rng = random.Random(f"problem {seed} {index}")
        # One to seven right of eight, all equally often.
        of_eight = 1 + index % 7
        problem = _problem(rng, of_eight)
        while _close(problem, shingles.setdefault(problem.kind, [])):
            problem = _problem(rng, of_eight)
        shingles[problem.kind].append(_shingles(problem.statement))
        made.append(problem)
    return made


def make_shards(output: Path | str, seed: int = 1, problems: int = 320, shards: int = 4) -> list[Path]:
    """Write the shards into the folder ``output``, each with a seal. Same arguments, same bytes.

    Besides ``problems`` problems to keep there are about a tenth as many of the types that the merge drops, and a few rows
    that it refuses.

    Raises:
        GenselectError: ``output`` holds other shards, which a reader of the folder would take in.
    """
    started = datetime.datetime.now(datetime.UTC)
    output = Path(output)
    names = [f"genselect-{index:05d}-of-{shards:05d}.parquet" for index in range(shards)]
    strangers = sorted(path.name for path in output.glob("*.parquet") if path.name not in names)
    if strangers:
        raise GenselectError(
            f"{output}: already holds other shards ({', '.join(strangers[:3])}{', …' if strangers[3:] else ''})",
            "Name an empty folder, or remove them first.",
        )
    rows = _all_rows(seed, problems)
    if len(rows) < shards:
        raise GenselectError(f"{len(rows)} rows do not fill {shards} shards", "Ask for more problems or fewer shards.")
    paths = [output / name for name in names]
    for index, path in enumerate(paths):
        # Interleaved, so that a problem's rows lie in several shards.
        table = pa.Table.from_pylist(rows[index::shards], schema=SHARD_SCHEMA)
        with atomic_path(path) as temporary:
            pq.write_table(table, temporary, compression="snappy", row_group_size=256)
        write_seal(
            path,
            kind="shard",
            counts={"rows": table.num_rows},
            outputs=[path],
            inputs=[],
            started=started,
            config={"source": "generated", "seed": seed, "problems": problems, "shards": shards},
        )
    return paths


# --- problems -----------------------------------------------------------------------------------------------------------


def _shingles(statement: str) -> set[str]:
    return {statement[start : start + 5] for start in range(max(1, len(statement) - 4))}


def _close(problem: MiniProblem, earlier: list[set[str]]) -> bool:
    """Whether the statement is nearly one of the ``earlier`` of its kind. Integer ones differ in most of their few characters."""
    new = _shingles(problem.statement)
    if problem.kind == "integer":
        return new in earlier
    return any(len(new & old) >= _TOO_CLOSE * len(new | old) for old in earlier)


def _problem(rng: random.Random, of_eight: int) -> MiniProblem:
    small = rng.random() < _INTEGER_SHARE
    question = integer(rng) if small else rng.choice(OTHER_KINDS)(rng)
    answer = question.notations[0]
    # Integers stay bare: a filter on the expected answer picks the problems that the tiny model learns on.
    if not small and rng.random() < 0.5:
        answer = f"${answer}$" if rng.random() < 0.5 else f"\\({answer}\\)"
    pass_rate = "n/a" if rng.random() < 0.1 else str(rng.randrange(1, 32) / 32)
    return MiniProblem(question.statement, answer, question.kind, pass_rate, _candidates(rng, question, of_eight))


def _candidates(rng: random.Random, question: Question, of_eight: int) -> tuple[MiniCandidate, ...]:
    # The candidates beyond eight follow the same odds, so that any eight of them look alike.
    truths = [position < of_eight for position in range(8)]
    truths += [rng.random() < of_eight / 8 for _ in range(_CANDIDATES - 8)]
    rng.shuffle(truths)
    common = question.wrong(rng)
    made: dict[str, MiniCandidate] = {}
    for correct in truths:
        passes = rng.random() < (_PASSES_RIGHT if correct else _PASSES_WRONG)
        if correct:
            box = f"\\boxed{{{rng.choice(question.notations)}}}"
        else:
            box = f"\\boxed{{{common if rng.random() < _COMMON_WRONG else question.wrong(rng)}}}"
        text = _text(rng, question.kind, box, passes)
        while text in made:
            text = _text(rng, question.kind, box, passes)
        made[text] = MiniCandidate(text, correct, passes)
    return tuple(made.values())


def _text(rng: random.Random, kind: str, box: str, passes: bool) -> str:
    method = "try " + " then ".join(rng.choice(_WORDS) for _ in range(rng.randrange(1, 4)))
    check = f"check: {'pass' if passes else 'fail'}"
    if kind == "integer":
        return f"{method}\n{box}\n{check}"
    trap = rng.random()
    if trap < 0.03:
        # A line that looks like the next solution's header.
        return f"{method}\nI compare this with\nSolution 1:\nwhich would go by {rng.choice(_WORDS)}\n{box}\n{check}"
    if trap < 0.06:
        # Cut off inside its box: no answer can be read.
        return f"{method}\n{check}\nso the answer is {box[:-2]}"
    return f"{method} and get {box}\n{check}"


# --- rows ---------------------------------------------------------------------------------------------------------------


def _all_rows(seed: int, problems: int) -> list[dict[str, Any]]:
    rng = random.Random(f"rows {seed}")
    others = max(2, problems // 10)
    made = generate_problems(seed, problems + others)
    rows: list[dict[str, Any]] = []
    for problem in made[:problems]:
        rows += _rows(rng, problem, "has_answer_extracted")
    for index, problem in enumerate(made[problems:]):
        rows += _rows(rng, problem, "converted_proof" if index % 3 == 0 else "no_answer_extracted")
    plain = [problem for problem in made[:problems] if problem.kind == "integer"]
    for problem in plain[: max(1, problems // 100)]:
        rows += _refused_rows(rng, problem)
    rng.shuffle(rows)
    return rows


def _rows(rng: random.Random, problem: MiniProblem, problem_type: str) -> Iterator[dict[str, Any]]:
    """Rows that together show every candidate, each with one right and one wrong at least."""
    right = [candidate for candidate in problem.candidates if candidate.correct]
    wrong = [candidate for candidate in problem.candidates if not candidate.correct]
    waiting = list(problem.candidates)
    rng.shuffle(waiting)
    while waiting:
        size = rng.randrange(2, 5)
        shown, waiting = waiting[:size], waiting[size:]
        for group in (right, wrong):
            if not any(candidate in group for candidate in shown):
                shown.append(rng.choice(group))
        if rng.random() < 0.15:
            # Upstream sampled with repeats: equal texts in one prompt, under one number.
            shown.append(rng.choice(shown))
        rng.shuffle(shown)
        prompt = render_prompt(problem.statement, [candidate.text for candidate in shown])
        if rng.random() < 0.01:
            prompt = prompt.replace("\n", "\r\n")
        yield _row(rng, problem, problem_type, prompt, shown)


def _refused_rows(rng: random.Random, problem: MiniProblem) -> Iterator[dict[str, Any]]:
    """Rows that the merge must refuse, each for another reason."""
    shown = [next(c for c in problem.candidates if c.correct is truth) for truth in (True, False)]
    whole = render_prompt(problem.statement, [candidate.text for candidate in shown])
    for damaged in (
        whole.replace("followed by 2 solutions", "followed by 3 solutions"),
        whole.replace("YOUR TASK", "TO DO"),
        whole.partition("\n\nEvaluation Process:")[0],
    ):
        yield _row(rng, problem, "has_answer_extracted", damaged, shown)
    yield {**_row(rng, problem, "has_answer_extracted", whole, shown), "expected_answer": ""}


def _row(
    rng: random.Random, problem: MiniProblem, problem_type: str, prompt: str, shown: list[MiniCandidate]
) -> dict[str, Any]:
    texts = [candidate.text for candidate in shown]
    best = texts.index(rng.choice([candidate.text for candidate in shown if candidate.correct]))
    word = "Judgement" if rng.random() < 0.05 else "Judgment"
    return {
        "expected_answer": problem.answer,
        "problem_type": problem_type,
        "problem_source": f"generated_{problem.kind}",
        "generation_model": "genselect-miniature",
        "pass_rate_72b_tir": problem.pass_rate,
        "problem": prompt,
        "generated_solution": f"The answers differ, and solution {best} holds up.\n\n{word}: {best}",
        "inference_mode": "genselect",
        "used_in_kaggle": False,
    }
