"""What the columns of each table and the keys of each JSON line are: names and types out of the schemas, one line of meaning each."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import pyarrow as pa

from genselect.evaluation.baselines import COLUMNS as BASELINE_COLUMNS
from genselect.formats.arm_results import ARM_SCHEMA
from genselect.formats.records import ROW_SCHEMA, Candidate, Label, Problem
from genselect.training.records import RECORD_SCHEMA, TOKEN_SCHEMA, TokenArrays, Trajectory


@dataclass(frozen=True)
class Field:
    """One column, or one key of a JSON line."""

    name: str
    """Dotted within structures, ``[]`` for the entries of a list."""
    type: str
    what: str


@dataclass(frozen=True)
class Table:
    """The fields of one kind of file."""

    title: str
    kinds: tuple[str, ...]
    """Entries of the declared list whose files have these fields."""
    fields: tuple[Field, ...]


_ROW = {
    "data_source": "name of the data set, for the trainer",
    "agent_name": "agent loop that plays the row",
    "ability": "kind of task, for the trainer",
    "prompt[].role": "system or user",
    "prompt[].content": "what the policy reads",
    "reward_model.style": "how an episode is judged",
    "reward_model.ground_truth": "the expected answer",
    "extra_info.question_id": "the problem",
    "extra_info.question": "its statement",
    "extra_info.benchmark": "benchmark that the row belongs to",
    "extra_info.benchmark_spec.name": "the same",
    "extra_info.benchmark_spec.judge.kind": "who judged the candidates",
    "extra_info.benchmark_spec.judge.model": "the judge model, if there is one",
    "extra_info.benchmark_spec.judge.fingerprint": "hash over everything that changes its verdicts",
    "extra_info.max_explores": "candidates that an episode may reveal",
    "extra_info.correct_of_eight": "how many of the row's candidates are correct",
    "extra_info.pass_rate_72b_tir": "the publisher's pass rate, k/32 as a decimal, or n/a",
    "extra_info.cached_candidates[].answer": "content of a candidate's last box; in the order in which they are revealed",
    "extra_info.cached_candidates[].reasoning": "its whole text",
    "extra_info.cached_candidates[].cost_usd": "what it cost",
    "extra_info.cached_candidates[].timed_out": "whether it was cut",
    "extra_info.cached_candidates[].is_correct": "whether its answer equals the expected one",
}
_QUESTION = (
    Field("question_id", "string", "the problem"),
    Field("question", "string", "its statement"),
    Field("answer", "string", "the expected answer"),
    Field("split", "string", "train or held_out"),
    Field("problem_source", "string", "where the statement was found"),
    Field("pass_rate_72b_tir", "string", "the publisher's pass rate, k/32 as a decimal, or n/a"),
    Field("correct_of_eight", "integer", "how many of the drawn candidates are correct"),
    Field("candidate_indices", "list of integer", "their positions in merged.jsonl"),
    Field("cached_candidates", "list of mapping", "the candidates, as in the rows' extra_info"),
)
_JUDGMENT = (
    Field("id", "string", "the problem"),
    Field("selected", "mapping", "of candidates by position: in how many of the publisher's rows each was selected"),
    Field("unreadable", "integer", "rows whose judgment is missing or names no solution"),
)
_RECORD = {
    "question_id": "the problem",
    "end": "how the episode ended: submit, no_call, turns or length",
    "score": "what the episode was worth: verdict, format and cost added",
    "score_verdict": "for a right answer",
    "score_format": "for a submission that is wrong",
    "prompt_tokens": "tokens of the prompt",
    "turns": "turns of the policy",
    "first_value": "the critic's value at the first response token; null without a critic",
    "attempt": "which start of the run drew it",
}
_TOKENS = {
    "question_id": "the problem",
    "sample": "0 to n - 1 within the question's draw",
    "attempt": "which start of the run drew it",
    "response_ids": "token ids after the prompt",
    "advantages": "of each token; null if the algorithm makes none",
    "returns": "of each token",
    "values": "the critic's, before the update",
}
_ARM = {
    "question_id": "a held-out question",
    "seed": "of the training run; 0 for the untrained policy",
    "sample": "0, 1, …",
    "correct": "1 or 0",
    "shown": "candidates revealed; for the selector all of them",
    "answer": "what was submitted; null without a submission",
    "explores": "calls of explore, those that revealed nothing included",
    "end": "submit, no_call, turns or length",
    "tokens": "the policy's and the tools' after the prompt",
    "verdict_source": "label, a stage of the cascade, judge; none without a verdict",
}
_BASELINE = {
    "question_id": "a held-out question",
    "arm": "first, mean, majority_1 and so on, oracle, adaptive_<threshold>",
    "correct": "the verdict, after one seeded draw over ties",
    "expected": "its exact mean over ties, which accuracies use",
    "shown": "candidates that the arm looked at",
}
_METRICS = (
    Field("step", "integer", "the training step; 0 for the validation before training"),
    Field("attempt", "integer", "which start of the run made it"),
    Field("episode/…", "number", "means over the step's trajectories: verdict, score, explores, shares of ends"),
    Field("val/…", "number", "the same over the held-out rows, in steps with a validation"),
    Field(
        "actor/…, critic/…, predictor/…", "number", "loss, gradient norm, learning rate and diagnostics of each model"
    ),
    Field("proof/…", "number", "the step's proofs"),
    Field("timing_s/…", "number", "seconds of each stage"),
)


def tables() -> tuple[Table, ...]:
    """The tables of the front page, in the order of the stages."""
    return (
        Table("merged.jsonl, a line a problem", ("merged",), (*_of_class(Problem), *_of_class(Candidate, "candidates[]."))),
        Table("merged.judgments.jsonl, a line a problem", ("judgments",), _JUDGMENT),
        Table("labels.jsonl, a line a candidate", ("labels",), _of_class(Label)),
        Table("train.parquet and val.parquet, a row a problem", ("rows", "overfit_rows"), _of_schema(ROW_SCHEMA, _ROW)),
        Table("questions.jsonl, a line a question", ("questions",), _QUESTION),
        Table(
            "records/ and validation/, a row a trajectory",
            ("records", "validation", "rollout_records"),
            _of_schema(RECORD_SCHEMA, {**attribute_docs(Trajectory), **_RECORD}),
        ),
        Table(
            "records/tokens_step_<n>.parquet, a row a trajectory, an array a column",
            ("token_arrays", "rollout_arrays"),
            _of_schema(TOKEN_SCHEMA, {**attribute_docs(TokenArrays), **_TOKENS}),
        ),
        Table("metrics.jsonl, a line a step", ("metrics",), _METRICS),
        Table("arms/<arm>.parquet, a row an answer", ("arms",), _of_schema(ARM_SCHEMA, _ARM)),
        Table(
            "baselines.parquet, a row a question and arm",
            ("baselines",),
            tuple(Field(name, "string" if name in ("question_id", "arm") else "number", _BASELINE[name]) for name in BASELINE_COLUMNS),
        ),
    )  # fmt: skip


def attribute_docs(kind: type) -> dict[str, str]:
    """The first sentence of the text under each field of a class; fields without one are left out."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for statement, after in zip(body.body, body.body[1:], strict=False):
        match statement, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = _plain(text)
    return found


def _plain(text: str) -> str:
    """On one line, as the end of a table's row, in JSON's words."""
    one_line = " ".join(text.split()).replace("``", "").rstrip(".")
    for python, shown in (("None", "null"), ("False", "false"), ("True", "true")):
        one_line = re.sub(rf"\b{python}\b", shown, one_line)
    return one_line[:1].lower() + one_line[1:] if one_line[1:2].islower() else one_line


def _of_class(kind: Any, prefix: str = "") -> tuple[Field, ...]:
    docs = attribute_docs(kind)
    return tuple(
        Field(prefix + entry.name, _CLASS_TYPES.get(str(entry.type), str(entry.type)), docs[entry.name])
        for entry in fields(kind)
        if not str(entry.type).startswith("tuple[Candidate")
    )


_CLASS_TYPES = {
    "str": "string",
    "str | None": "string or null",
    "int": "integer",
    "bool": "true or false",
    "Source": "string",
}


def _of_schema(schema: pa.Schema, docs: Mapping[str, str]) -> tuple[Field, ...]:
    found = [field for entry in schema for field in _leaves(entry.name, entry.type)]
    return tuple(Field(name, kind, docs[name]) for name, kind in found)


def _leaves(name: str, kind: pa.DataType) -> Iterator[tuple[str, str]]:
    if pa.types.is_struct(kind):
        for inner in kind:
            yield from _leaves(f"{name}.{inner.name}", inner.type)
    elif pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
        yield from _leaves(f"{name}[]", kind.value_type)
    elif pa.types.is_list(kind):
        yield name, f"list of {kind.value_type}"
    else:
        yield name, str(kind)
