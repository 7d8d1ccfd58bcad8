"""The front page of a published tree, ``README.md``: a dataset card, made out of the results and the plan of the tree.

It says nothing of the time or place of the staging: the same results give the same page.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pyarrow.parquet as pq
from huggingface_hub import DatasetCardData

from genselect.config import Config
from genselect.config.training import Run
from genselect.formats import read_json
from genselect.plan.runs import gates
from genselect.provenance import read_seal
from genselect.provenance.seal import seal_path
from genselect.publishing.fields import tables
from genselect.publishing.layout import TargetPlan
from genselect.publishing.publication import Archive, Target
from genselect.publishing.reading import readings
from genselect.publishing.run_lines import run_lines
from genselect.publishing.tree_lines import tree_parts
from genselect.status.render import in_bytes

HERE = Path(__file__).parent
#: Tables that the Hub's viewer shows besides the rows, by the kind of their files: name, and where they lie.
_VIEWED = {
    "records": ("trajectories", "runs/*/records/step_*.parquet"),
    "arms": ("answers", "evaluation/*/arms/*.parquet"),
    "baselines": ("baselines", "evaluation/*/baselines.parquet"),
}
_SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M"))


def front_page(
    config: Config, runs: Mapping[str, Run], results: Path, plan: TargetPlan, archives: Sequence[Archive]
) -> str:
    """The page as Markdown, with the card's metadata on top.

    Args:
        config: The configuration.
        runs: Resolved.
        results: The results folder.
        plan: The tree that the page lies in.
        archives: Its packed folders.

    Raises:
        GenselectError: A file of the results cannot be read.
    """
    name = config.dataset.name
    comparison = results / "evaluation" / name / "comparison.json"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters.update(size=in_bytes, cell=_cell)
    present = {item.entry.kind for item in plan.all_items()}
    title = config.publish.title or f"Does {_model_in_words(config)} learn to use candidates on {name}?"
    return environment.get_template("front_page.md.jinja").render(
        card=_card(config, plan, title),
        title=title,
        name=name,
        target=plan.target,
        question=config.publish.question or _question(config),
        links=_links(config, {item.path for item in plan.items}, plan.target),
        repository=config.publish.repository,
        comparison=read_json(comparison) if comparison.exists() else None,
        runs=run_lines(runs, results, name),
        gates=[read_json(path) for gate in gates(runs) if (path := results / "gates" / f"{gate}.json").exists()],
        parts=tree_parts(plan),
        readings=readings(plan, archives, _base(config)),
        model_of_hub=config.models.base.source == "hub",
        tables=[table for table in tables() if present & set(table.kinds)],
        inputs=_inputs(config, results),
        archives=archives,
        left_out=plan.left_out,
        adapters=config.publish.adapters if plan.target == "hub" else [],
        saves=config.publish.saves if plan.target == "hub" else [],
        commits=_commits(results, name, runs),
    )


def _card(config: Config, plan: TargetPlan, title: str) -> str:
    """The card's metadata as YAML."""
    rows = {"train": "train.parquet", "validation": "val.parquet"}
    folder = f"data/{config.dataset.name}"
    items = {item.path: item for item in plan.items}
    files = [
        {"split": split, "path": f"{folder}/{file}"} for split, file in rows.items() if f"{folder}/{file}" in items
    ]
    configs: list[dict[str, Any]] = [{"config_name": "rows", "data_files": files, "default": True}] if files else []
    present = {item.entry.kind for item in plan.items}
    for kind, (shown, paths) in _VIEWED.items():
        if kind in present:
            configs.append({"config_name": shown, "data_files": [{"split": "train", "path": paths}]})
    count = sum(pq.read_metadata(items[file["path"]].source).num_rows for file in files)
    size = next((shown for limit, shown in _SIZES if count < limit), "10M<n<100M")
    card = DatasetCardData(
        language="en",
        license=config.publish.licence,
        pretty_name=title,
        size_categories=size,
        task_categories=["question-answering"],
        tags=["genselect", "reinforcement-learning", "mathematics", "test-time-compute"],
        configs=configs or None,
    )
    return card.to_yaml()


def _links(config: Config, staged: Collection[str], target: Target) -> list[tuple[str, str, str]]:
    """Label, address and a remark of each."""
    name = config.dataset.name
    own = (
        ("The comparison", f"evaluation/{name}/comparison.md", ", in words and with every figure"),
        (
            "The report",
            f"report/{name}/index.html",
            ": verdict, pictures and provenance on one page; download it and open it in a browser",
        ),
    )
    links = [link for link in own if link[1] in staged]
    if config.publish.repository and target == "reading_copy":
        address = f"https://huggingface.co/datasets/{config.publish.repository}"
        links.append(("The whole experiment", address, ", with what this reading copy leaves out"))
    return [*links, *((label, address, "") for label, address in config.publish.links.items())]


def _question(config: Config) -> str:
    build = config.build
    against = " and ".join(
        {"untrained": "its untrained accuracy"}.get(arm, f"that of {arm}") for arm in config.evaluation.against
    )
    return (
        f"Trained by reinforcement learning on rows of {build.candidates_per_row} candidate solutions with {build.min_correct} to "
        f"{build.max_correct} of them correct, does {_model_in_words(config)}'s accuracy on held-out rows rise above {against}?"
    )


def _model_in_words(config: Config) -> str:
    base = config.models.base
    return {
        "hub": base.repo_id.rpartition("/")[2],
        "local": base.path.name if base.path else "",
        "made": "a tiny Qwen3.5",
    }[base.source]


def _base(config: Config) -> str:
    base = config.models.base
    return base.repo_id if base.source == "hub" else f"models/{config.dataset.name}"


def _inputs(config: Config, results: Path) -> list[str]:
    """Data and models that went in: where they are from, at which commit, under which licence."""
    dataset, base, judge = config.dataset, config.models.base, config.judge
    record = results / "models" / dataset.name
    lines = [
        f"Licence of what is here: {config.publish.licence}.",
        {
            "hub": f"Data: [{dataset.repo_id}](https://huggingface.co/datasets/{dataset.repo_id}), {len(dataset.shards)} shards at commit "
            f"`{_shard_commit(config, results)}`; licence: see its page.",
            "local": "Data: raw shards from a folder of the machine; their sha256 are in merged.jsonl.seal.json.",
            "generated": f"Data: {dataset.generated.problems} generated problems, seed {dataset.generated.seed}; no rights of others.",
        }[dataset.source],
        {
            "hub": f"The model trained: [{base.repo_id}](https://huggingface.co/{base.repo_id}) at commit "
            f"`{_revision(record, base.revision)}`; licence: {_licence(record) or 'see its page'}.",
            "local": f"The model trained: a folder of the machine ({base.path.name if base.path else ''}); licence: its own.",
            "made": f"The model trained: made from scratch for the miniature, seed {base.made.seed}; no rights of others.",
        }[base.source],
    ]
    if judge.kind == "rule":
        lines.append("The judge: a symbolic reader of answers, no model.")
    else:
        link = f"[{judge.model}](https://huggingface.co/{judge.model})" if judge.revision else f"{judge.model}"
        lines.append(f"The judge: {link} at commit `{judge.revision or 'unknown'}`; licence: see its page.")
    return lines


def _shard_commit(config: Config, results: Path) -> str:
    """The whole commit, which the seal of a shard has."""
    for path in sorted((results / "data" / config.dataset.name / "shards").glob("*.parquet.seal.json")):
        seal = read_seal(path.with_name(path.name.removesuffix(".seal.json")))
        if seal is not None and seal.config.get("revision"):
            return str(seal.config["revision"])
    return config.dataset.revision


def _revision(model: Path, configured: str) -> str:
    record = model / "base_model.json"
    return str(read_json(record).get("revision") or configured) if record.exists() else configured


def _licence(model: Path) -> str | None:
    """What the model's own card says."""
    card = model / "README.md"
    if not card.exists():
        return None
    for line in card.read_text(encoding="utf-8", errors="replace").splitlines()[:40]:
        if line.startswith("license:"):
            return line.partition(":")[2].strip()
    return None


def _commits(results: Path, name: str, runs: Mapping[str, Run]) -> list[tuple[str, tuple[str, ...]]]:
    """Commits of genselect with what each of them made; those with uncommitted changes are marked."""
    made: dict[str, list[str]] = {}
    sealed = [
        results / folder / name / file
        for folder, file in (("data", "merged.jsonl"), ("data", "labels.jsonl"), ("data", "stats.json"),
                             ("evaluation", "preregistration.json"), ("evaluation", "comparison.json"))
    ]  # fmt: skip
    records = [(path.name, seal_path(path)) for path in sealed]
    records += [(f"run {run}", results / "runs" / run / "manifest.json") for run in runs]
    for what, path in records:
        if path.exists():
            provenance = read_json(path).get("provenance") or {}
            commit = str(provenance.get("git_commit") or "unknown")
            made.setdefault(
                commit + (" with uncommitted changes" if provenance.get("git_dirty_sha256") else ""), []
            ).append(what)
    return [(commit, tuple(what)) for commit, what in made.items()]


def _cell(text: Any) -> str:
    """Text within a table."""
    return str(text).replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
