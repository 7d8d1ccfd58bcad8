"""What the memory predictor asks of a run: verl's resolved configuration on cards, without a machine, a model or rows."""

from __future__ import annotations

from pathlib import Path

from genselect.config.training import Run
from genselect.memory.settings import Settings, settings_of
from genselect.training.verl_config import Launch, verl_config


def run_settings(run: Run, name: str) -> Settings:
    """Of ``run`` on cards.

    Raises:
        GenselectError: A key of the run's ``verl`` section is not one of verl's, or a type of numbers is not known.
    """
    from omegaconf import OmegaConf

    nowhere = Path("absent")
    launch = Launch(
        name=name,
        model=nowhere,
        train_rows=nowhere,
        val_rows=nowhere,
        directory=nowhere,
        attempt=1,
        resume_from=None,
        agent_loop=nowhere,
        total_steps=run.schedule.steps,
        cpu=False,
    )
    extension = {"predictor": run.predictor.enabled, "predictor_budget": run.tokens.predictor_budget}
    # ``***`` in verl's file stands for what only a launch can resolve; memory depends on none of it.
    config = OmegaConf.to_container(verl_config(run, launch, extension), resolve=True)
    assert isinstance(config, dict)
    return settings_of({str(key): value for key, value in config.items()})
