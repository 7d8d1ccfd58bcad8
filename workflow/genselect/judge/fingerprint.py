"""One hash over everything that can change a verdict: labels, rewards and evaluations that carry the same one are comparable."""

from __future__ import annotations

from typing import Any

from genselect.answers import cascade_fingerprint_fields
from genselect.config import Config, fingerprint
from genselect.judge.prompt import JudgePrompt

#: Raised by one when the parser or the order of the stages changes what the same settings decide.
VERSION = 1

# Audits are reported and never change a verdict.
_REPORT_ONLY = ("audit_fraction", "audit_seed")


def judge_fingerprint(config: Config) -> str:
    """The sha256, in hex, over model, revision, prompt text, sampling, server arguments and cascade.

    Where the judge runs (``endpoints`` or an owned server, ports, concurrency) is left out: the same model asked in the same way
    gives the same fingerprint. With ``kind: rule`` there is no model, so none of its settings count.

    Raises:
        GenselectError: The judge prompt cannot be loaded.
    """
    return fingerprint(fingerprint_fields(config))


def fingerprint_fields(config: Config) -> dict[str, Any]:
    """What :func:`judge_fingerprint` hashes, for a person who wants to know why two differ."""
    judge = config.judge.identity()
    cascade = {name: value for name, value in judge["cascade"].items() if name not in _REPORT_ONLY}
    fields: dict[str, Any] = {
        "version": VERSION,
        "decides": "rule" if config.judge.kind == "rule" else "model",
        "cascade": {**cascade, "answers": cascade_fingerprint_fields()},
    }
    if config.judge.kind != "rule":
        fields |= {
            "model": judge["model"],
            "revision": judge["revision"],
            "prompt": JudgePrompt.load(config.judge.prompt).sha256,
            "sampling": judge["sampling"],
            "server": judge["server"],
        }
    return fields
