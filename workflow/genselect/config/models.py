"""The configuration's sections, in the order the workflow meets them. The docstring under a field is its documentation:
``config/schema.json`` and the table in ``config/README.md`` are generated from it.
"""

from __future__ import annotations

import re
import string
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from genselect.config.base import RUNTIME, Section
from genselect.config.evaluation import Evaluation
from genselect.config.publish import Publish
from genselect.config.rollout import OverfitSet, Rollout
from genselect.config.training import Models, Run

#: A commit of the Hub. Never a branch or a tag: those move.
Revision = Annotated[str, Field(pattern=r"^[0-9a-f]{7,40}$")]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class GeneratedShards(Section):
    """The miniature's own shards (``dataset.source: generated``)."""

    problems: int = Field(320, ge=1)
    """Problems written."""
    shards: int = Field(4, ge=1)
    """Parquet files they are spread over."""
    seed: int = 1
    """Same seed, same bytes."""


class Dataset(Section):
    """Where the raw GenSelect shards come from."""

    name: str = Field(..., pattern=r"^[a-z0-9][a-z0-9_-]*$")
    """Folder under `results/data/`."""
    source: Literal["hub", "local", "generated"] = "hub"
    """`hub` downloads, `local` reads `local_dir`, `generated` writes the miniature's shards."""
    repo_id: str = "nvidia/OpenMathReasoning"
    """Dataset repository on the Hugging Face Hub (`source: hub`)."""
    revision: Revision = "5a256e23"
    """Commit of that repository, as hex. A short one is resolved, and the full one is recorded in the seal."""
    shards: list[str] = [f"data/genselect-{index:05d}-of-00014.parquet" for index in range(14)]
    """Paths of the shards in the repository (`source: hub`), in the order they are read. Ids follow it."""
    checksums: dict[str, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]] = {}
    """sha256 of shards by file name. A shard that is listed and differs is refused."""
    local_dir: Path | None = None
    """Folder of `*.parquet` shards (`source: local`), read in name order."""
    generated: GeneratedShards = GeneratedShards()
    """Size and seed of the miniature's shards (`source: generated`)."""
    problem_types: list[str] = ["has_answer_extracted"]
    """Rows of other `problem_type`s are dropped, and counted."""

    @model_validator(mode="after")
    def _a_local_source_names_its_folder(self) -> Dataset:
        if self.source == "local" and self.local_dir is None:
            raise ValueError("source is local, so local_dir must name the folder that holds the *.parquet shards")
        if self.source == "hub" and not self.shards:
            raise ValueError("source is hub, so shards must list at least one path in the repository")
        return self


class Cascade(Section):
    """The stages that decide a pair of answers before any judge is asked."""

    identical: bool = True
    """Accept answers that are equal after stripping `$`, `\\( \\)` and outer spaces."""
    symbolic: bool = True
    """Accept what reads as equivalent without doubt (`docs/answers.md`). It never rejects."""
    symbolic_timeout_s: float = Field(5.0, gt=0)
    """Seconds one pair may take in the symbolic stage; over it, the pair goes on to the judge."""
    symbolic_workers: int = Field(2, ge=1, json_schema_extra=RUNTIME)
    """Processes that run the symbolic stage."""
    audit_fraction: Fraction = 0.0
    """Share of the pairs accepted without the judge that it is asked all the same, to report how often it disagrees."""
    audit_seed: int = 1
    """Chooses the audited pairs."""


class JudgePrompt(Section):
    """The text the judge reads."""

    path: Path | None = None
    """A prompt file with `{problem}`, `{expected_answer}` and `{predicted_answer}`; null is the project's own. NeMo-Skills'
    `judge/math.yaml` is accepted as it is."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Checksum the file must have."""


class Sampling(Section):
    """How the judge generates."""

    temperature: float = Field(0.0, ge=0)
    """0 is greedy."""
    seed: int = 1
    """Sent with each request."""
    first_max_tokens: int = Field(512, ge=1)
    """Token cap of the first try."""
    second_max_tokens: int = Field(4096, ge=1)
    """Token cap of the second try, made only when the first was cut."""
    enable_thinking: bool | None = False
    """Passed to the chat template; null leaves the key out, for templates that do not know it."""

    @model_validator(mode="after")
    def _the_second_cap_is_larger(self) -> Sampling:
        if self.second_max_tokens <= self.first_max_tokens:
            raise ValueError(
                "second_max_tokens must be larger than first_max_tokens, or the second try is cut like the first"
            )
        return self


class JudgeServer(Section):
    """The vLLM server that a labelling job owns (`judge.kind: vllm`)."""

    port: int = Field(0, ge=0, le=65535, json_schema_extra=RUNTIME)
    """0 takes a free port. The server listens on 127.0.0.1 only."""
    startup_timeout_s: float = Field(1800.0, gt=0, json_schema_extra=RUNTIME)
    """Seconds until the server must answer its health check."""
    args: list[str] = []
    """Further arguments of `vllm serve`. They count as identity: a quantisation, for one, changes verdicts."""
    env: dict[str, str] = Field({}, json_schema_extra=RUNTIME)
    """Further environment variables of the server."""


class JudgeClient(Section):
    """How the judge is asked."""

    concurrency: int = Field(512, ge=1, json_schema_extra=RUNTIME)
    """Requests in flight at most; the client goes lower by itself when the server pushes back."""
    request_timeout_s: float = Field(600.0, gt=0, json_schema_extra=RUNTIME)
    """Seconds a request may take."""
    max_attempts: int = Field(6, ge=1, json_schema_extra=RUNTIME)
    """Tries of one request before its pair is left without a verdict."""
    backoff_s: float = Field(1.0, gt=0, json_schema_extra=RUNTIME)
    """First wait between tries; doubled each time, with jitter."""
    backoff_max_s: float = Field(60.0, gt=0, json_schema_extra=RUNTIME)
    """Longest wait between tries."""
    breaker_failures: int = Field(20, ge=1, json_schema_extra=RUNTIME)
    """Failed tries in a row, with no success between, after which the job stops instead of labelling everything "none"."""


class Judge(Section):
    """Who decides whether a boxed answer equals the expected one."""

    kind: Literal["vllm", "endpoints", "rule"] = "vllm"
    """`vllm`: each labelling job starts and stops its own server; `endpoints`: servers that already run; `rule`: no model,
    the symbolic reader decides both ways."""
    model: str | None = "Qwen/Qwen3.6-27B"
    """Hub id or local folder; the name the server serves."""
    revision: Revision | None = "6a9e13b"
    """Commit of the model on the Hub; null for a local folder."""
    endpoints: list[str] = Field([], json_schema_extra=RUNTIME)
    """Base URLs that end in `/v1` (`kind: endpoints`)."""
    shards: int = Field(4, ge=1, json_schema_extra=RUNTIME)
    """Labelling jobs, each over its share of the problems; on the node each has a card."""
    cascade: Cascade = Cascade()
    """Stages before the judge."""
    prompt: JudgePrompt = JudgePrompt()
    """What the judge reads."""
    sampling: Sampling = Sampling()
    """How it generates."""
    server: JudgeServer = JudgeServer()
    """The owned server."""
    client: JudgeClient = JudgeClient()
    """The client."""

    @model_validator(mode="after")
    def _the_kind_has_what_it_needs(self) -> Judge:
        if self.kind == "endpoints" and not self.endpoints:
            raise ValueError(
                "kind is endpoints, so endpoints must list at least one base URL, such as http://127.0.0.1:8000/v1"
            )
        if self.kind != "rule" and not self.model:
            raise ValueError(f"kind is {self.kind}, so model must name the judge model")
        return self


class RowPrompt(Section):
    """What the policy reads in every row."""

    system: str = (
        "You are given a mathematics problem. Candidate solutions to it exist and can be revealed one at a time; each may be "
        "right or wrong. Call explore to reveal the next candidate, which costs a little, or submit to give your final answer, "
        "which ends the episode. Make exactly one call in each turn."
    )
    """System message; names the two tools."""
    user: str = "{problem}"
    """User message; `{problem}` is replaced by the statement."""

    @field_validator("user")
    @classmethod
    def _the_problem_is_in_it(cls, value: str) -> str:
        if [name for _, name, _, _ in string.Formatter().parse(value) if name is not None] != ["problem"]:
            raise ValueError("user must hold {problem} once and no other field (double a brace to write one)")
        return value


class RowFilters(Section):
    """Which merged problems may become rows. All open by default; every drop is counted in `stats.json`."""

    answer_pattern: str | None = None
    """Regular expression the whole expected answer must match."""
    max_candidate_chars: int | None = Field(None, ge=1)
    """Candidates with a longer text are set aside before eight are drawn."""

    @field_validator("answer_pattern")
    @classmethod
    def _it_compiles(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                re.compile(value)
            except re.error as error:
                raise ValueError(f"answer_pattern is not a regular expression: {error}") from error
        return value


class NearDuplicates(Section):
    """When two problem statements count as one for the train / held-out line."""

    threshold: float = Field(0.85, gt=0, le=1)
    """Jaccard similarity of the statements' character shingles, at least."""
    shingle: int = Field(5, ge=1)
    """Characters in a shingle."""
    permutations: int = Field(128, ge=16)
    """MinHash permutations that find the pairs to compare."""


class Build(Section):
    """From labelled candidates to rows."""

    benchmark: str = "omr"
    """`extra_info.benchmark` of each row."""
    data_source: str = "atts_omr"
    """`data_source` of each row."""
    agent_name: str = "atlas_sequential"
    """`agent_name` of each row: the agent loop that plays it."""
    candidates_per_row: int = Field(8, ge=2)
    """Candidates in a row."""
    min_correct: int = Field(1, ge=0)
    """Fewest correct among them."""
    max_correct: int = Field(7, ge=0)
    """Most correct among them."""
    max_explores: int = Field(8, ge=1)
    """`extra_info.max_explores` of each row."""
    train_fraction: float = Field(0.8, gt=0, lt=1)
    """Share of the population, in id order, that is trained on."""
    val_rows_online: int = Field(256, ge=1)
    """Held-out rows in `val.parquet`, which the trainer validates on while it runs."""
    seed: int = 1
    """Draws the candidates of a row and their order."""
    cost_usd_per_candidate: float = Field(0.0, ge=0)
    """`cost_usd` of each cached candidate."""
    filters: RowFilters = RowFilters()
    """Which problems may become rows."""
    near_duplicates: NearDuplicates = NearDuplicates()
    """What must not straddle the train / held-out line."""

    @model_validator(mode="after")
    def _the_counts_fit(self) -> Build:
        if not self.min_correct <= self.max_correct <= self.candidates_per_row:
            raise ValueError("min_correct <= max_correct <= candidates_per_row must hold")
        return self


class Config(Section):
    """The whole configuration of one experiment."""

    results: Path = Field(Path("results"), json_schema_extra=RUNTIME)
    """Folder for everything that is produced, relative to where Snakemake runs."""
    dataset: Dataset
    """Raw shards."""
    judge: Judge = Judge()
    """Equivalence of answers."""
    prompt: RowPrompt = RowPrompt()
    """The row's messages."""
    build: Build = Build()
    """Rows, population and split."""
    models: Models = Models()
    """What is trained."""
    runs: dict[str, Run] = {}
    """Training runs by name. A run that `extends` another gives only what differs."""
    rollouts: dict[str, Rollout] = {}
    """Rollouts of the untrained policy, by name."""
    overfit_sets: dict[str, OverfitSet] = {}
    """Fixed rows that a run may train on, by name (`runs.<name>.data`)."""
    evaluation: Evaluation = Evaluation()
    """The final word: what is compared, with what, and which rise would matter."""
    waived_gates: dict[str, str] = {}
    """Gates (runs of kind `memory_check`, `smoke` or `overfit`) that may fail, by name, each with the reason. It travels into
    the gate's file and the report."""
    publish: Publish = Field(Publish(), json_schema_extra=RUNTIME)
    """What others receive, and where."""

    @model_validator(mode="after")
    def _a_published_base_model_is_ours(self) -> Config:
        source = self.models.base.source
        if self.publish.base_model and source != "made":
            theirs = "its own repository publishes it" if source == "hub" else "it is its owner's to publish"
            raise ValueError(
                f"publish.base_model is true, and models.base.source is {source}: {theirs}; set publish.base_model: false"
            )
        return self
