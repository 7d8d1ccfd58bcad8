"""What a potential does to verl's own advantages: nothing at all when it is empty, and exactly −Φ of a state when it is not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from genselect.episode import CachedCandidate, Call, Episode, Generated, Limits, Played, play, score
from genselect.training.agent_loop import _token_scores
from genselect.training.potential import Potential
from genselect.training.shaping import decision_states, shape_rewards

END = 1
COST = 0.02
QUESTIONS, SAMPLES = 4, 3
ALL = Potential([("submit_probability", 0.7), ("leading_share", -0.4)])
NOTHING = Potential([("submit_probability", 0.0), ("leading_share", 0.0)])
#: Of 32-bit sums over some hundred tokens.
NOISE = 1e-5


class Frames:
    """Responses of half a dozen tokens, whatever they say."""

    def response(self, text: str) -> list[int]:
        return [50] * (3 + len(text) % 6)


def episode(seed: int) -> tuple[Played, list[float]]:
    """A played episode and its scores: one to nine turns of random length, ended in one of the four ways."""
    dice = random.Random(seed)
    candidates = [
        CachedCandidate(dice.choice(["7", "8", ""]), "." * dice.randrange(9), dice.random() < 0.5) for _ in range(8)
    ]
    explores = dice.randrange(9)
    last = dice.choice([[Call("submit", '{"answer": "7"}')], [], [Call("explore", "{}")]])
    said = iter([*[[Call("explore", "{}")]] * explores, last, *[[Call("explore", "{}")]] * 9])

    async def generate(context: Sequence[int], max_tokens: int) -> Generated:
        ids = [*[5] * dice.randrange(1, 6), END][:max_tokens]
        return Generated(ids, [-0.1] * len(ids))

    async def parse(ids: Sequence[int]) -> Sequence[Call]:
        return next(said)

    limits = Limits(dice.choice([40, 200]), 10)
    frames: Any = Frames()
    played = asyncio.run(play(Episode(candidates, 10), [9, 9], frames, generate, parse, limits, END))
    pieces = score(played.episode, verdict=dice.random() < 0.5, format_score=0.1, cost_per_explore=COST)
    return played, _token_scores(played, pieces, COST)


@dataclass
class Batch:
    """Padded columns of a batch's episodes, and what the agent loop says of each."""

    scores: torch.Tensor
    mask: torch.Tensor
    values: torch.Tensor
    logits: torch.Tensor
    lengths: list[int]
    trajectories: list[dict[str, Any]]
    plays: list[Played]


def batch(seed: int) -> Batch:
    plays, scores = zip(*(episode(1000 * seed + row) for row in range(QUESTIONS * SAMPLES)), strict=True)
    lengths = [len(played.response_ids) for played in plays]
    generator = torch.Generator().manual_seed(seed)
    # In padding and on masked tokens verl has numbers, too: nothing may depend on them.
    values, logits = torch.randn(2, len(plays), max(lengths), generator=generator)
    trajectories = [
        {
            "turn_spans": played.turns,
            "decision_k": played.revealed,
            "answers": [candidate.answer for candidate in played.episode.candidates[: played.episode.revealed]],
        }
        for played in plays
    ]

    def padded(rows: Sequence[Sequence[float]], kind: torch.dtype) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence([torch.tensor(row, dtype=kind) for row in rows], batch_first=True)

    mask = padded([played.response_mask for played in plays], torch.int64)
    return Batch(padded(scores, torch.float32), mask, values, logits, lengths, trajectories, list(plays))


def shaped(given: Batch, potential: Potential) -> torch.Tensor:
    return shape_rewards(given.scores, given.mask, given.logits, given.trajectories, potential, 1.0)


def potentials(given: Batch, potential: Potential) -> list[list[float]]:
    """Φ at each decision point of each row."""
    return [
        potential(decision_states(trajectory, given.logits[row])).tolist()
        for row, trajectory in enumerate(given.trajectories)
    ]


def over_turns(given: Batch, potential: Potential) -> torch.Tensor:
    """Φ of the state that each of the policy's tokens was written from; 0 elsewhere."""
    spread = torch.zeros_like(given.values)
    for row, phi in enumerate(potentials(given, potential)):
        for (start, stop), value in zip(given.trajectories[row]["turn_spans"], phi, strict=True):
            spread[row, start:stop] = value
    return spread


def gae(rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, lam: float = 1.0) -> tuple[Any, Any]:
    """verl's whitened advantages, and its returns."""
    from verl.trainer.ppo.core_algos import compute_gae_advantage_return

    gamma: Any = 1.0
    lam_: Any = lam
    return compute_gae_advantage_return(rewards, values, mask, gamma, lam_)


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.dtype == second.dtype and first.numpy().tobytes() == second.numpy().tobytes()


seeds = pytest.mark.parametrize("seed", range(8))


def test_the_batches_have_every_kind_of_episode() -> None:
    plays = [played for seed in range(8) for played in batch(seed).plays]
    assert {str(played.episode.end) for played in plays} == {"submit", "no_call", "turns", "length"}
    assert {played.episode.revealed for played in plays} == set(range(9))
    assert any(0 in played.response_mask for played in plays)


# --- an empty potential -------------------------------------------------------------------------------------------------


class Queue:
    """verl's transfer queue, with one batch in it; what the trainer puts back is kept."""

    def __init__(self, given: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
        import transfer_queue

        self.put: dict[str, torch.Tensor] = {}
        columns = {
            "response_mask": given.mask,
            "rm_scores": given.scores,
            "values": given.values,
            "submit_logits": given.logits,
            "rollout_log_probs": given.values - 1,
            "old_log_probs": given.values - 1.01,
        }
        rows = len(given.lengths)
        self._columns: dict[str, Any] = {
            name: torch.nested.as_nested_tensor(
                [column[row, : given.lengths[row]] for row in range(rows)], layout=torch.jagged
            )
            for name, column in columns.items()
        }
        self._columns["uid"] = NonTensorStack(*(f"question-{row // SAMPLES}" for row in range(rows)))
        self._columns["extra_fields"] = NonTensorStack(*({"trajectory": entry} for entry in given.trajectories))
        self.keys = [f"question-{row // SAMPLES}_{row % SAMPLES}_0" for row in range(rows)]
        monkeypatch.setattr(transfer_queue, "kv_batch_get", self._get)
        monkeypatch.setattr(transfer_queue, "kv_batch_put", self._put)

    def _get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> TensorDict:
        assert keys == self.keys
        found = {name: self._columns[name] for name in select_fields if name in self._columns}
        return TensorDict(found, batch_size=len(keys))

    def _put(self, keys: list[str], partition_id: str, fields: TensorDict) -> Any:
        self.put = {name: fields[name].values() for name in fields.keys()}  # noqa: SIM118  (a TensorDict iterates over rows)
        return SimpleNamespace(keys=keys, partition_id=partition_id)


class Trainer:
    """Our trainer's and verl's advantages on the same batch, without workers."""

    def __init__(self, given: Batch, estimator: str, monkeypatch: pytest.MonkeyPatch) -> None:
        import verl.trainer
        from hydra import compose, initialize_config_dir

        self._queue = Queue(given, monkeypatch)
        folder = Path(verl.trainer.__file__).parent / "config"
        with initialize_config_dir(config_dir=str(folder), version_base=None):
            self._config = compose("ppo_trainer", [f"algorithm.adv_estimator={estimator}"])
        self._config.actor_rollout_ref.rollout.n = SAMPLES

    def advantages(self, potential: Potential | None) -> dict[str, torch.Tensor]:
        """What the trainer puts into the queue; None for verl's own trainer."""
        from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

        from genselect.training.trainer import ExploreTrainer

        trainer: Any = object.__new__(ExploreTrainer if potential is not None else PPOTrainerSync)
        trainer.config = self._config
        if potential is not None:
            trainer.settings = SimpleNamespace(potential=potential)
        batch = KeyBatch(self._queue.keys)
        trainer._compute_advantage(batch, {})
        return self._queue.put


class KeyBatch:
    """As much of verl's ``KVBatchMeta`` as advantages look at."""

    partition_id = "train"

    def __init__(self, keys: list[str]) -> None:
        self.keys = keys

    def __len__(self) -> int:
        return len(self.keys)


@seeds
@pytest.mark.parametrize("estimator", ["gae", "grpo"])
def test_an_empty_potential_is_verls_own_trainer_to_the_bit(
    seed: int, estimator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(batch(seed), estimator, monkeypatch)
    verls = trainer.advantages(None)
    assert verls["advantages"].abs().max() > 0
    for potential in (Potential([]), NOTHING):
        ours = trainer.advantages(potential)
        for name in ("advantages", "returns"):
            assert same_bits(ours[name], verls[name])
    # The comparison can tell: a potential with weight does move them.
    assert not same_bits(trainer.advantages(ALL)["advantages"], verls["advantages"])


@seeds
def test_weights_of_zero_leave_the_scores_to_the_bit(seed: int) -> None:
    given = batch(seed)
    before = given.scores.clone()
    rewards = shaped(given, NOTHING)
    assert same_bits(rewards, given.scores)
    shaped(given, ALL)
    # And shaping makes a new tensor: verl's own scores, which its metrics show, stay.
    assert same_bits(given.scores, before)


# --- a potential --------------------------------------------------------------------------------------------------------


@seeds
def test_an_episodes_rewards_move_by_minus_its_first_potential(seed: int) -> None:
    given = batch(seed)
    moved = (shaped(given, ALL).double() - given.scores.double()).sum(-1)
    expected = torch.tensor([-phi[0] for phi in potentials(given, ALL)])
    assert moved.tolist() == pytest.approx(expected.tolist(), abs=NOISE)
    assert expected.abs().max() > 0.1


@seeds
def test_each_tokens_return_and_advantage_move_by_minus_the_potential_of_its_state(seed: int) -> None:
    # With γ = λ = 1 verl's return is what an episode still pays, so the shaping ahead of a token of turn i is all that moves
    # it: Σ_{j ≥ i} Φ(s_{j+1}) − Φ(s_j) = −Φ(s_i). The first token's moves by −Φ(s₀). Advantages are returns − values.
    given = batch(seed)
    policy = given.mask.bool()
    _, unshaped_returns = gae(given.scores, given.values, given.mask)
    _, returns = gae(shaped(given, ALL), given.values, given.mask)
    moved = returns - unshaped_returns
    assert torch.allclose(moved[policy], -over_turns(given, ALL)[policy], atol=NOISE)
    first = torch.tensor([phi[0] for phi in potentials(given, ALL)])
    assert torch.allclose(moved[:, 0], -first.float(), atol=NOISE)


@seeds
@pytest.mark.parametrize("lam", [1.0, 0.95, 0.0])
def test_a_critic_that_knows_the_potential_sees_no_shaping(seed: int, lam: float) -> None:
    # Shaping is a critic's starting point, V − Φ, and no more (Wiewiora 2003, "Potential-based shaping and Q-value
    # initialization are equivalent", JAIR 19): given that, every temporal difference is the unshaped one, whatever λ.
    given = batch(seed)
    unshaped, _ = gae(given.scores, given.values, given.mask, lam)
    advantages, _ = gae(shaped(given, ALL), given.values - over_turns(given, ALL), given.mask, lam)
    assert torch.allclose(advantages[given.mask.bool()], unshaped[given.mask.bool()], atol=10 * NOISE)


@seeds
def test_costs_scores_and_shaping_lie_on_the_policys_tokens(seed: int) -> None:
    given = batch(seed)
    masked = given.mask == 0
    assert not given.scores[masked].any()
    assert not shaped(given, ALL)[masked].any()
    ends = torch.zeros_like(masked)
    for row, trajectory in enumerate(given.trajectories):
        ends[row, [stop - 1 for _, stop in trajectory["turn_spans"]]] = True
    assert not (shaped(given, ALL) != 0)[~ends].any()


# --- the trap -----------------------------------------------------------------------------------------------------------


@seeds
def test_verl_sees_the_whole_score_at_the_first_token(seed: int) -> None:
    given = batch(seed)
    _, returns = gae(given.scores, given.values, given.mask)
    assert torch.allclose(returns[:, 0], given.scores.sum(-1), atol=NOISE)


def test_verl_drops_a_reward_on_a_tool_response_so_none_is_put_there() -> None:
    # Three policy tokens that explore, four of the response: verl's own placement, the score on the last token, is on the
    # response. Its GAE skips masked tokens together with their reward, and the policy learns that the episode paid nothing.
    mask = torch.tensor([[1, 1, 1, 0, 0, 0, 0]])
    values = torch.zeros(1, 7)
    naive = torch.tensor([[0, 0, 0, 0, 0, 0, -0.04]])
    _, returns = gae(naive, values, mask)
    assert returns[0, 0] == 0

    # Ours cuts such an episode before the response, and the cost lies on the turn that ran it up.
    said = iter([[Call("explore", "{}")]] * 2)

    async def generate(context: Sequence[int], max_tokens: int) -> Generated:
        return Generated([5, 6, END], [-0.1] * 3)

    async def parse(ids: Sequence[int]) -> Sequence[Call]:
        return next(said)

    frames: Any = Frames()
    candidates = [CachedCandidate("7", "....", True)] * 8
    played = asyncio.run(play(Episode(candidates, 10), [9], frames, generate, parse, Limits(13, 10), END))
    pieces = score(played.episode, verdict=False, format_score=0.1, cost_per_explore=COST)
    assert (played.episode.end, played.episode.revealed, played.response_mask[-1]) == ("length", 2, 1)
    scores = torch.tensor([_token_scores(played, pieces, COST)], dtype=torch.float32)
    _, returns = gae(scores, torch.zeros_like(scores), torch.tensor([played.response_mask]))
    assert returns[0, 0].item() == pytest.approx(-0.04)
    # From the second turn on, only that turn's own cost is ahead.
    assert returns[0, played.turns[1][0]].item() == pytest.approx(-0.02)
