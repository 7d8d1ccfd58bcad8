"""What a model begins with is decided by the run's seed alone."""

from __future__ import annotations

import contextlib
import types

import torch

from genselect.config.training import Run
from genselect.training import engines
from genselect.training.engines import (
    GivesBack,
    PolicyEngine,
    SavesTrained,
    SubmitEngine,
    ValueEngine,
    register,
    seeded,
)
from genselect.training.verl_config import verl_config


def drawn(seed: int, before: int) -> torch.Tensor:
    torch.manual_seed(before)
    with seeded(seed):
        return torch.nn.Linear(8, 4).weight.detach().clone()


def test_initial_values_do_not_depend_on_what_was_drawn_before() -> None:
    assert torch.equal(drawn(3, before=1), drawn(3, before=2))
    assert not torch.equal(drawn(3, before=1), drawn(4, before=1))


def test_what_is_drawn_afterwards_is_not_changed() -> None:
    torch.manual_seed(5)
    alone = torch.rand(3)
    torch.manual_seed(5)
    with seeded(9):
        torch.rand(100)
    assert torch.equal(torch.rand(3), alone)


def test_verl_builds_all_three_models_with_our_engines_and_the_runs_seed() -> None:
    from verl.workers.engine.base import EngineRegistry

    register()
    for device in ("cpu", "cuda"):
        found = {
            kind: EngineRegistry._engines[kind]["fsdp2"][device]
            for kind in ("language_model", "value_model", "submit_model")
        }
        assert found == {"language_model": PolicyEngine, "value_model": ValueEngine, "submit_model": SubmitEngine}
    assert len({0, ValueEngine.offset, SubmitEngine.offset}) == 3, "no two models begin alike"
    config = verl_config(Run(seed=11), _launch(), {})
    assert config.actor_rollout_ref.actor.fsdp_config.seed == config.critic.fsdp.seed == 11


def _launch():
    from test_verl_config import launch

    return launch()


def test_an_engine_gives_its_cache_back_at_the_end_of_a_stage_and_not_of_each_mini_batch(monkeypatch) -> None:
    given: list[str] = []

    class Verls:
        def train_mode(self, **options: object) -> contextlib.AbstractContextManager[None]:
            return contextlib.nullcontext()

        eval_mode = train_mode

    class Engine(GivesBack, Verls):
        pass

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given.append("cache"))
    with Engine().train_mode(disable_auto_offload=False):
        for _ in range(3):
            with Engine().train_mode(disable_auto_offload=True):
                pass
        assert given == []
    assert given == ["cache"]
    with Engine().eval_mode():
        pass
    assert given == ["cache", "cache"]
    # Both of verl's networks are made so.
    assert all(issubclass(engine, GivesBack) for engine in (PolicyEngine, ValueEngine, SubmitEngine))


def test_an_engine_saves_what_it_trains(monkeypatch) -> None:
    class Ours:
        def __init__(self, *parts: str) -> None:
            self.parts = parts

    class Verls:
        def initialize(self) -> None:
            parts = "model optimizer lr_scheduler processing_class checkpoint_config trust_remote_code".split()
            self.checkpoint_manager = types.SimpleNamespace(**{name: f"verl's {name}" for name in parts})

    class Engine(SavesTrained, Verls):
        pass

    monkeypatch.setattr(engines, "TrainedWeights", Ours)
    engine = Engine()
    engine.initialize()
    assert isinstance(engine.checkpoint_manager, Ours)
    assert engine.checkpoint_manager.parts[:3] == ("verl's model", "verl's optimizer", "verl's lr_scheduler")
    assert all(issubclass(engine, SavesTrained) for engine in (PolicyEngine, ValueEngine, SubmitEngine))
