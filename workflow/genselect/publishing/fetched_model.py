"""The base model of a fetched experiment, brought to its place so that what was trained from it does not count as out of date."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from genselect.base_model.fetch import fetch_model
from genselect.base_model.folder import RECORD
from genselect.config import load_config
from genselect.errors import GenselectError
from genselect.formats import read_json

logger = logging.getLogger(__name__)


def bring_base_model(results: Path, name: str, time_ns: int, *, endpoint: str | None = None) -> None:
    """Download the base model that a fetched experiment started from, at its commit, and give it the time of what was fetched.

    Files that came with the publication, or that stand there already, are not downloaded.

    Args:
        results: The results folder.
        name: The experiment's.
        time_ns: The time that the fetched files have. A base model newer than they are would have Snakemake train them all again.
        endpoint: Address of the Hub; None takes ``HF_ENDPOINT`` or the public one.

    Raises:
        GenselectError: The Hub refuses or cannot be reached, the model is not the one that the experiment started from, or there is
            nothing to download it from.
    """
    folder = results / "models" / name
    config = results / "data" / name / "config.yaml"
    if not config.is_file():
        raise GenselectError(
            f"{config}: was not published, so nothing says which base model it was", "Ask whoever published it."
        )
    base = load_config(config).models.base
    if base.source == "hub":
        record = read_json(folder / RECORD) if (folder / RECORD).is_file() else None
        # The configuration's commit may be a short one.
        commit = record["revision"] if record else base.revision
        fetched = fetch_model(base.repo_id, commit, folder, endpoint=endpoint)
        if record not in (None, fetched):
            raise GenselectError(
                f"{folder}: the model downloaded is not the one that the experiment started from ({RECORD} says otherwise)",
                f"Delete {folder}, fetch the publication again, and then the model; if it stays so, do not train from it.",
            )
    elif not (folder / "config.json").is_file():
        raise GenselectError(
            f"{folder}: the base model was not published, and no repository has it (models.base.source: {base.source})",
            "Whoever published it can do so: publish.base_model, where the workflow made it. A folder of your own is named in "
            "models.base.path."
            if base.source == "made"
            else "Take it from whoever published it, and name your folder in models.base.path of a copy of the configuration.",
        )
    give_time(results, name, time_ns)
    logger.info("%s: the base model is there, no newer than what was trained from it", folder)


def give_time(results: Path, name: str, time_ns: int) -> None:
    """Give every file of the base model one time."""
    for path in (results / "models" / name).rglob("*"):
        if path.is_file():
            os.utime(path, ns=(time_ns, time_ns))
