"""Cards of their own for rollout and judge: what may be asked for, what verl is told, how weights travel, whose server the judge is."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from genselect.config import Judge, load_config
from genselect.config.load import check_config
from genselect.config.training import Run
from genselect.errors import GenselectError
from genselect.memory.settings import Layout, run_settings
from genselect.plan.runs import resolved_runs
from genselect.training.memory_check import Probe
from genselect.training.proofs import rollout_is_current
from genselect.training.run_judge import own_judge, split_cards
from genselect.training.verl_config import Launch, verl_config

APART = {"cards": 8, "layout": {"rollout": 3, "judge": 1}}
VERL = "actor_rollout_ref"


def resolved(run: Run, *, cpu: bool = False) -> Any:
    paths = [Path(name) for name in ("model", "train.parquet", "val.parquet", "runs/r")]
    return verl_config(run, Launch("r", *paths, 1, None, Path("loop.yaml"), total_steps=1, cpu=cpu), {})


def leaves(values: Any, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= leaves(value, f"{prefix}{name}.") if hasattr(value, "items") else {f"{prefix}{name}": value}
    return found


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"cards": 4, "layout": {"rollout": 3, "judge": 1}}, "takes 4 of 4 cards .* and leaves none to train"),
        ({"cards": 2, "layout": {"rollout": 4}}, "takes 4 of 2 cards"),
        # 32 problems of 8 episodes on five cards.
        (
            {"cards": 8, "layout": {"rollout": 3}},
            "leaves 5 of 8 cards to train, which do not share a mini-batch of 256",
        ),
        ({**APART, "nodes": 2}, "layout gives cards of one node .* nodes is 2"),
        ({"layout": {"train": 4}}, "layout.train: no such key"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_with_its_numbers(values: dict[str, Any], said: str) -> None:
    with pytest.raises(GenselectError, match=said):
        check_config({"runs": {"formal": values}}, "my.yaml")


def test_a_layout_that_a_run_takes_over_from_another_is_refused_too() -> None:
    values = {"dataset": {"name": "d"}, "runs": {"a": APART, "b": {"extends": "a", "set": {"cards": 4}}}}
    with pytest.raises(GenselectError, match=r"runs\.b: .*leaves none to train"):
        resolved_runs(check_config(values, "my.yaml"))


def test_a_card_for_a_judge_that_nobody_asks_is_refused() -> None:
    runs = {"formal": {"cards": 8, "layout": {"judge": 4}}}
    values = {"dataset": {"name": "d"}, "judge": {"kind": "rule", "model": None}, "runs": runs}
    with pytest.raises(GenselectError, match=r"runs\.formal\.layout\.judge: 4 of its cards .* judge\.kind is rule"):
        resolved_runs(check_config(values, "my.yaml"))


def test_verl_is_told_of_the_cards_and_of_nothing_else() -> None:
    together, apart = (
        leaves(OmegaConf.to_container(resolved(run), resolve=True)) for run in (Run(), Run.model_validate(APART))
    )
    assert set(together) == set(apart)
    changed = {key: apart[key] for key in apart if apart[key] != together[key]}
    assert changed == {
        "trainer.n_gpus_per_node": 4,
        f"{VERL}.hybrid_engine": False,
        f"{VERL}.rollout.nnodes": 1,
        f"{VERL}.rollout.n_gpus_per_node": 3,
        # Without merging verl sends the base weights alone.
        f"{VERL}.model.lora.merge": True,
        f"{VERL}.rollout.free_cache_engine": False,
        f"{VERL}.rollout.load_format": "auto",
        f"{VERL}.rollout.gpu_memory_utilization": 0.8,
        f"{VERL}.rollout.checkpoint_engine.backend": "nccl",
        # verl's own defaults follow the training cards.
        **{key: 4 for key in changed if key.startswith(("reward.", "distillation."))},
    }
    assert together[f"{VERL}.rollout.checkpoint_engine.backend"] == "naive"
    assert together["trainer.v1.trainer_mode"] == apart["trainer.v1.trainer_mode"] == "sync"


def test_on_a_machine_without_cards_one_trains_and_one_rolls_out_whatever_the_numbers() -> None:
    config = resolved(Run.model_validate(APART), cpu=True)
    rollout = config.actor_rollout_ref.rollout
    assert (config.trainer.n_gpus_per_node, rollout.n_gpus_per_node, config.ray_kwargs.ray_init.num_gpus) == (1, 1, 2)
    engine = rollout.checkpoint_engine
    assert (engine.backend, engine.custom_backend_module) == ("gloo", "genselect.training.gloo_engine")


def test_users_keys_win_over_the_layouts() -> None:
    run = Run.model_validate({**APART, "verl": {f"{VERL}.rollout.gpu_memory_utilization": 0.6}})
    assert resolved(run).actor_rollout_ref.rollout.gpu_memory_utilization == 0.6


def test_the_memory_estimate_takes_the_runs_own_layout(repository: Path) -> None:
    study = resolved_runs(load_config(repository / "config/study.yaml"))
    assert run_settings(study["r30-genselect-9b-4train-3rollout-memory"], "r").layout == Layout(4, 3, 1)
    assert run_settings(Run(cards=8), "r").layout == Layout(8)
    assert str(Layout(7, judge=1)) == "7 cards, colocated, 1 for the judge"


def test_weights_that_a_step_late_played_fail_the_proof() -> None:
    assert rollout_is_current(0).passed
    for behind in (1, 3, -1, math.nan):
        assert not rollout_is_current(behind).passed
    assert "1 steps behind: the weight sync" in rollout_is_current(1).message


# --- the way of the weights -------------------------------------------------------------------------------------------------


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A sender, a trainer's worker that takes no part, and two receivers, who have met; a bucket holds 64 bytes."""
    from genselect.training.gloo_engine import GlooCheckpointEngine

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    made = [GlooCheckpointEngine(64, is_master=True), *(GlooCheckpointEngine(64) for _ in range(3))]
    trainer, rollout = GlooCheckpointEngine.build_topology(2, 2, [engine.prepare() for engine in made])
    arguments = [
        {key: value[number] for key, value in side.items()} for side in (trainer, rollout) for number in range(2)
    ]
    together(
        [lambda e=engine, a=chosen: e.init_process_group(**a) for engine, chosen in zip(made, arguments, strict=True)]
    )
    return made


def together(calls: list[Any]) -> list[Any]:
    """Each in a thread of its own; their results, or the first of their errors."""
    results: list[Any] = [None] * len(calls)

    def call(number: int) -> None:
        try:
            results[number] = calls[number]()
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=call, args=(number,), daemon=True) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


async def received(engine: Any) -> dict[str, torch.Tensor]:
    return {name: weight.clone() async for name, weight in engine.receive_weights(global_steps=1)}


def test_every_engine_gets_the_weights_as_they_are_round_after_round(engines: list[Any]) -> None:
    sender, idle, *receivers = engines
    for factor in (1.0, 2.0):
        weights = {
            "larger.than.a.bucket": torch.arange(50.0).reshape(5, 10) * factor,
            "bf16": torch.full((3, 2), 0.1 * factor, dtype=torch.bfloat16),
            "one.number": torch.tensor(7.0 * factor),
            "whole": torch.arange(4),
            "not.contiguous": (torch.arange(6.0) * factor).reshape(2, 3).T,
            "empty": torch.empty(0, 4),
        }
        produced: list[str] = []

        def noted(weights: dict[str, torch.Tensor] = weights, produced: list[str] = produced) -> Any:
            for name, weight in weights.items():
                produced.append(name)
                yield name, weight

        _, _, *got = together(
            [
                lambda: asyncio.run(sender.send_weights(iter(weights.items()))),  # noqa: B023
                lambda: asyncio.run(idle.send_weights(noted())),
                *(lambda e=engine: asyncio.run(received(e)) for engine in receivers),
            ]
        )
        # Producing a weight takes all of the trainer's workers.
        assert produced == list(weights)
        for found in got:
            assert list(found) == list(weights)
            for name, weight in weights.items():
                assert found[name].dtype == weight.dtype
                assert torch.equal(found[name], weight), name


def test_an_engine_of_the_cpu_understands_how_verl_pauses_it() -> None:
    from genselect.training.cpu_platform import _words_of_the_pause

    said = []

    class AsyncLLM:
        async def pause_generation(self, *, mode: str = "abort", clear_cache: bool = True) -> None:
            said.append((mode, clear_cache))

    _words_of_the_pause(types.SimpleNamespace(AsyncLLM=AsyncLLM))
    engine: Any = AsyncLLM()
    asyncio.run(engine.pause_generation(wait_for_inflight_requests=False, clear_cache=True))
    asyncio.run(engine.pause_generation(wait_for_inflight_requests=True, clear_cache=False))
    assert said == [("abort", True), ("wait", False)]


def test_the_memory_check_counts_the_engines_cards_behind_those_that_train(monkeypatch: pytest.MonkeyPatch) -> None:
    def peaks(self: Probe, function: Any) -> dict[str, Any]:
        # An engine's worker is rank 0 of its own small world.
        return {"actor and critic": [{"rank": rank} for rank in range(4)], "rollout": [{"rank": 0} for _ in range(3)]}

    monkeypatch.setattr(Probe, "_everywhere", peaks)
    _, found = Probe({"actor and critic": [], "rollout": []}, first={"rollout": 4}).end()
    assert [rank["rank"] for ranks in found.values() for rank in ranks] == list(range(7))


# --- the judge's card -------------------------------------------------------------------------------------------------------

SERVER = """
import http.server, os, pathlib, sys, threading, time
print("cards", os.environ.get("CUDA_VISIBLE_DEVICES"), sys.argv, flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *_): pass
def end():
    while not pathlib.Path(os.environ["STAND_IN_ENDS"]).exists():
        time.sleep(0.1)
    print("RuntimeError: the card is gone", flush=True)
    os._exit(9)
threading.Thread(target=end, daemon=True).start()
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    """Its server is a stand-in, which ends when the file ``end`` is made."""
    package = tmp_path / "path" / "vllm" / "entrypoints" / "cli"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    (package / "main.py").write_text(SERVER)
    env = {"PYTHONPATH": str(tmp_path / "path"), "STAND_IN_ENDS": str(tmp_path / "end")}
    return Judge.model_validate({"model": "judge", "server": {"env": env}})


def test_the_last_cards_are_the_judges_and_a_scheduler_names_them() -> None:
    run = Run.model_validate(APART)
    assert split_cards(run, None, 8) == (list("0123456"), ["7"])
    assert split_cards(run, "8,9,10,11,12,13,14,15", 8)[1] == ["15"]
    for visible, present in (("0,1,2,3", 8), (None, 4), ("", 8)):
        with pytest.raises(GenselectError, match=r"takes 8 cards .1 of them for the judge., and sees [04]"):
            split_cards(run, visible, present)


def test_a_run_with_a_card_for_it_owns_its_judge(tmp_path: Path, judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    log, stop = tmp_path / "1.judge.log", tmp_path / "stop"
    with own_judge(judge, Run.model_validate(APART), 8, log, stop) as asked:
        assert asked.environment == {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6"}
        assert asked.judge.kind == "endpoints"
        assert asked.judge.endpoints[0].startswith("http://127.0.0.1:")
        assert "cards 7 [" in log.read_text()
    assert not stop.exists()


def test_a_judge_that_dies_stops_the_run_at_its_next_step_boundary(
    tmp_path: Path, judge: Judge, caplog: pytest.LogCaptureFixture
) -> None:
    stop = tmp_path / "stop"
    with (
        caplog.at_level(logging.ERROR),
        own_judge(judge, Run.model_validate({**APART, "layout": {"judge": 4}}), 0, tmp_path / "log", stop) as asked,
    ):
        assert asked.environment == {}  # no cards, so none to part
        (tmp_path / "end").touch()
        deadline = time.monotonic() + 20
        while not stop.exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert "the card is gone" in caplog.text


def test_servers_that_run_elsewhere_are_left_alone_and_so_is_a_run_without_a_judges_card(tmp_path: Path) -> None:
    there = Judge.model_validate({"kind": "endpoints", "endpoints": ["http://127.0.0.1:8000/v1"]})
    with own_judge(there, Run.model_validate(APART), 8, tmp_path / "log", tmp_path / "stop") as asked:
        assert asked.judge == there
        assert asked.environment["CUDA_VISIBLE_DEVICES"].count(",") == 6
    with own_judge(Judge(), Run(), 8, tmp_path / "log", tmp_path / "stop") as asked:
        assert (asked.judge, asked.environment) == (Judge(), {})
    assert list(tmp_path.iterdir()) == []


def test_a_larger_judge_is_spread_over_its_cards(tmp_path: Path, judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    run = Run.model_validate({"cards": 8, "layout": {"rollout": 2, "judge": 2}})
    with own_judge(judge, run, 8, tmp_path / "log", tmp_path / "stop"):
        said = (tmp_path / "log").read_text()
    assert "cards 6,7 [" in said
    assert "'--tensor-parallel-size', '2'" in said
