"""Policies that others may load: what is exported of a save, and the model card beside it.

Only policies: the critic and the submit predictor value states of this training's episodes, and are no models that one would talk to.
Needs no torch until an adapter is exported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from genselect.base_model.folder import RECORD, whole_folder
from genselect.config import Config
from genselect.config.training import Run
from genselect.errors import GenselectError
from genselect.formats import read_json, write_text
from genselect.plan.evaluation import evaluation_plan
from genselect.plan.saves import kept_saves
from genselect.provenance.difference import did_you_mean

CARD = "README.md"


def check_adapters(config: Config, runs: Mapping[str, Run]) -> None:
    """Refuse a plan that publishes an adapter which no save will hold.

    Raises:
        GenselectError: ``publish.adapters`` names an unknown run, or a step whose save is not kept.
    """
    for position, adapter in enumerate(config.publish.adapters):
        where = f"publish.adapters[{position}]"
        if adapter.run not in runs:
            raise GenselectError(f"{where}.run: there is no run {adapter.run}", did_you_mean(adapter.run, runs))
        kept = kept_saves(runs[adapter.run])
        if adapter.step not in kept:
            raise GenselectError(
                f"{where}.step: no save of step {adapter.step} of {adapter.run} is kept",
                f"Kept are steps {', '.join(map(str, kept))}; runs.{adapter.run}.schedule.save_every and anchor_every decide.",
            )


def export(
    config: Config, runs: Mapping[str, Run], run: str, step: int, *, results: Path, base: Path, output: Path
) -> None:
    """Write a save's adapter and its model card as the folder ``output``, whole or not at all. The same results give the same bytes.

    Args:
        config: The configuration.
        runs: Resolved.
        run: Whose policy it is.
        step: Whose save is meant.
        results: The results folder.
        base: Folder of the base model.
        output: Made anew.

    Raises:
        GenselectError: The save is missing, half-written or broken (those that exist are named), or does not belong to the base model.
    """
    from genselect.training.export_adapter import export_adapter

    name, revision = _base_name(config, base)
    with whole_folder(output) as staged:
        adapter = export_adapter(results / "runs" / run, step, base, staged, base_name=name, base_revision=revision)
        write_text(staged / CARD, model_card(config, runs, run, step, results=results, base=base, adapter=adapter))


def model_card(
    config: Config,
    runs: Mapping[str, Run],
    run: str,
    step: int,
    *,
    results: Path,
    base: Path,
    adapter: Mapping[str, Any],
) -> str:
    """The model card, with the metadata that the Hub reads.

    Args:
        config: The configuration.
        runs: Resolved.
        run: Whose policy it is.
        step: Whose save it is.
        results: The results folder.
        base: Folder of the base model.
        adapter: What :func:`genselect.training.export_adapter.export_adapter` returned.
    """
    name, revision = _base_name(config, base)
    licence = _licence(base)
    metadata: dict[str, Any] = {"library_name": "peft", "tags": ["lora", "reinforcement-learning", "genselect"]}
    metadata |= {"license": licence} if licence else {}
    # The Hub looks these up, so they are there only for what it has.
    metadata |= {"base_model": name, "base_model_relation": "adapter"} if config.models.base.source == "hub" else {}
    metadata |= {"datasets": [config.dataset.repo_id]} if config.dataset.source == "hub" else {}
    manifest = read_json(results / "runs" / run / "manifest.json")
    return _CARD.format(
        metadata=yaml.safe_dump(metadata, sort_keys=True, allow_unicode=True).strip(),
        run=run,
        step=step,
        of=runs[run].schedule.steps,
        base=f"`{name}`" + (f" at commit `{revision}`" if revision else "") + _made_again(config),
        licence=licence
        or {"hub": "see its page", "made": "none of its own", "local": "its own"}[config.models.base.source],
        fingerprint=manifest["fingerprint"],
        commit=manifest["provenance"].get("git_commit") or "unknown",
        algorithm={"ppo": "PPO", "grpo": "GRPO"}.get(runs[run].algorithm, runs[run].algorithm),
        dataset=_dataset(config),
        targets=", ".join(f"`{target}`" for target in adapter["targets"]),
        comparison=_comparison(config, runs, run, step, results),
        architecture=read_json(base / "config.json")["architectures"][0],
        load=json.dumps(name) + (f", revision={json.dumps(revision)}" if revision else ""),
        **{key: adapter[key] for key in ("rank", "alpha", "layers")},
        parameters=f"{adapter['parameters']:,}",
    )


def _base_name(config: Config, base: Path) -> tuple[str, str | None]:
    """What others know the base model by, and its commit. Never a path of this machine."""
    if config.models.base.source == "hub":
        record = read_json(base / RECORD)
        return str(record["repo_id"]), str(record["revision"])
    return f"models/{base.name}", None


def _licence(base: Path) -> str | None:
    """As the base model's own card has it."""
    path = base / "README.md"
    if not path.is_file():
        return None
    _, _, rest = path.read_text(encoding="utf-8", errors="replace").partition("---\n")
    try:
        values = yaml.safe_load(rest.partition("\n---")[0])
    except yaml.YAMLError:
        return None
    return str(values["license"]) if isinstance(values, dict) and values.get("license") else None


def _made_again(config: Config) -> str:
    return {
        "hub": "",
        "made": ", a tiny model made from scratch by this experiment (rule `make_base_model`), "
        + ("published with it" if config.publish.base_model else "on no Hub"),
        "local": ", a folder of the machine that trained",
    }[config.models.base.source]


def _dataset(config: Config) -> str:
    if config.dataset.source == "hub":
        return f"[{config.dataset.repo_id}](https://huggingface.co/datasets/{config.dataset.repo_id}) at commit `{config.dataset.revision}`"
    return {"generated": "problems generated by this experiment", "local": "a folder of the machine that trained"}[
        config.dataset.source
    ]


def _comparison(config: Config, runs: Mapping[str, Run], run: str, step: int, results: Path) -> str:
    path = results / "evaluation" / config.dataset.name / "comparison.json"
    members = evaluation_plan(config, runs).trained
    mine = {arm for arm, policies in members.items() if f"{run}@{step}" in policies}
    entries = [entry for entry in read_json(path)["hypotheses"] if entry["arm"] in mine] if path.is_file() else []
    if not entries:
        return "It has not been compared yet." if mine else "The experiment does not compare this policy."
    lines = [
        f"- **{entry['arm']} above {entry['against']}?**"
        + (" (exploratory)" if entry["exploratory"] else "")
        + f" {entry['verdict']['sentence']}"
        for entry in entries
    ]
    return "\n".join(lines)


_CARD = """\
---
{metadata}
---

# {run}, step {step}: a LoRA adapter

A policy trained by reinforcement learning to *use* candidate solutions: it may reveal candidates one at a time, then submits an answer.

| | |
|---|---|
| base model | {base} |
| licence of the base model | {licence} |
| run | `{run}`, step {step} of {of}, {algorithm} |
| run's fingerprint | `{fingerprint}` |
| code | genselect, commit `{commit}` |
| trained on | {dataset} |
| LoRA | rank {rank}, alpha {alpha}; {layers} layers, {parameters} parameters in 32 bits |
| target modules | {targets} |

## What came of it

{comparison}

## How to load it

```python
from peft import PeftModel
from transformers import AutoTokenizer, {architecture}

base = {architecture}.from_pretrained({load})
policy = PeftModel.from_pretrained(base, "path/to/this/folder")
tokenizer = AutoTokenizer.from_pretrained({load})
```

Prompts and tools are those of the experiment's rows (`train.parquet`, `val.parquet`), written with the base model's chat template.
"""
