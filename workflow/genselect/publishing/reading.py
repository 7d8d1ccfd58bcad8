"""How to read each kind of file: a few lines of code for those that a tree holds. The tests run them in the tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from genselect.publishing.layout import TargetPlan
from genselect.publishing.publication import Archive


@dataclass(frozen=True)
class Reading:
    """One way of reading."""

    title: str
    language: Literal["python", "bash"]
    code: str


#: Title, the kinds of file that it is for (the first that is there is shown), and the code; ``{path}`` is a file of the tree.
_PYTHON: Sequence[tuple[str, tuple[str, ...], str]] = (
    (
        "Rows: structures within a column are easier to read as Python values than as a data frame.",
        ("rows", "overfit_rows"),
        'import pyarrow.parquet as pq\n\nrows = pq.read_table("{path}").to_pylist()\n'
        'print(rows[0]["extra_info"]["question"], "->", rows[0]["reward_model"]["ground_truth"])',
    ),
    (
        "JSON lines: one object a line, read a line at a time.",
        ("merged", "questions", "labels"),
        'import json\n\nwith open("{path}", encoding="utf-8") as lines:\n    for line in lines:\n        entry = json.loads(line)',
    ),
    (
        "Trajectories of a step: verdicts, scores and texts.",
        ("records", "rollout_records", "validation"),
        'import pandas as pd\n\nstep = pd.read_parquet("{path}")\nprint(step["verdict"].mean(), step.iloc[0]["text"])',
    ),
    (
        "Per-token arrays, by trajectory.",
        ("token_arrays", "rollout_arrays"),
        'import pyarrow.parquet as pq\n\ntokens = pq.read_table("{path}")\n'
        'print(tokens.column_names, len(tokens["response_ids"][0]))',
    ),
    (
        "Metrics: a line a step.",
        ("metrics",),
        'import pandas as pd\n\nmetrics = pd.read_json("{path}", lines=True).set_index("step")\n'
        'print(metrics.filter(regex="^(episode|val)/"))',
    ),
    (
        "Answers of an arm on the held-out questions.",
        ("arms", "baselines"),
        'import pandas as pd\n\nanswers = pd.read_parquet("{path}")\nprint(answers.groupby("question_id")["correct"].mean().mean())',
    ),
    (
        "JSON: manifests, gates, the comparison.",
        ("comparison", "gate", "manifest"),
        'import json\n\nwith open("{path}", encoding="utf-8") as file:\n    print(list(json.load(file)))',
    ),
)
_ADAPTER = (
    "from peft import PeftModel\nfrom transformers import AutoModelForCausalLM\n\n"
    'base = AutoModelForCausalLM.from_pretrained("{base}")  # the base model named below\n'
    'policy = PeftModel.from_pretrained(base, "{path}")'
)
_CHECK = (
    'import hashlib\nimport json\n\nwith open("publication.json", encoding="utf-8") as file:\n    listed = json.load(file)["files"]\n'
    'for entry in listed:\n    with open(entry["path"], "rb") as file:\n'
    '        assert hashlib.file_digest(file, "sha256").hexdigest() == entry["sha256"], entry["path"]'
)


def readings(plan: TargetPlan, archives: Iterable[Archive], base: str) -> list[Reading]:
    """The ways that this tree has use for.

    Args:
        plan: Of the tree.
        archives: Its packed folders.
        base: The base model, as one loads it.
    """
    first: dict[str, str] = {}
    for item in plan.items:
        suits = item.path.endswith(".json") if item.entry.kind == "comparison" else not item.path.endswith(".seal.json")
        if suits:
            first.setdefault(item.entry.kind, item.path)
    found = []
    for title, kinds, code in _PYTHON:
        path = next((first[kind] for kind in kinds if kind in first), None)
        if path is not None:
            found.append(Reading(title, "python", code.format(path=path)))
    packed = next(iter(archives), None)
    if packed is not None:
        folder = packed.folder.rpartition("/")[0]
        code = f"tar -xf {packed.path} -C {folder}   # gives {packed.folder}/ again"
        found.append(Reading("Packed folders: each unpacks in the folder that it lies in.", "bash", code))
    adapter = next(
        (item.path.rpartition("/")[0] for item in plan.items if item.path.endswith("/adapter_config.json")), None
    )
    if adapter is not None:
        found.append(Reading("An adapter.", "python", _ADAPTER.format(base=base, path=adapter)))
    found.append(Reading("Is everything here, and as it was?", "python", _CHECK))
    return found
