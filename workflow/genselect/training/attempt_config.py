"""What an attempt is given: the agent loop's settings and verl's resolved configuration, written into ``attempts/``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from genselect.config import Judge
from genselect.config.training import Run
from genselect.provenance.run_directory import RunDirectory
from genselect.training.verl_config import Launch, micro_batch, verl_config


@dataclass(frozen=True)
class Inputs:
    """What a run is made of, besides its settings."""

    name: str
    run: Run
    """Resolved: ``extends`` and ``set`` applied."""
    model: Path
    train_rows: Path
    val_rows: Path
    runs_root: Path
    identity: Mapping[str, Any]
    """Everything that changes the result, for the fingerprint."""
    candidates: int
    """In a row."""
    template_options: Mapping[str, Any]
    judge: Judge
    """Who labelled the candidates; asked about submissions that nothing else decides."""
    context: Mapping[str, Any] = field(default_factory=dict)
    """What the manifest records besides, and no result depends on."""


def write_configs(
    inputs: Inputs,
    directory: RunDirectory,
    attempt: int,
    resume: int | None,
    cpu: bool,
    world: int,
    weights: Mapping[str, str],
) -> Path:
    """Write the agent loop's settings and verl's resolved configuration; returns the latter's path."""
    run = inputs.run
    folder = directory.path.resolve()
    loop = folder / "attempts" / f"{attempt}.agent_loop.yaml"
    episode = {
        "turn_tokens": run.tokens.turn,
        "max_turns": run.max_turns,
        "format_score": run.reward.format_score,
        "cost_per_explore": run.reward.cost_per_explore,
        "supervision": run.predictor.supervision,
        "seed": run.seed,
        "tool_parser": "qwen3_coder",
        "template_options": dict(inputs.template_options),
        "judge": inputs.judge.model_dump_json(),
    }
    entry = {
        "name": "atlas_sequential",
        "_target_": "genselect.training.agent_loop.EpisodeAgentLoop",
        "episode": episode,
    }
    loop.write_text(yaml.safe_dump([entry], sort_keys=False), encoding="utf-8")
    launch = Launch(
        name=inputs.name,
        model=inputs.model.resolve(),
        train_rows=inputs.train_rows.resolve(),
        val_rows=inputs.val_rows.resolve(),
        directory=folder,
        attempt=attempt,
        resume_from=directory.saves.path(resume).resolve() if resume is not None else None,
        agent_loop=loop,
        total_steps=run.schedule.steps,
        cpu=cpu,
    )
    extension = {
        "directory": str(folder),
        "attempt": attempt,
        "world_size": world,
        "predictor": run.predictor.enabled,
        "predictor_lr": run.optimiser.predictor_lr,
        "predictor_budget": run.tokens.predictor_budget,
        "potential": [part.model_dump() for part in run.potential],
        "gamma": run.optimiser.gamma,
        "candidates": inputs.candidates,
        "anchor_every": run.schedule.anchor_every,
        "keep_latest": run.schedule.keep_latest,
        "guards": dict(run.guards),
        "synthetic_steps": run.synthetic_steps,
        # A formal run's proofs are those of its gates and of every step; another forward of both kinds would only cost time.
        "prove_packing": run.tokens.packing and run.kind in ("smoke", "memory_check"),
        "packed_limit": run.tokens.packed_limit,
        "base_weights": dict(weights),
        "memory": _memory(run, cpu),
        # For the estimate of what each card holds: verl knows nothing of a judge.
        "judge_cards": run.layout.judge,
    }
    from omegaconf import OmegaConf

    path = folder / "attempts" / f"{attempt}.verl.yaml"
    path.write_text(OmegaConf.to_yaml(verl_config(run, launch, extension)), encoding="utf-8")
    return path


def _memory(run: Run, cpu: bool) -> dict[str, Any]:
    """What the memory check fills, and what it is compared with."""
    tokens, schedule = run.tokens, run.schedule
    longest = tokens.prompt + tokens.response
    rows = micro_batch(run)
    budgets = {"actor": tokens.actor_budget, "critic": tokens.critic_budget, "predictor": tokens.predictor_budget}
    return {
        "budgets": {
            name: {"tokens": None if cpu else budget, "rows": rows, "longest": longest}
            for name, budget in budgets.items()
        },
        "production": {
            "problems": schedule.problems,
            "samples": schedule.samples,
            "prompt_tokens": tokens.prompt,
            "response_tokens": tokens.response,
        },
        "ppo_epochs": schedule.epochs,
    }
