"""What the plan reads before its first job: names of the raw shards, a local model; and the resolved configuration that jobs read."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from genselect.config import Config, Dataset
from genselect.config.base import json_value
from genselect.config.training import BaseModel
from genselect.errors import GenselectError
from genselect.formats.atomic import write_text
from genselect.plan.runs import differences, resolved_runs
from genselect.provenance.difference import as_json


def shard_names(dataset: Dataset) -> list[str]:
    """File names of the raw shards, in the order they are read.

    Raises:
        GenselectError: ``local_dir`` is not there or holds no shard, or two shards share a name.
    """
    if dataset.source == "generated":
        count = dataset.generated.shards
        return [f"genselect-{index:05d}-of-{count:05d}.parquet" for index in range(count)]
    if dataset.source == "local":
        assert dataset.local_dir is not None  # the model checked it
        if not dataset.local_dir.is_dir():
            raise GenselectError(
                f"dataset.local_dir: {dataset.local_dir}: there is no such folder",
                "Name the folder that the shards lie in. A relative one is looked for where Snakemake runs.",
            )
        names = sorted(path.name for path in dataset.local_dir.glob("*.parquet"))
        if not names:
            raise GenselectError(
                f"dataset.local_dir: {dataset.local_dir} holds no *.parquet file",
                "Name the folder that the shards lie in.",
            )
        return names
    names = [Path(path).name for path in dataset.shards]
    for name in names:
        if not name.endswith(".parquet"):
            raise GenselectError(
                f"dataset.shards: {name} is not a Parquet file", "List the *.parquet paths in the repository."
            )
        if names.count(name) > 1:
            raise GenselectError(
                f"dataset.shards: {name} is listed twice", "List each shard once; file names must differ."
            )
    return names


def check_base_model(base: BaseModel) -> None:
    """See that a local model's folder is one, before anything is planned on it.

    Raises:
        GenselectError: It is not there, or holds no model.
    """
    if base.source != "local" or base.path is None:
        return
    if not base.path.is_dir():
        raise GenselectError(
            f"models.base.path: {base.path}: there is no such folder",
            "Name the model's folder. A relative one is looked for where Snakemake runs.",
        )
    if not (base.path / "config.json").is_file():
        raise GenselectError(
            f"models.base.path: {base.path} holds no config.json, so it is no model as transformers saves one",
            "Name the folder that holds config.json and the weights; in the Hub's cache that is snapshots/<commit>.",
        )


def write_resolved_config(config: Config, path: Path | str) -> None:
    """Write every key with its value, defaults included. Left alone when nothing changed, so its time keeps its meaning.

    Runs are written resolved: a default that stood there beside ``extends`` would read as set on purpose.
    """
    text = "# The resolved configuration of the last run, defaults included. Written by the workflow; edit your own file.\n"
    values = json_value(config.model_dump(mode="json"))
    values["runs"] = {name: run.model_dump(mode="json") for name, run in resolved_runs(config).items()}
    text += yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120)
    path = Path(path)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


def write_differences(config: Config, path: Path | str) -> None:
    """Write how each run differs from what it extends, which the resolved configuration no longer tells. Left alone when nothing changed.

    A list of ``run``, ``base``, ``changes`` (``key``, ``before``, ``after``; a side without the key is left out).
    """
    found = differences(config, resolved_runs(config))
    bases = {name: str(run.extends) for name, run in config.runs.items()}
    text = json.dumps([as_json(name, bases[name], changes) for name, changes in found.items()], indent=2) + "\n"
    path = Path(path)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)
