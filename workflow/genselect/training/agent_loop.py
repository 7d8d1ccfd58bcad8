"""verl's agent loop that plays the explore / submit episode. Named in each row (``agent_name``) and in ``agent_loop.yaml``."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput
from verl.experimental.agent_loop.tool_parser import ToolParser
from verl.tools.schemas import OpenAIFunctionToolSchema

from genselect.config import Judge
from genselect.episode import TOOLS, Call, Episode, Generated, Limits, Played, Score, play, score
from genselect.training import episodes
from genselect.training.potential import place
from genselect.training.reward import VerdictMaker

_SCHEMAS = [OpenAIFunctionToolSchema.model_validate(tool) for tool in TOOLS]


class EpisodeOutput(AgentLoopOutput):
    """verl's output with our per-token columns, which travel to the trainer through :meth:`as_dict`.

    All are over the response. ``token_scores`` adds up to the trajectory's score.
    """

    token_scores: list[float] = []
    decision_mask: list[int] = []
    """1 on the first token of each turn: the state before it is a decision point."""
    submit_mask: list[int] = []
    """1 on the decision points that supervise the submit predictor."""
    submit_label: list[float] = []
    """1 there when an answer submitted from that state was correct."""

    def as_dict(self) -> dict[str, Any]:
        """verl's columns and ours, as tensors of shape (response length,)."""
        columns = super().as_dict()
        columns["rm_scores"] = torch.tensor(columns.pop("token_scores"), dtype=torch.float32)
        for name, dtype in (
            ("decision_mask", torch.int64),
            ("submit_mask", torch.int64),
            ("submit_label", torch.float32),
        ):
            columns[name] = torch.tensor(columns.pop(name), dtype=dtype)
        return columns


class EpisodeAgentLoop(AgentLoopBase):
    """Plays one episode a call.

    Not ``register``ed by the decorator: that would replace the entry of ``agent_loop.yaml``, and its settings, when verl imports
    this module to make the first one.

    Args:
        episode: Settings from the run: ``turn_tokens``, ``max_turns``, ``format_score``, ``cost_per_explore``, ``supervision``,
            ``seed``, ``tool_parser``, ``template_options``, ``judge`` (its section, as JSON text).
    """

    def __init__(self, *arguments: Any, episode: Mapping[str, Any], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._settings = dict(episode)
        self._renderer = episodes.renderer(self.tokenizer, self._settings["template_options"])
        self._parser = ToolParser.get_tool_parser(self._settings["tool_parser"], self.tokenizer)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> EpisodeOutput:
        """Play the episode of ``row`` (a row of the built data, with verl's ``session_id`` and ``global_steps``)."""
        extra = row["extra_info"]
        candidates = [episodes.candidate(entry) for entry in extra["cached_candidates"]]
        seed = episodes.episode_seed(
            self._settings["seed"], extra["question_id"], row["session_id"], row["global_steps"]
        )
        engine_fields: dict[str, Any] = {}
        request = uuid4().hex

        async def generate(context: Sequence[int], max_tokens: int) -> Generated:
            output = await self.server_manager.generate(
                request_id=request,
                prompt_ids=list(context),
                sampling_params={
                    **sampling_params,
                    "max_tokens": max_tokens,
                    "seed": episodes.turn_seed(seed, len(context)),
                },
            )
            engine_fields.update(
                {
                    name: value
                    for name, value in output.extra_fields.items()
                    if name not in _OF_FIRST_TURN or name not in engine_fields
                }
            )
            ids = list(output.token_ids)
            return Generated(ids, list(output.log_probs or [0.0] * len(ids)))

        played = await play(
            Episode(candidates, self._settings["max_turns"]),
            self._renderer.prompt(list(row["raw_prompt"])),
            self._renderer,
            generate,
            self._parse,
            Limits(self.rollout_config.response_length, self._settings["turn_tokens"]),
            self.tokenizer.eos_token_id,
        )
        return await self._output(played, row, engine_fields)

    async def _parse(self, turn: Sequence[int]) -> list[Call]:
        _, calls = await self._parser.extract_tool_calls(list(turn), _SCHEMAS)
        return [Call(call.name, call.arguments) for call in calls]

    async def _output(self, played: Played, row: Mapping[str, Any], engine_fields: dict[str, Any]) -> EpisodeOutput:
        episode = played.episode
        ruling = await episodes.rule(_verdicts(self._settings["judge"]), played, row)
        pieces = score(
            episode,
            verdict=ruling.correct,
            format_score=self._settings["format_score"],
            cost_per_explore=self._settings["cost_per_explore"],
        )
        trajectory = episodes.trajectory(
            played, ruling, pieces, row["extra_info"]["question_id"], int(row["session_id"])
        )
        engine_fields.update(
            turn_scores=[],
            tool_rewards=[],
            reward_extra_info={
                "verdict": float(ruling.correct),
                "well_formed": float(episode.well_formed),
                "explores": float(episode.explores),
                # As text, which verl's validation carries through and averages nothing of.
                "trajectory": json.dumps(trajectory | {"text": self.tokenizer.decode(played.response_ids)}),
            },
            trajectory=trajectory,
        )
        length = len(played.response_ids)
        return EpisodeOutput(
            prompt_ids=played.prompt_ids,
            response_ids=played.response_ids,
            response_mask=played.response_mask,
            response_logprobs=played.log_probs,
            token_scores=_token_scores(played, pieces, self._settings["cost_per_explore"]),
            decision_mask=_marks(length, [start for start, _ in played.turns]),
            submit_mask=_marks(length, _supervised(played, self._settings["supervision"])),
            submit_label=[float(ruling.correct)] * length,
            reward_score=pieces.total,
            num_turns=2 * episode.turns,
            metrics={},
            extra_fields=engine_fields,
        )


# verl's engine reports the weights' version with each turn; an episode's earliest is its first turn's.
_OF_FIRST_TURN = frozenset({"min_global_steps"})


def _token_scores(played: Played, pieces: Score, cost_per_explore: float) -> list[float]:
    """The score on tokens: each charged explore's cost on its turn's last token, the rest on the last token of all."""
    charged = played.episode.charged_explores
    costs = [-cost_per_explore if turn < charged else 0.0 for turn in range(len(played.turns))]
    return place(pieces, costs, [], played.turns, played.response_mask).scores.tolist()


def _supervised(played: Played, supervision: str) -> list[int]:
    """The tokens of the decision points that teach the submit predictor."""
    starts = [start for start, _ in played.turns]
    if supervision == "all_states":
        return starts
    return starts[-1:] if played.episode.well_formed else []


def _marks(length: int, positions: Sequence[int]) -> list[int]:
    marks = [0] * length
    for position in positions:
        marks[position] = 1
    return marks


@functools.cache
def _verdicts(judge: str) -> VerdictMaker:
    return VerdictMaker(Judge.model_validate_json(judge))
