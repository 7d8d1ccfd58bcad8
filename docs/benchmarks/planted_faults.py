#!/usr/bin/env python3
"""Each proof and each guard: quiet over a healthy run, and caught on a planted fault, in numbers.

    docs/benchmarks/planted_faults.py --run results/runs/formal --model results/models/mini [--output planted_faults.md]

Faults are computed from the run's own records and the base model wherever that can be done, with verl's own policy loss. Exits
with 1 when a fault is not caught, when the healthy run has an alarm or a stop, or when a proof or a guard has no fault here.
"""

import argparse
import asyncio
import copy
import datetime
import fnmatch
import functools
import inspect
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import torch
import transformers
import yaml

from genselect.base_model import gated_delta
from genselect.base_model.calls import EXPLORE, read_calls, submit_call
from genselect.base_model.network import build_network
from genselect.base_model.tokenizer import load_tokenizer
from genselect.episode import Episode, Generated, Limits, Renderer, play, score
from genselect.formats import read_json
from genselect.training import calibration, episodes, guards, proofs
from genselect.training.boundaries import name_boundaries
from genselect.training.guards import DEFAULT_RULES, NON_FINITE, Kind, Level, Rule
from genselect.training.records import (
    TokenArrays,
    Trajectory,
    episode_metrics,
    read_records,
    read_tokens,
    records_path,
    tokens_path,
)
from genselect.training.reward import Ruling

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


# --- proofs -------------------------------------------------------------------------------------------------------------


def caught(proof: proofs.Proof) -> str:
    return "" if proof.passed else "proof failed"


class Proofs:
    """A row of the table for each proof, healthy and faulty."""

    def __init__(self, run: Run) -> None:
        self.run = run
        # Linear attention that takes boundaries without flash-linear-attention, as the miniature trains with.
        gated_delta.install()
        self.base = policy_model(run.model)
        self.failed: list[proofs.Proof] = []
        self.one_step_apart = ""
        """What `rollout_matches_actor` says where the actor is one step behind."""
        self.short_memory = math.nan
        """What `first_state_agrees` reads of a leak that is forgotten within a prompt."""

    def all(self) -> dict[str, Callable[[], list[Row]]]:
        """By the function that gives the proof."""
        return {
            "first_state_agrees": self.first_state,
            "first_update_is_on_policy": self.first_update,
            "packed_equals_padded": self.packed,
            "rollout_matches_actor": self.rollout,
        }

    def recorded(self, name: str, figure: str, worst: Callable = max) -> str:
        """Worst of a number over the run's proofs."""
        given = [proof for step in self.run.steps for proof in step.proofs if proof["name"] == name]
        if not given:
            sys.exit(f"{self.run.folder}: no proof {name}")
        return f"{worst((proof['numbers'][figure] for proof in given), key=float):.4g}"

    @functools.cached_property
    def rows(self) -> tuple[list[list[int]], list[int], list[str]]:
        """Samples of a few questions of the first step: ids, lengths of their prompts, questions."""
        step = self.run.steps[0]
        chosen = sorted({row.question_id for row in step.trajectories})[:PACKED_QUESTIONS]
        picked = [
            (self.run.prompt(row.question_id), arrays, row.question_id)
            for row, arrays in zip(step.trajectories, step.tokens, strict=True)
            if row.question_id in chosen
        ]
        ids = [[*prompt, *arrays.response_ids.tolist()] for prompt, arrays, _ in picked]
        return ids, [len(prompt) for prompt, _, _ in picked], [question for _, _, question in picked]

    @functools.cache  # noqa: B019  (one object, which lives as long as the program)
    def values(self, memory: float | None = None) -> dict[str, list[torch.Tensor]]:
        """The value model's, by how it is asked."""
        model = value_model(self.run.model, memory)
        ids, _, _ = self.rows
        # Without a name for the boundaries verl hands none over.
        leaking = logits_packed(model, ids, boundaries=False)
        return {
            "leaking": leaking,
            "padded": logits_padded(model, ids),
            "packed": logits_packed(name_boundaries(model), ids, boundaries=True),
        }

    def first_state(self) -> list[Row]:
        """A critic whose rows see each other."""
        _, prompts, questions = self.rows

        def proof(how: str, memory: float | None = None) -> proofs.Proof:
            first = [float(row[at - 1, 0]) for row, at in zip(self.values(memory)[how], prompts, strict=True)]
            return proofs.first_state_agrees("critic_first_value", first, questions)

        good, bad, short = proof("packed", MEMORY), proof("leaking", MEMORY), proof("leaking")
        if not good.passed:
            sys.exit(f"healthy value model: {good.message}")
        self.failed.append(bad)
        self.short_memory = short.numbers["max_std"]
        healthy = (
            f"std {self.recorded('critic_first_value', 'max_std')} critic, {self.recorded('predictor_k0', 'max_std')} predictor; "
            f"packed with boundaries here {good.numbers['max_std']:.2g}"
        )
        what = (
            f"leaking value model: {len(questions)} rows of {PACKED_QUESTIONS} questions packed without boundaries, "
            f"memory of {MEMORY:g} tokens"
        )
        fault = Fault(what, f"std {bad.numbers['max_std']:.3g}", caught(bad))
        return [Row("proof `first_state_agrees`", healthy, f"std < {bad.numbers['limit']:g}", fault)]

    def packed(self) -> list[Row]:
        """Both models, packed without boundaries."""
        ids, _, _ = self.rows
        policy = {
            how: [sampled(logits, row) for logits, row in zip(found, ids, strict=True)]
            for how, found in {
                "padded": logits_padded(self.base, ids),
                "packed": logits_packed(self.base, ids, boundaries=True),
                "leaking": logits_packed(self.base, ids, boundaries=False),
            }.items()
        }
        result = []
        for who, found in (("value model", self.values()), ("policy", policy)):
            flat = {how: torch.cat([row.flatten() for row in rows]).numpy() for how, rows in found.items()}
            good, bad = (
                proofs.packed_equals_padded(f"packed_{who}", flat[how], flat["padded"]) for how in ("packed", "leaking")
            )
            if not good.passed:
                sys.exit(f"healthy {who}: {good.message}")
            value = f"difference {bad.numbers['max_difference']:.3g}"
            fault = Fault(f"{who} packed without boundaries", value, caught(bad))
            healthy = f"{good.numbers['max_difference']:.2g} over {good.numbers['tokens']:,} tokens, computed here"
            limit = f"difference ≤ {good.numbers['limit']:g}"
            result.append(Row(f"proof `packed_equals_padded`, {who}", healthy, limit, fault))
        return result

    def _updated(self) -> list[Step]:
        """Steps whose policy is no longer the first one."""
        first = next(at for at, step in enumerate(self.run.steps) if "actor/ppo_kl" in step.metrics)
        return self.run.steps[first + 1 :]

    def first_update(self) -> list[Row]:
        """Old log-probabilities of a policy that has moved on."""
        tolerance = self.run.steps[-1].metrics["proof/first_update_on_policy/kl_tolerance"]

        def compared(step: Step) -> tuple[dict, proofs.Proof]:
            # The base model's as the old ones: fresh at the first step, stale once the policy has been updated.
            figures = verls_loss(
                self.run, step, policy_over(self.base, self.run, step).log_probs, column(step, "old_log_probs")
            )
            given = proofs.first_update_is_on_policy(figures["pg_clipfrac"], figures["ppo_kl"], kl_tolerance=tolerance)
            return figures, given

        figures, good = compared(self.run.steps[0])
        if not good.passed:
            sys.exit(f"step {self.run.steps[0].number}, the base model's own: {good.message}")
        clipped = self.recorded("first_update_on_policy", "pg_clipfrac")
        kl = self.recorded("first_update_on_policy", "ppo_kl", lambda values, key: max(map(abs, values)))
        healthy = f"clipped {clipped}, KL {kl}; recomputed here {figures['pg_clipfrac']:.2g}, {figures['ppo_kl']:.2g}"
        result = []
        for step, age in ((self._updated()[0], "one step"), (self._updated()[-1], f"{len(self._updated())} steps")):
            figures, bad = compared(step)
            self.failed.append(bad)
            value = f"clipped {figures['pg_clipfrac']:.3g}, KL {figures['ppo_kl']:.3g}"
            fault = Fault(f"old log-probabilities that are {age} stale (step {step.number})", value, caught(bad))
            limit = f"clipped 0, KL ≤ {tolerance:g}"
            result.append(Row("proof `first_update_is_on_policy`", healthy, limit, fault))
        return result

    def rollout(self) -> list[Row]:
        """An engine and an actor with different policies."""
        healthy = (
            f"mean difference {self.recorded('rollout_matches_actor', 'mean_difference')}, "
            f"Pearson {self.recorded('rollout_matches_actor', 'pearson', min)}"
        )
        first, last = self.run.steps[0], self._updated()[-1]
        age = f"{len(self._updated())} steps"
        cases = (
            (
                f"weights of engine and actor {age} apart (step {last.number})",
                last,
                policy_over(self.base, self.run, last),
            ),
            (
                "engine at temperature 0.25, actor at 1",
                first,
                policy_over(self.base, self.run, first, temperature=0.25),
            ),
            (
                "an actor with new weights behind a trained engine",
                first,
                policy_over(build_network(self.run.tokenizer, 1).eval(), self.run, first),
            ),
        )
        near = self._updated()[0]
        apart = self._engine_against(near, policy_over(self.base, self.run, near))
        self.one_step_apart = f"{apart.message.partition(': ')[0]}, and it {'passes' if apart.passed else 'fails'}"
        result = []
        for what, step, other in cases:
            proof = self._engine_against(step, other)
            value = f"mean difference {proof.numbers['mean_difference']:.3g}, Pearson {proof.numbers['pearson']:.3f}"
            limit = f"≤ {proof.numbers['max_mean_difference']:g}, ≥ {proof.numbers['min_pearson']:g}"
            result.append(Row("proof `rollout_matches_actor`", healthy, limit, Fault(what, value, caught(proof))))
        return result

    @staticmethod
    def _engine_against(step: Step, actor: Policy) -> proofs.Proof:
        return proofs.rollout_matches_actor(
            column(step, "rollout_log_probs"), actor.log_probs, column(step, "response_mask")
        )


# --- guards -------------------------------------------------------------------------------------------------------------

#: A turn's text; None for one that never ends.
Turns = Callable[[int], str | None]


def never_calls(turn: int) -> str | None:
    return "pass 64\n\n"


def submits_at_once(turn: int) -> str | None:
    return submit_call("64")


def explores_once(turn: int) -> str | None:
    return EXPLORE if turn == 0 else submit_call("64")


def explores_all(turn: int) -> str | None:
    return EXPLORE if turn < CANDIDATES else submit_call("64")


def never_ends(turn: int) -> str | None:
    return None


class Guards:
    """A planted fault for each guard: the metrics that replace a healthy step's, or the last steps'."""

    def __init__(self, run: Run, given: Proofs) -> None:
        self.run, self.base, self.proofs = run, given.base, given
        self.first = run.steps[0]
        self.rows = run.settings["schedule"]["mini_batch"] * run.settings["schedule"]["samples"]

    def all(self) -> dict[str, tuple[str, Callable[[Step], dict]]]:
        """By guard: what is planted, and the faulty figures of a step."""
        return {
            "kl": ("a mini-batch that moves each matrix by 40 %, at random", lambda step: self.kl(0.4)),
            "kl_repeated": ("the same, in two steps running", lambda step: self.kl(0.4)),
            "kl_jump": ("a mini-batch that moves each matrix by 60 %", lambda step: self.kl(0.6)),
            "no_submission": ("every other episode makes no call", lambda step: self.played(step, never_calls, 2)),
            "never_submits": ("a policy that never calls", lambda step: self.played(step, never_calls)),
            "zero_explores": ("every other episode submits unseen", lambda step: self.played(step, submits_at_once, 2)),
            "explores_fall": ("a policy that explores once", lambda step: self.played(step, explores_once)),
            "explores_all": ("a policy that always sees all", lambda step: self.played(step, explores_all)),
            "entropy_rise": ("the policy at temperature 2", lambda step: self.entropy(2)),
            "entropy_jump": ("weights lost: a new network", lambda step: self.new_network()),
            "proof_failed": (
                "the failed proofs above",
                lambda step: proofs.proof_metrics(self.proofs.failed),
            ),
            "length_capped": ("turns that never end", lambda step: self.played(step, never_ends)),
            "missing": ("one question's group failed in the agent loop", self.missing),
            "critic_useless": ("the critic's values, dealt out anew", self.shuffled_critic),
            "critic_harmful": ("a critic of the wrong sign", lambda step: self.critic(step, lambda r, v, k: -r)),
            "critic_harmful_by_k": (
                "the wrong sign at k = 0 only",
                lambda step: self.critic(step, lambda r, v, k: np.where(k == 0, -r, v)),
            ),
            "predictor_useless": ("a predictor that always says one half", self.constant_predictor),
            "predictor_harmful": ("labels the wrong way round: logit ±3", self.inverted_predictor),
            "predictor_constant": ("a predictor that always says one half", self.constant_predictor),
            NON_FINITE: ("one advantage that is nan", self.nan_loss),
        }

    @functools.cache  # noqa: B019
    def kl(self, size: float) -> dict:
        """Three mini-batches, one of which moved the policy: log-probabilities before and after, through verl's loss."""
        moved = policy_over(jolted(self.base, size), self.run, self.first, self.rows).log_probs
        figures = verls_loss(self.run, self.first, column(self.first, "old_log_probs", self.rows), moved)
        return {"actor/ppo_kl": [0.001, figures["ppo_kl"], 0.002]}

    @functools.cache  # noqa: B019
    def entropy(self, temperature: float) -> dict:
        """Of the base model at a temperature."""
        return {"actor/entropy": policy_over(self.base, self.run, self.first, self.rows, temperature).entropy}

    @functools.cache  # noqa: B019
    def new_network(self) -> dict:
        """Entropy of weights that were never trained."""
        network = build_network(self.run.tokenizer, 1).eval()
        return {"actor/entropy": policy_over(network, self.run, self.first, self.rows).entropy}

    def played(self, step: Step, turns: Turns, every: int = 1) -> dict:
        """The step's questions played by a faulty policy, in every ``every``-th episode."""
        rows = [
            self.episode(row, turns) if number % every == 0 else row for number, row in enumerate(step.trajectories)
        ]
        return episode_metrics(rows, CANDIDATES)

    def episode(self, row: Trajectory, turns: Turns) -> Trajectory:
        """A question played by the environment with a scripted policy."""
        tokenizer, tokens = self.run.tokenizer, self.run.settings["tokens"]
        turn = iter(range(1000))

        async def generate(context: Sequence[int], max_tokens: int) -> Generated:
            text = turns(next(turn))
            ids = [] if text is None else [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
            ids = ids or tokenizer.encode("pass 64\n\n" * max_tokens, add_special_tokens=False)
            return Generated(ids[:max_tokens], [-0.1] * len(ids[:max_tokens]))

        async def parse(ids: Sequence[int]) -> list:
            return read_calls(tokenizer.decode(ids[:-1]))

        candidates = self.run.rows[row.question_id]["extra_info"]["cached_candidates"]
        played = asyncio.run(
            play(
                Episode([episodes.candidate(entry) for entry in candidates], self.run.settings["max_turns"]),
                self.run.prompt(row.question_id),
                self.run.renderer,
                generate,
                parse,
                Limits(tokens["response"], tokens["turn"]),
                tokenizer.eos_token_id,
            )
        )
        reward = self.run.settings["reward"]
        pieces = score(
            played.episode,
            verdict=False,
            format_score=reward["format_score"],
            cost_per_explore=reward["cost_per_explore"],
        )
        wrong = Ruling(False, "none")
        return episodes.record(
            row.step, row.attempt, episodes.trajectory(played, wrong, pieces, row.question_id, row.sample)
        )

    def missing(self, step: Step) -> dict:
        """A group dropped."""
        expected = self.run.settings["schedule"]["problems"] * self.run.settings["schedule"]["samples"]
        dropped = step.trajectories[0].question_id
        left = [row for row in step.trajectories if row.question_id != dropped]
        return {"rollout/missing_share": 1 - len(left) / expected}

    def critic(self, step: Step, fault: Callable) -> dict:
        """The critic's report with ``fault(returns, values, k)`` for its values."""
        returns: list[float] = []
        values: list[float] = []
        k: list[int] = []
        for row in step.trajectories:
            cost = row.score_cost / row.revealed if row.revealed else 0.0
            # What was still to come at each decision point: the score without the costs paid before.
            returns += [row.score - cost * seen for seen in row.decision_k]
            values += row.decision_values
            k += row.decision_k
        r, v, at = (np.array(part, dtype=float) for part in (returns, values, k))
        report = calibration.critic_report(r, fault(r, v, at), at.astype(int))
        return calibration.report_metrics(None, report)

    def shuffled_critic(self, step: Step) -> dict:
        """Its own values at other states."""
        dice = np.random.default_rng(step.number)
        return self.critic(step, lambda r, v, k: dice.permutation(v))

    def predictor(self, step: Step, fault: Callable) -> dict:
        """The predictor's report with ``fault(logits, verdicts)`` for its logits."""
        left = [row for row in step.trajectories if row.well_formed]
        logits = np.array([row.decision_logits[-1] for row in left])
        verdicts = np.array([float(row.verdict) for row in left])
        every = np.concatenate([row.decision_logits for row in step.trajectories])
        of_episode = np.concatenate([[float(row.verdict)] * len(row.decision_logits) for row in step.trajectories])
        report = calibration.predictor_report(
            fault(logits, verdicts),
            verdicts,
            [row.decision_k[-1] for row in left],
            all_logits=fault(every, of_episode),
        )
        return calibration.report_metrics(report, None)

    def constant_predictor(self, step: Step) -> dict:
        """Logit 0 everywhere."""
        return self.predictor(step, lambda logits, verdicts: np.zeros_like(logits))

    def inverted_predictor(self, step: Step) -> dict:
        """Sure, and wrong."""
        return self.predictor(step, lambda logits, verdicts: 3 - 6 * verdicts)

    def nan_loss(self, step: Step) -> dict:
        """verl's loss with one advantage that is nan."""
        advantages = column(self.first, "advantages", self.rows)
        advantages[0, 0] = math.nan
        old = column(self.first, "old_log_probs", self.rows)
        return {"actor/pg_loss": verls_loss(self.run, self.first, old, old, advantages)["loss"]}

    def check_own_arithmetic(self) -> None:
        """The figures worked out here from the records are those that the trainer wrote."""
        for step in self.run.steps:
            ours = {
                **episode_metrics(step.trajectories, CANDIDATES),
                **self.critic(step, lambda r, v, k: v),
                **self.predictor(step, lambda logits, verdicts: logits),
            }
            for name, value in ours.items():
                if not math.isclose(value, step.metrics[name], rel_tol=1e-4, abs_tol=1e-5):
                    sys.exit(
                        f"step {step.number}: {name} is {value} from the records, {step.metrics[name]} in metrics.jsonl"
                    )

    def table(self) -> list[Row]:
        """A row for each guard."""
        planted = self.all()
        result = []
        for rule in self.run.guards.rules:
            what, faulty = planted[rule.name]
            found = worst_value(rule, self.run.history)
            healthy = "no figure" if found is None else f"{found[0]:.3g}"
            if found is not None and found[1]:
                healthy += f" ({found[1]} of {len(self.run.history)} steps past the limit)"
            result.append(Row(f"guard `{rule.name}`", healthy, limit_words(rule), self.plant(rule, what, faulty)))
        what, faulty = planted[NON_FINITE]
        count = sum(len(metrics) for metrics in self.run.history)
        stop = Rule(NON_FINITE, "*", Kind.ABOVE, 0, Level.STOP)
        fault = self.plant(stop, what, faulty)
        result.append(Row(f"guard `{NON_FINITE}`", f"0 of {count:,} figures", "finite", fault))
        return result

    def plant(self, rule: Rule, what: str, faulty: Callable[[Step], dict]) -> Fault:
        """Figures of as many steps as the guard is patient replaced, as late in the run as its own figures allow.

        The guard must speak at the last of them, at its level, and at none before. Where the healthy run's figures already lean that
        way (few explores are left to lose at its end, say), an earlier place is tried.
        """
        run = self.run
        healthy = [spoken(run.history, at, run.guards) for at in range(len(run.steps))]
        for end in range(len(run.steps), rule.patience, -1):
            block = run.steps[end - rule.patience : end]
            # A figure may be undefined at a step (a Brier skill where every verdict is right), which no guard judges.
            if not all(any(fnmatch.fnmatchcase(name, rule.metric) for name in step.metrics) for step in block):
                continue
            series = [*run.history[: end - rule.patience], *({**step.metrics, **faulty(step)} for step in block)]
            heard = [spoken(series, at, run.guards) for at in range(end - rule.patience, end)]
            finding = heard[-1].get(rule.name)
            early = any(rule.name in names for names in heard[:-1]) or rule.name in healthy[end - 1]
            if finding is None or finding.level is not rule.level or early:
                continue
            with_it = sorted(heard[-1].keys() - healthy[end - 1].keys() - {rule.name})
            running = f", {rule.patience} steps running" if rule.patience > 1 else ""
            others = f" (with {', '.join(f'`{name}`' for name in with_it)})" if with_it else ""
            value = f"`{finding.metric}` " + ("nan" if finding.value is None else f"{finding.value:.3g}") + running
            place = f" (at step {end})" if end < len(run.steps) else ""
            return Fault(what + place, value, f"**{finding.level}**{others}")
        return Fault(what, "silent at every step", "")


def spoken(history: Sequence[dict], at: int, settings: guards.Settings) -> dict[str, guards.Finding]:
    """What the guards say of one step."""
    health = guards.evaluate(history[:at], history[at], settings, step=at + 1)
    return {finding.guard: finding for finding in health.findings}


def limit_words(rule: Rule) -> str:
    words = {Kind.ABOVE: "≤", Kind.BELOW: "≥", Kind.MAGNITUDE: "magnitude ≤", Kind.RISE: "rise ≤", Kind.FALL: "fall ≤"}
    return f"{words[rule.kind]} {rule.limit:g}" + (f", {rule.patience} steps" if rule.patience > 1 else "")


# --- the page -----------------------------------------------------------------------------------------------------------


def without_a_fault(given: Proofs, watching: Guards) -> list[str]:
    """Proofs and guards in the code that nothing is planted for here, or that are here and gone there."""
    functions = {
        name
        for name, function in inspect.getmembers(proofs, inspect.isfunction)
        if function.__module__ == proofs.__name__ and function.__annotations__.get("return") in ("Proof", proofs.Proof)
    }
    names = {rule.name for rule in DEFAULT_RULES} | {NON_FINITE}
    return sorted((functions ^ given.all().keys()) | (names ^ watching.all().keys()))


def healthy_troubles(run: Run) -> tuple[list[str], dict[str, int]]:
    """What the run must not show, from its own files and judged again; and its notes by guard."""
    troubles = []
    notes: dict[str, int] = {}
    if Level(run.health["worst_level"]).rank >= Level.ALARM.rank:
        troubles.append(f"health.json: worst level {run.health['worst_level']}")
    for step in run.steps:
        troubles += [f"step {step.number}: {proof['message']}" for proof in step.proofs if not proof["passed"]]
    for at, metrics in enumerate(run.history):
        for finding in guards.evaluate(run.history[:at], metrics, run.guards, step=at + 1).findings:
            if finding.level.rank >= Level.ALARM.rank:
                troubles.append(f"step {run.steps[at].number}: {finding.level} {finding.guard}: {finding.message}")
            else:
                notes[finding.guard] = notes.get(finding.guard, 0) + 1
    return list(dict.fromkeys(troubles)), notes


def page(run: Run, given: Proofs, rows: list[Row], notes: dict[str, int], troubles: Sequence[str]) -> str:
    shown = sum(len(step.proofs) for step in run.steps)
    judged = len(run.steps) * (len(run.guards.rules) + 1)
    said = ", ".join(f"`{name}` {count}" for name, count in sorted(notes.items())) or "none"
    lines = [
        "# Planted faults",
        "",
        f"Made by `docs/benchmarks/planted_faults.py` on {datetime.date.today()} from the miniature's run `{run.folder.name}`: "
        f"{len(run.steps)} steps, {sum(len(step.trajectories) for step in run.steps):,} episodes. {shown} proofs were given "
        f"over it and {judged} judgements made by guards. Notes, by guard and step: {said}. "
        + ("No proof failed, and there was no alarm and no stop." if not troubles else "**It is not quiet:**"),
        "",
        *(f"- {trouble}" for trouble in troubles),
        *([""] if troubles else []),
        "Faults are computed, not written down: by the base model on the run's own tokens (packed, with other weights, at another "
        "temperature), by verl's policy loss, by playing the run's questions with a faulty policy, by the calibration report on "
        "the run's own verdicts. They replace the figures of as many steps as the guard is patient, as late in the run as its own "
        "figures leave room; the guards are the run's own (`explores_fall` with a limit of 0.7 instead of 0.4). "
        "What else speaks at the same step stands in brackets. The program fails when a fault is not caught, "
        "when the healthy run is not quiet, or when the code has a proof or a guard that is not in this table.",
        "",
        "| check | healthy, worst | limit | planted fault | its value | caught as |",
        "|---|---|---|---|---|---|",
        *(
            f"| {check} | {healthy} | {limit} | {fault.what} | {fault.value} | {fault.caught or '**NOT CAUGHT**'} |"
            for check, healthy, limit, fault in rows
        ),
        "",
        f"`first_state_agrees` sees a leak only as far as it lasts: with the miniature's own decays a state is forgotten within the 30 "
        f"tokens of a prompt, and the leaking critic reads {given.short_memory:.1g} there, while packed against padded differs at once. "
        f"The planted one remembers {MEMORY:g} tokens; the study's read 0.03 to 0.12.",
        "",
        f"`rollout_matches_actor` where the actor is a single step behind: {given.one_step_apart}.",
        "",
        "Not a fault to the guards: a critic that says the same everywhere explains none of the variance (0, the limit of "
        "`critic_useless`) and, with λ = 1, only takes a constant off every advantage. It is the baseline that a useful critic beats.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="a finished, healthy run directory of the miniature")
    parser.add_argument("--model", type=Path, required=True, help="the base model's folder")
    parser.add_argument(
        "--rows", type=Path, help="its training rows (default: results/data/mini/train.parquet beside it)"
    )
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".md"))
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()  # it reports the value model's new head as missing, which it is
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    rows = arguments.rows or arguments.run.parents[1] / "data" / "mini" / "train.parquet"
    run = Run(arguments.run, arguments.model, rows)
    longest = max(rule.warm_up + rule.patience for rule in DEFAULT_RULES)
    if len(run.steps) <= longest:
        sys.exit(f"{arguments.run} has {len(run.steps)} steps; the most patient guard needs more than {longest}.")
    given = Proofs(run)
    watching = Guards(run, given)
    troubles, notes = healthy_troubles(run)
    troubles += [
        f"{name}: nothing is planted for it, or it is no longer there" for name in without_a_fault(given, watching)
    ]
    watching.check_own_arithmetic()
    table = [row for rows_of in given.all().values() for row in rows_of()] + watching.table()
    troubles += [
        f"{row.check}: {row.fault.what}: {row.fault.value}, not caught" for row in table if not row.fault.caught
    ]
    text = page(run, given, table, notes, troubles)
    print(text)
    arguments.output.write_text(text, encoding="utf-8")
    if troubles:
        sys.exit("\n".join(troubles))


if __name__ == "__main__":
    main()
