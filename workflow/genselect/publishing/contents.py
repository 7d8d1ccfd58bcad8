"""What of ``results/`` is published, where, and why not: the declared list.

A file goes where the first entry says whose pattern fits its path. A file that no entry names is refused by name, so that
nothing leaks by being forgotten and nothing vanishes in silence. Weights move only when the configuration names them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from genselect.config import Config
from genselect.publishing.publication import TARGETS, Target

_COPY = "for reading on GitHub"


def _nowhere(why: str) -> Mapping[Target, str]:
    return dict.fromkeys(TARGETS, why)


def _hub_only(why: str) -> Mapping[Target, str]:
    return {"reading_copy": why}


@dataclass(frozen=True)
class Entry:
    """Some files of ``results/``: where they go, and what they are."""

    kind: str
    """Its name, as in ``publication.json``."""
    patterns: tuple[str, ...]
    """Relative to ``results/``: ``*`` and ``?`` within a name, ``**`` over folders; ``{name}`` is the experiment, ``{run}`` and
    ``{rollout}`` are those that the configuration names, ``{other_name}`` and so on whatever is not."""
    what: str
    """One line for the front page."""
    not_in: Mapping[Target, str] = field(default_factory=dict)
    """Why a target does not get them; targets that are not listed do."""
    appended: bool = False
    """Lines are added to such a file where it lies. It is copied: a hard link would change with it."""
    counted: bool = True
    """False for what is made after the staging, or out of it: no word about it belongs into the tree, which would not settle."""


_WEIGHTS = "weights leave the machine only when publish names them (saves, adapters, base_model)"
_ARRAYS = f"an array for each token is nothing {_COPY}"
_MACHINERY = "machinery of a run, of no use elsewhere"
_OTHER = "belongs to another experiment, or to a run that the configuration does not name"
_MODEL = {
    "hub": "the base model's own repository has it",
    "local": "the base model's folder is its owner's to publish",
    "made": _WEIGHTS,
}

PUBLISHED_SAVE = Entry(
    "published_save",
    (),
    "a save that publish.saves names, whole: training goes on from it",
    _hub_only(f"tensors are nothing {_COPY}"),
)
ADAPTER = Entry(
    "adapter",
    (),
    "a policy's LoRA adapter that publish.adapters names, for PeftModel.from_pretrained",
    _hub_only(f"tensors are nothing {_COPY}"),
)
FRONT_PAGE_ENTRY = Entry("front_page", (), "this page")

CONTENTS: tuple[Entry, ...] = (
    # Made after the staging, or out of it.
    Entry(
        "afterwards",
        (
            "tracking/**",
            "report/{name}/snakemake.html",
            "logs/{name}/snakemake_report.log",
            "logs/{name}/stage_publication.log",
            "logs/{name}/publish*.log",
            "logs/{name}/export_adapter/**",
            "logs/{name}/track_run/**",
            "benchmarks/{name}/stage_publication.tsv",
        ),
        "made after the staging or out of it: trackers' folders, Snakemake's own report, logs of the publication's rules",
        _nowhere("made after the staging, or out of it"),
        counted=False,
    ),
    # Weights, first of all: no later pattern may let one through.
    Entry("save", ("runs/{run}/checkpoints/**",), "saves: weights, optimiser and data state", _nowhere(_WEIGHTS)),
    Entry("merged_weights", ("evaluation/{name}/merged/**",), "weights of an anchor while it is played", _nowhere(_WEIGHTS)),
    # Leftovers and locks.
    Entry(
        "unfinished",
        (
            "**/.*.tmp", "**/.*.part", "**/.*.partial/**", "models/.{name}.*/**",
            "evaluation/{name}/parts/**", "rollouts/{rollout}/parts/**",
        ),
        "unfinished work of a stopped job",
        _nowhere("unfinished; its whole form has another name"),
    ),
    Entry("lock", ("**/.lock", "runs/{run}/stop_requested"), "locks and stop marks", _nowhere(_MACHINERY)),
    Entry(
        "fetched_adapter",
        ("checkpoints/**",),
        "adapters that came with a fetched publication",
        _nowhere("fetched with another publication; publish.adapters exports an adapter anew"),
    ),
    # Data.
    Entry("config", ("data/{name}/config.yaml",), "the resolved configuration, defaults included"),
    Entry("differences", ("data/{name}/differences.json",), "how each run differs from what it extends"),
    Entry(
        "seal",
        (
            "data/{name}/**/*.seal.json",
            "evaluation/{name}/**/*.seal.json",
            "rollouts/{rollout}/**/*.seal.json",
            "models/{name}/base_model.json.seal.json",
        ),
        "seals: sha256 of a step's outputs and inputs, its settings, and who made them when and with what",
    ),
    Entry("merged", ("data/{name}/merged.jsonl",), "one line a problem: statement, expected answer, distinct candidates"),
    Entry("judgments", ("data/{name}/merged.judgments.jsonl",), "which candidates the publisher's own judge selected, a line a problem"),
    Entry("merge_stats", ("data/{name}/merge_stats.json",), "what the merge read, kept and refused, and why"),
    Entry("labels", ("data/{name}/labels.jsonl",), "one line a candidate: whether its boxed answer equals the expected one"),
    Entry(
        "journal",
        ("data/{name}/labels/*/labels.jsonl", "data/{name}/labels/*/journal/*"),
        "each labelling job's labels and its journal of verdicts, with which labelling goes on",
        _hub_only("labels.jsonl holds every verdict"),
    ),
    Entry("questions", ("data/{name}/questions.jsonl",), "the whole population, a line a question, with its cached candidates and split"),
    Entry(
        "rows",
        ("data/{name}/train.parquet", "data/{name}/val.parquet"),
        "rows that are trained on, and held-out rows that are validated on, one a problem",
    ),
    Entry("partition", ("data/{name}/partition.json",), "ids of the population, and of those that are trained on"),
    Entry("stats", ("data/{name}/stats.json",), "what the build kept and dropped, and why"),
    Entry(
        "overfit_rows",
        ("data/{name}/overfit/*/train.parquet", "data/{name}/overfit/*/val.parquet", "data/{name}/overfit/*/partition.json"),
        "rows of an overfit set",
    ),
    Entry("selection", ("data/{name}/overfit/*/selection.csv",), "each chosen row with its pass count and mean response"),
    Entry(
        "raw_shards",
        ("data/{name}/shards/*.parquet",),
        "raw shards",
        _nowhere("the raw shards have a publisher of their own; merged.jsonl holds what was read of them"),
    ),
    # Models: the record of what it was, and more only where contents_of says so.
    Entry("base_model", ("models/{name}/base_model.json",), "which base model it was: repository, commit and the sha256 of each file"),
    Entry("model", ("models/{name}/**",), "the base model", _nowhere(_MODEL["made"])),
    # Runs.
    Entry("manifest", ("runs/{run}/manifest.json",), "whose folder it is: settings, fingerprint, provenance, attempts"),
    Entry("done", ("runs/{run}/done.json",), "the summary of a finished run"),
    Entry("metrics", ("runs/{run}/metrics.jsonl",), "a line a step: every metric, with step and attempt", appended=True),
    Entry("health", ("runs/{run}/health.json",), "the guards' state, step by step"),
    Entry("memory_check", ("runs/{run}/memory_check*.json",), "seconds and peaks of every stage at the full token budgets"),
    Entry("gpu_watch", ("runs/{run}/gpu_watch.jsonl",), "utilisation, memory, power and temperature of each card", appended=True),
    Entry("attempt_log", ("runs/{run}/attempts/*.log",), "the whole output of an attempt", appended=True),
    Entry("attempt_config", ("runs/{run}/attempts/*.yaml",), "the configuration that verl was given in an attempt"),
    Entry(
        "token_arrays",
        ("runs/{run}/records/tokens_step_*.parquet",),
        "per-token arrays of a step's trajectories: ids, mask, log probabilities, advantages, returns, values",
        _hub_only(_ARRAYS),
    ),
    Entry("records", ("runs/{run}/records/step_*.parquet",), "a step's trajectories, one a row, with text, verdict and score"),
    Entry("potential", ("runs/{run}/potential/step_*.json",), "the submit predictor, the critic and the potential at a step"),
    Entry("proofs", ("runs/{run}/proofs/step_*.json",), "a step's proofs with their numbers"),
    Entry("validation", ("runs/{run}/validation/step_*.parquet",), "the validation's trajectories after a step"),
    Entry(
        "superseded_arrays",
        ("runs/{run}/superseded/**/tokens_step_*.parquet",),
        "per-token arrays that an attempt left beyond its last save",
        _hub_only(_ARRAYS),
    ),
    Entry("superseded", ("runs/{run}/superseded/**",), "what an attempt left beyond its last save, out of the count"),
    # Gates, rollouts, evaluation, report.
    Entry("gate", ("gates/{run}.json",), "a gate's verdict with its numbers"),
    Entry("rollout", ("rollouts/{rollout}/rollout.json",), "a rollout's figures: verdict, pass counts, seconds"),
    Entry(
        "rollout_arrays",
        ("rollouts/{rollout}/records/tokens_step_*.parquet",),
        "per-token arrays of a rollout",
        _hub_only(_ARRAYS),
    ),
    Entry("rollout_records", ("rollouts/{rollout}/records/step_*.parquet",), "a rollout's episodes, one a row"),
    Entry("baselines", ("evaluation/{name}/baselines.parquet",), "the arms that need no model, a row a question and arm"),
    Entry("arms", ("evaluation/{name}/arms/*.parquet",), "what a policy answered on the held-out questions, a row an answer"),
    Entry("anchor", ("evaluation/{name}/anchors/*.json",), "which save an arm's weights were merged from"),
    Entry("preregistration", ("evaluation/{name}/preregistration.json",), "what was to be compared, fixed before any formal run"),
    Entry(
        "comparison",
        ("evaluation/{name}/comparison.json", "evaluation/{name}/comparison.md"),
        "the final word: every arm on the same questions, in numbers and in words",
    ),
    Entry("page", ("report/{name}/index.html",), "the report: verdict, pictures and provenance on one page"),
    Entry("figures", ("report/{name}/figures/**",), "the report's pictures, as SVG and PNG"),
    Entry("rule_graph", ("report/{name}/rules.dot",), "the graph of the workflow's rules"),
    Entry("log", ("logs/{name}/**",), "the log of each job", appended=True),
    Entry("times", ("benchmarks/{name}/**/*.tsv", "benchmarks/{name}/*.tsv"), "seconds and memory of each job"),
    Entry(
        "other",
        (
            *(f"{folder}/{{other_name}}/**" for folder in ("data", "models", "evaluation", "report", "logs", "benchmarks")),
            "runs/{other_run}/**",
            "gates/{other_run}.json",
            "rollouts/{other_rollout}/**",
        ),
        "other experiments, and runs and rollouts that the configuration does not name",
        _nowhere(_OTHER),
    ),
)  # fmt: skip
"""In the order in which they are asked."""


def contents_of(config: Config) -> tuple[Entry, ...]:
    """The declared list as it holds for one configuration."""
    not_in = {"model": _nowhere(_MODEL[config.models.base.source])}
    if config.dataset.source == "generated":
        # Generated shards are nobody else's.
        not_in["raw_shards"] = {}
    if config.publish.base_model:
        not_in["model"] = _hub_only(f"tensors are nothing {_COPY}")
    return tuple(replace(entry, not_in=not_in.get(entry.kind, entry.not_in)) for entry in CONTENTS)


def pattern_regex(pattern: str, names: Mapping[str, Iterable[str]] | None = None) -> str:
    """The regular expression of a pattern of :class:`Entry`, to be matched in full.

    Args:
        pattern: As described there.
        names: What each placeholder may be; placeholders that are not given stay as they are written.
    """
    parts = []
    for token in re.findall(r"\*\*/|\*\*|\*|\?|\{\w+\}|[^*?{]+|\{", pattern):
        placeholder = token[1:-1] if names is not None and token.startswith("{") else ""
        known = names.get(placeholder.removeprefix("other_")) if names is not None else None
        if known is None:
            parts.append(_WILD.get(token) or re.escape(token))
            continue
        # No name at all must match nothing.
        one_of = f"(?:{'|'.join(map(re.escape, known)) or '(?!)'})"
        parts.append(f"(?!{one_of}(?:/|\\.json$))[^/]+" if placeholder.startswith("other_") else one_of)
    return "".join(parts)


_WILD = {"**/": "(?:[^/]+/)*", "**": ".+", "*": "[^/]*", "?": "[^/]"}
