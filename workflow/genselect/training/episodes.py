"""A played episode as training, validation and the untrained policy's rollout write it down, and how its sampling is seeded.

Free of verl and torch: the agent loop and the rollout share it.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from genselect.answers import normal_form
from genselect.episode import CachedCandidate, Played, Renderer, Score
from genselect.training.records import Trajectory
from genselect.training.reward import Ruling, VerdictMaker

#: The tool-call parser of the policy's family, by verl's name.
TOOL_PARSER = "qwen3_coder"

#: What a trajectory's record takes over from the played episode as it stands there.
_RECORDED = (
    "question_id sample explores revealed submitted verdict verdict_source well_formed end score_verdict score_format "
    "score_cost prompt_tokens response_tokens turns length_capped"
).split()


def candidate(entry: Mapping[str, Any]) -> CachedCandidate:
    """A row's candidate, from an entry of its ``extra_info.cached_candidates``."""
    return CachedCandidate(entry["answer"] or "", entry["reasoning"], bool(entry["is_correct"]))


def episode_seed(run: int, question: str, sample: int, step: int) -> int:
    """The seed of one episode, under 2^31: of its run's seed, its question, its sample and its step."""
    digest = hashlib.sha256(f"{run}:{question}:{sample}:{step}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % 2**31


def turn_seed(seed: int, context: int) -> int:
    """The seed of a turn that begins after ``context`` tokens of the episode with ``seed``.

    A seed for each question, sample, step and place in the episode: a resumed run draws what the stopped one drew.
    """
    return (seed + context) % 2**31


async def rule(verdicts: VerdictMaker, played: Played, row: Mapping[str, Any]) -> Ruling:
    """The verdict on the submission in an episode of ``row``; not correct, by nobody, without one."""
    episode = played.episode
    if episode.submitted is None:
        return Ruling(False, "none")
    expected, problem = row["reward_model"]["ground_truth"], row["extra_info"]["question"]
    return await verdicts.rule(expected, episode.submitted, episode.candidates, problem)


def trajectory(played: Played, ruling: Ruling, pieces: Score, question_id: str, sample: int) -> dict[str, Any]:
    """A played episode as plain values: what travels through verl to the recorder."""
    episode = played.episode
    return {
        "question_id": question_id,
        "sample": sample,
        "explores": episode.explores,
        "revealed": episode.revealed,
        "submitted": episode.submitted,
        "verdict": ruling.correct,
        "verdict_source": ruling.source,
        "well_formed": episode.well_formed,
        "end": str(episode.end),
        "score_verdict": pieces.verdict,
        "score_format": pieces.format,
        "score_cost": pieces.cost,
        "turns": episode.turns,
        "length_capped": played.length_capped,
        "turn_spans": [list(span) for span in played.turns],
        "decision_k": list(played.revealed),
        # Normal forms, so that answers written differently agree in the potential.
        "answers": [normal_form(candidate.answer) for candidate in episode.candidates[: episode.revealed]],
        "prompt_tokens": len(played.prompt_ids),
        "response_tokens": len(played.response_ids),
    }


def record(step: int, attempt: int, played: Mapping[str, Any]) -> Trajectory:
    """The record of a :func:`trajectory`, with its ``text`` if that was added; unshaped, with nothing of any model."""
    return Trajectory(
        step=step,
        attempt=attempt,
        shaping=0.0,
        decision_tokens=tuple(start for start, _ in played["turn_spans"]),
        decision_k=tuple(played["decision_k"]),
        text=played.get("text", ""),
        **{name: played[name] for name in _RECORDED},
    )


def renderer(tokenizer: Any, template_options: Mapping[str, Any]) -> Renderer:
    """The renderer of a tokenizer, made once: it takes a while, and verl makes an agent loop for every episode."""
    return _renderer(tokenizer, json.dumps(dict(template_options), sort_keys=True))


@functools.lru_cache(maxsize=4)
def _renderer(tokenizer: Any, options: str) -> Renderer:
    return Renderer(tokenizer, json.loads(options))
