"""The rows of the whole held-out side, made from ``questions.jsonl``: ``val.parquet`` holds only those of the online validation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from genselect.config import Config
from genselect.dataset.build import row_of_question
from genselect.errors import GenselectError
from genselect.formats import read_json, read_jsonl
from genselect.provenance import check_seal, file_sha256

#: The files that the rows are made from, beside each other.
FILES = ("questions.jsonl", "partition.json", "stats.json")


def held_out_rows(folder: Path, config: Config) -> tuple[list[dict[str, Any]], str]:
    """Every held-out row, in population order, and the fingerprint of the judge of its labels.

    The rows are those that the build would have written, had it written all of them to ``val.parquet``.

    Args:
        folder: Of the built rows: :data:`FILES` and the seal of ``stats.json``.
        config: The configuration.

    Raises:
        GenselectError: The files are not those that were sealed together, or do not fit each other.
    """
    judge = sealed_judge(folder)
    partition = read_json(folder / "partition.json")
    trained = set(partition["train_ids"])
    wanted = [name for name in partition["population_ids"] if name not in trained]
    held_out = {line["question_id"]: line for _, line in read_jsonl(folder / FILES[0]) if line["split"] == "held_out"}
    if sorted(wanted) != sorted(held_out):
        raise GenselectError(
            f"{folder / FILES[0]}: its {len(held_out)} held-out questions are not the {len(wanted)} of partition.json",
            "The two files are of different builds; build the rows again.",
        )
    return [row_of_question(held_out[name], config, judge) for name in wanted], judge


def sealed_judge(folder: Path) -> str:
    """The fingerprint of the judge that labelled the built rows, after checking that the files are the sealed ones.

    Raises:
        GenselectError: A file is not what was sealed, or the seal is missing or names no judge.
    """
    seal = check_seal(folder / "stats.json")
    judge = seal.fingerprints.get("judge") if seal is not None else None
    if seal is None or judge is None:
        raise GenselectError(
            f"{folder / 'stats.json'}: has no seal that names the judge of the labels",
            "Build them from labels that the workflow made: others name no judge, so nobody knows if submissions are judged alike.",
        )
    for name in FILES[:2]:
        entry = seal.output(name)
        if entry is None or file_sha256(folder / name) != entry.sha256:
            raise GenselectError(
                f"{folder / name}: is not the file that stats.json.seal.json sealed", "Build the rows again."
            )
    return judge
