"""Proofs, given on a healthy run and on planted faults; for planted_faults.py."""

import functools
import math
import sys
from collections.abc import Callable

import torch
from planted_run import (
    MEMORY,
    PACKED_QUESTIONS,
    Fault,
    Policy,
    Row,
    Run,
    Step,
    column,
    logits_packed,
    logits_padded,
    policy_model,
    policy_over,
    sampled,
    value_model,
    verls_loss,
)

from genselect.base_model import gated_delta
from genselect.base_model.network import build_network
from genselect.training import proofs
from genselect.training.boundaries import name_boundaries
from genselect.training.recorder import BEHIND


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
            "rollout_is_current": self.current,
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

    def current(self) -> list[Row]:
        """An engine that missed the weights of one step: verl reads the same figure off the version that its turns carry."""
        behind = [step.metrics[BEHIND] for step in self.run.steps]
        good, bad = proofs.rollout_is_current(max(behind)), proofs.rollout_is_current(max(behind) + 1)
        if not good.passed:
            sys.exit(f"healthy run: {good.message}")
        self.failed.append(bad)
        fault = Fault("an engine that missed the weights of one step", f"{max(behind) + 1:g} step behind", caught(bad))
        return [Row("proof `rollout_is_current`", f"{max(behind):g} steps behind", "< 1 step behind", fault)]

    @staticmethod
    def _engine_against(step: Step, actor: Policy) -> proofs.Proof:
        return proofs.rollout_matches_actor(
            column(step, "rollout_log_probs"), actor.log_probs, column(step, "response_mask")
        )
