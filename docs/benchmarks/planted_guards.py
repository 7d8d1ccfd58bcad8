"""Guards over a healthy run and over planted faults; for planted_faults.py."""

import asyncio
import fnmatch
import functools
import math
import sys
from collections.abc import Callable, Sequence

import numpy as np
from planted_proofs import Proofs
from planted_run import CANDIDATES, Fault, Row, Run, Step, column, jolted, policy_over, verls_loss, worst_value

from genselect.base_model.calls import EXPLORE, read_calls, submit_call
from genselect.base_model.network import build_network
from genselect.episode import Episode, Generated, Limits, play, score
from genselect.training import calibration, episodes, guards, proofs
from genselect.training.guards import NON_FINITE, Kind, Level, Rule
from genselect.training.records import (
    Trajectory,
    episode_metrics,
)
from genselect.training.reward import Ruling

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
