"""A run over two nodes in namespaces of their own: the real launcher starts the real Ray on both; verl's process is a stand-in."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from cluster import Slurm, wait_for, why_not_apart
from study import STAND_INS, Study

from processes import command_line

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

RUN = "results/runs/run/done.json"
NODES = ["node01", "node02"]
CARDS = 8


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    if (reason := why_not_apart()) is not None:
        pytest.skip(reason)
    with Slurm(tmp_path_factory.mktemp("slurm") / "cluster", nodes=2, apart=True) as cluster:
        yield cluster


@pytest.fixture
def launched(training: Callable[..., Study], repository: Path) -> Callable[..., Study]:
    """A copy with the real train.py, whose run takes two nodes."""

    def prepare(steps: int, save_every: int = 4, step_s: float = 1.0) -> Study:
        study = training(steps=steps, save_every=save_every, cards=CARDS, step_s=step_s, nodes=2)
        shutil.copy(repository / "workflow" / "scripts" / "train.py", study.root / "workflow" / "scripts" / "train.py")
        shutil.copy(STAND_INS / "verl_main.py", study.root / "workflow" / "genselect" / "training" / "main.py")
        # The second node's Ray gives its head up sooner than after a minute; later than `ray stop` on the first takes, all the same.
        study.environment["RAY_gcs_rpc_server_reconnect_timeout_s"] = "25"
        return study

    return prepare


def ray_on(study: Study) -> dict[str, bool]:
    """Whether a raylet runs on each node."""
    return {node: any("raylet/raylet" in line for line in study.slurm.processes(node)) for node in NODES}


def cards_on_both() -> list[str]:
    """The cards that Ray's programs were given, on each node."""
    started = [process for process in psutil.process_iter() if "/ray symmetric-run" in command_line(process)]
    return [
        process.environ()["CUDA_VISIBLE_DEVICES"]
        for process in started
        if not command_line(process).startswith("srun") and "keeper.py" not in command_line(process)
    ]


def left_on(study: Study) -> list[str]:
    """What still runs on the nodes."""
    return [line for node in NODES for line in study.slurm.processes(node)]


def test_ray_is_up_on_both_nodes_and_gone_at_the_end(launched: Callable[..., Study]) -> None:
    study = launched(steps=6)
    with study.start(RUN) as driver:
        study.wait_for_step("run", 1, timeout_s=300)
        (job,) = study.slurm.running("train_run")
        assert (job["cards"], job["node"]) == ("gres:gpu:16", "node[01-02]")
        assert ray_on(study) == dict.fromkeys(NODES, True)
        assert cards_on_both() == ["0,1,2,3,4,5,6,7"] * 2
        assert driver.wait(400) == 0, driver.said() + study.logs()
    assert study.redone("run", 6) == []
    (seen,) = study.ledger("run", "ray")
    assert seen["nodes"] == [[node, job["id"]] for node in NODES]
    assert (seen["trainer_nodes"], seen["node"]) == (2, "node01")
    wait_for(lambda: left_on(study) == [], "the end of all processes", 30)


def test_a_cancel_ends_all_on_every_node_and_the_retry_goes_on(launched: Callable[..., Study]) -> None:
    study = launched(steps=12)
    with study.start(RUN) as driver:
        study.wait_for_step("run", 6, timeout_s=300)
        (job,) = study.slurm.running("train_run")
        processes = left_on(study)
        assert any("gcs_server" in line for line in processes)
        study.slurm.cancel(job["id"])
        wait_for(lambda: not any(line in left_on(study) for line in processes), "the end of all processes", 60)
        assert driver.wait(400) == 0, driver.said() + study.logs()
    assert len(study.redone("run", 12)) < 4, "only what lay beyond the last save is trained again"
    assert study.reasons("run")[-1] == "done"


def test_before_the_time_limit_it_saves_and_the_retry_goes_on(launched: Callable[..., Study]) -> None:
    study = launched(steps=80, save_every=1000, step_s=1.5)
    study.profile(train={"runtime": 5})
    study.snakemake(RUN, timeout=1200)
    assert study.redone("run", 80) == []
    reasons = study.reasons("run")
    assert len(reasons) > 1
    assert reasons == ["time_limit"] * (len(reasons) - 1) + ["done"]


def test_a_lost_launcher_leaves_nothing_on_any_node(launched: Callable[..., Study]) -> None:
    study = launched(steps=1000)
    with study.start(RUN):
        study.wait_for_step("run", 2, timeout_s=300)
        assert ray_on(study) == dict.fromkeys(NODES, True)
        (launcher,) = [
            process
            for process in psutil.process_iter()
            if str(study.root / "workflow" / "scripts" / "train.py") in command_line(process).split()
        ]
        launcher.kill()
        wait_for(lambda: not any(ray_on(study).values()), "the end of Ray on both nodes", 60)
