"""The short trials on Slurm, part of ``make test``; the long ones are in ``test_stops.py`` and ``test_whole.py``."""

from __future__ import annotations

from collections.abc import Callable

from cluster import wait_for
from study import Study

RUN = "results/runs/run/done.json"
EIGHT = "0,1,2,3,4,5,6,7"


def test_a_training_waits_for_its_cards_and_goes_on_after_a_cancel(training: Callable[..., Study]) -> None:
    study = training(steps=18, save_every=4, cards=8, step_s=1.0)
    slurm = study.slurm
    # Somebody else's job holds one of the eight cards.
    other = slurm.submit("--gpus=1", "--nodes=1", "--mem=100", command="sleep 600")
    wait_for(lambda: any(job["state"] == "RUNNING" for job in slurm.jobs() if job["id"] == other), "the other job")
    with study.start(RUN) as driver:
        wait_for(lambda: slurm.waiting("train_run"), "the training in the queue", 60)
        assert slurm.waiting("train_run")[0]["cards"] == "gres:gpu:8"
        slurm.cancel(other)
        study.wait_for_step("run", 6)
        (job,) = slurm.running("train_run")
        slurm.cancel(job["id"])
        assert driver.wait() == 0, driver.said()
    assert len(study.redone("run", 18)) < 4, "only what lay beyond the last save is trained again"
    assert study.reasons("run") == ["killed", "done"]
    assert {line["cards"] for line in study.ledger("run")} == {EIGHT}
