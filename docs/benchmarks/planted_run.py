"""The healthy run and the models from which planted_faults.py computes its faults."""

import copy
import functools
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import torch
import yaml

from genselect.base_model.tokenizer import load_tokenizer
from genselect.episode import Renderer
from genselect.formats import read_json
from genselect.training import guards
from genselect.training.guards import Kind, Rule
from genselect.training.records import (
    TokenArrays,
    Trajectory,
    read_records,
    read_tokens,
    records_path,
    tokens_path,
)

PACKED_QUESTIONS = 3
#: Tokens over which the leaking value model forgets.
MEMORY = 100.0
CANDIDATES = 8


@dataclass
class Fault:
    """A planted fault, as it shows."""

    what: str
    value: str
    caught: str
    """How it was caught; empty when it was not."""


class Row(NamedTuple):
    """Of the table."""

    check: str
    healthy: str
    limit: str
    fault: Fault


@dataclass
class Step:
    """One step of the run, as recorded."""

    number: int
    metrics: dict
    trajectories: list[Trajectory]
    tokens: list[TokenArrays]
    """In the trajectories' order."""
    proofs: list[dict]


# --- the healthy run ----------------------------------------------------------------------------------------------------


class Run:
    """A finished run directory with its model and rows."""

    def __init__(self, folder: Path, model: Path, rows: Path) -> None:
        self.folder, self.model = folder, model
        self.settings = read_json(folder / "manifest.json")["identity"]["run"]
        self.health = read_json(folder / "health.json")
        self.tokenizer = load_tokenizer(model)
        self.renderer = Renderer(self.tokenizer)
        self.rows = {row["extra_info"]["question_id"]: row for row in pq.read_table(rows).to_pylist()}
        last = max((folder / "attempts").glob("*.verl.yaml"), key=lambda path: int(path.name.split(".")[0]))
        changes = yaml.safe_load(last.read_text())["genselect"].get("guards") or {}
        self.guards = guards.settings_from(changes)
        if self.settings["optimiser"]["gamma"] != 1 or self.settings["potential"]:
            sys.exit("Monte-Carlo returns are worked out from the pieces of the score here: gamma 1 and no potential.")

    @functools.cached_property
    def steps(self) -> list[Step]:
        """Every training step."""
        lines = [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        found = []
        for line in lines:
            if "episode/mean_explores" not in line:
                continue
            number, attempt = line.pop("step"), line.pop("attempt")
            if "actor/ppo_kl_max" in line:
                line["actor/ppo_kl"] = line["actor/ppo_kl_max"]  # as the recorder reads a history back
            trajectories = read_records(records_path(self.folder / "records", number), attempt=attempt)
            arrays = read_tokens(tokens_path(self.folder / "records", number))
            shown = read_json(self.folder / "proofs" / f"step_{number}.json")
            found.append(Step(number, line, trajectories, [arrays[row.key] for row in trajectories], shown))
        return found

    @property
    def history(self) -> list[dict]:
        """Their metrics, as the guards read them."""
        return [step.metrics for step in self.steps]

    def prompt(self, question: str) -> list[int]:
        """Its ids."""
        return self.renderer.prompt(self.rows[question]["prompt"])


def worst_value(rule: Rule, history: Sequence[dict]) -> tuple[float, int] | None:
    """The metric's worst value after the guard's warm-up (for rise and fall, the worst change), and the steps over its limit."""
    # With a limit that everything breaks, the guard itself says which value is worst and what it is compared with.
    far = {Kind.ABOVE: -1e6, Kind.MAGNITUDE: -1.0, Kind.BELOW: 1e6, Kind.RISE: -1e6, Kind.FALL: -1e6}[rule.kind]
    open_rule = replace(rule, limit=far, patience=1)
    values, over = [], 0
    for at, metrics in enumerate(history):
        over += bool(
            guards.evaluate(history[:at], metrics, guards.Settings((replace(rule, patience=1),)), step=at).findings
        )
        for finding in guards.evaluate(history[:at], metrics, guards.Settings((open_rule,)), step=at).findings:
            value, threshold = finding.value, finding.limit
            if value is None or threshold is None:
                continue
            if rule.kind is Kind.RISE:
                value -= threshold - far
            elif rule.kind is Kind.FALL:
                value = 1 - value * (1 - far) / threshold
            values.append(abs(value) if rule.kind is Kind.MAGNITUDE else value)
    if not values:
        return None
    return (min(values) if rule.kind is Kind.BELOW else max(values)), over


# --- models -------------------------------------------------------------------------------------------------------------


def patched(model: torch.nn.Module) -> torch.nn.Module:
    """As verl loads a model for packed rows."""
    from verl.models.transformers.monkey_patch import apply_monkey_patch

    apply_monkey_patch(model=model, use_remove_padding=True, ulysses_sp_size=1)
    return model.eval()


def value_model(folder: Path, memory: float | None = None) -> torch.nn.Module:
    """A critic at the start of its training: the base model under a new head.

    With ``memory``, its linear attention forgets over that many tokens, not over the few of the miniature's own.
    """
    from transformers import AutoConfig, AutoModelForTokenClassification

    config = AutoConfig.from_pretrained(folder)
    config.num_labels, config.classifier_dropout = 1, 0.0
    torch.manual_seed(0)
    model = AutoModelForTokenClassification.from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="sdpa"
    )
    for name, weight in model.named_parameters():
        if memory is not None and name.endswith("A_log"):
            weight.fill_(-math.log(memory))
    return patched(model)


def policy_model(folder: Path) -> torch.nn.Module:
    """The policy that the run started from."""
    from transformers import AutoModelForImageTextToText

    return patched(AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa"))


def logits_alone(model: torch.nn.Module, ids: Sequence[int]) -> torch.Tensor:
    """Shape (tokens, outputs)."""
    row = torch.tensor([ids])
    return model(input_ids=row, attention_mask=None, position_ids=torch.arange(len(ids))[None], use_cache=False).logits[
        0
    ]


def logits_padded(model: torch.nn.Module, rows: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """One batch, padded at the end."""
    lengths = [len(row) for row in rows]
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence(
        [torch.ones(length, dtype=torch.long) for length in lengths], batch_first=True
    )
    positions = torch.arange(ids.shape[1])[None].expand_as(ids)
    found = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    return [row[:length] for row, length in zip(found, lengths, strict=True)]


def logits_packed(model: torch.nn.Module, rows: Sequence[Sequence[int]], boundaries: bool) -> list[torch.Tensor]:
    """One sequence of all rows, as verl packs them."""
    lengths = [len(row) for row in rows]
    ends = torch.tensor([0, *lengths]).cumsum(0)
    options = {"cu_seqlens": ends, "cu_seqlens_cpu": ends} if boundaries else {}
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    ids = torch.tensor([[token for row in rows for token in row]])
    found = model(input_ids=ids, attention_mask=None, position_ids=positions, use_cache=False, **options).logits[0]
    return list(found.split(lengths))


def sampled(logits: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
    """Log-probabilities of the tokens that came next, shape (tokens - 1,)."""
    return logits[:-1].log_softmax(-1).gather(1, torch.tensor(ids)[1:, None])[:, 0]


@dataclass
class Policy:
    """What a model says of a step's policy tokens: each of shape (rows, longest response), padded."""

    log_probs: torch.Tensor
    entropy: float
    """Mean over the policy's tokens, nats."""


def policy_over(
    model: torch.nn.Module, run: Run, step: Step, rows: int | None = None, temperature: float = 1
) -> Policy:
    log_probs, entropies = [], []
    for row, arrays in list(zip(step.trajectories, step.tokens, strict=True))[:rows]:
        prompt = run.prompt(row.question_id)
        ids = [*prompt, *arrays.response_ids.tolist()]
        logits = logits_alone(model, ids) / temperature
        log_probs.append(sampled(logits, ids)[len(prompt) - 1 :])
        over_vocabulary = logits[len(prompt) - 1 : -1].log_softmax(-1)
        chosen = torch.tensor(arrays.response_mask) == 1
        entropies.append(-(over_vocabulary.exp() * over_vocabulary).sum(-1)[chosen])
    padded = torch.nn.utils.rnn.pad_sequence(log_probs, batch_first=True)
    return Policy(padded, float(torch.cat(entropies).mean()))


def column(step: Step, name: str, rows: int | None = None) -> torch.Tensor:
    parts = [torch.tensor(getattr(arrays, name)) for arrays in step.tokens[:rows]]
    return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)


def verls_loss(
    run: Run, step: Step, old: torch.Tensor, new: torch.Tensor, advantages: torch.Tensor | None = None
) -> dict:
    """verl's policy loss on the first rows of a step: ``loss``, ``ppo_kl`` and ``pg_clipfrac``."""
    from verl.trainer.ppo.core_algos import compute_policy_loss

    rows = len(new)
    loss, clipfrac, kl, _ = compute_policy_loss(
        old,
        new,
        column(step, "advantages", rows) if advantages is None else advantages,
        column(step, "response_mask", rows).float(),
        cliprange=run.settings["optimiser"]["clip"],
    )
    return {"loss": loss.item(), "ppo_kl": kl.item(), "pg_clipfrac": clipfrac.item()}


def jolted(model: torch.nn.Module, size: float) -> torch.nn.Module:
    """A policy after too large an update: every weight matrix off by a random matrix of rank 8, ``size`` of its own norm."""
    generator = torch.Generator().manual_seed(0)
    moved = copy.deepcopy(model)
    for name, weight in moved.named_parameters():
        if weight.dim() == 2 and "visual" not in name:
            left = torch.randn(weight.shape[0], 8, generator=generator)
            update = left @ torch.randn(8, weight.shape[1], generator=generator)
            weight += size * weight.norm() / update.norm() * update
    return moved
