"""Built data for the tests of this folder: merged problems with labels, and the rows made of them."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from genselect.config import Config, check_config
from genselect.dataset.build import build_rows
from genselect.formats import write_jsonl
from genselect.judge.fingerprint import judge_fingerprint
from genselect.provenance import write_seal

TOKENS = {"prompt": 64, "response": 448, "turn": 40}
RUNS = {
    "formal": {
        "kind": "formal",
        "tokens": TOKENS,
        "cards": 1,
        "schedule": {"steps": 20, "save_every": 5, "anchor_every": 10},
    }
}


def configuration(**sections: Any) -> Config:
    values: dict[str, Any] = {
        "dataset": {"name": "x"},
        "judge": {"kind": "rule"},
        "prompt": {"system": "solve"},
        "build": {"train_fraction": 0.5, "val_rows_online": 3},
        "runs": RUNS,
        "evaluation": {
            "samples": 2,
            "smallest_effect": 0.05,
            "selector": {"system": "solve", "prompt_tokens": 448, "answer_tokens": 40},
        },
    }
    return check_config({**values, **sections}, "test")


def build(folder: Path, config: Config, problems: int = 40, text: str = "so {answer}") -> Path:
    """Build rows of ``problems`` problems whose answer is 7; question n has (n mod 7) + 1 of eight right, others say 1 or 2."""
    merged, labels = folder / "merged.jsonl", folder / "labels.jsonl"

    def candidates(number: int) -> list[str]:
        right = number % 7 + 1
        return ["7"] * right + [str(1 + (number + k) % 2) for k in range(8 - right)]

    write_jsonl(
        merged,
        (
            {
                "id": f"omr-{number:06d}",
                "problem": " ".join(str((number * 7919 + place * 1047) % 97) for place in range(12)),
                "answer": "7",
                "pass_rate_72b_tir": "0.5",
                "problem_source": "forum",
                "candidates": [
                    {"text": text.format(answer=answer) + f" {place}", "boxed": answer}
                    for place, answer in enumerate(candidates(number))
                ],
            }
            for number in range(problems)
        ),
    )
    write_jsonl(
        labels,
        (
            {
                "id": f"omr-{number:06d}",
                "index": place,
                "correct": answer == "7",
                "judged": True,
                "reasoning": "",
                "finish_reason": "stop",
                "source": "rule",
            }
            for number in range(problems)
            for place, answer in enumerate(candidates(number))
        ),
    )
    write_seal(
        labels,
        kind="labels",
        counts={},
        outputs=[labels],
        inputs=[merged],
        started=datetime.datetime.now(datetime.UTC),
        fingerprints={"judge": judge_fingerprint(config)},
    )
    build_rows(merged, labels, folder / "built", config)
    return folder / "built"
