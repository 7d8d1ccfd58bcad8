"""Four nodes of eight cards: runs and label shards spread over as many nodes as there are, and no run over two."""

from __future__ import annotations

import pytest
from cluster import wait_for
from study import CONFIG, Study

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def nodes() -> int:
    return 4


def test_four_runs_of_eight_cards_go_side_by_side(study: Study) -> None:
    study.rows()
    run = {"kind": "smoke", "cards": 8, "schedule": {**CONFIG["runs"]["smoke"]["schedule"], "steps": 40}}
    names = [f"run{number}" for number in range(4)]
    study.configure(**dict.fromkeys(names, run))
    study.environment["STAND_IN_STEP_S"] = "1.5"
    with study.start(*(f"results/runs/{name}/done.json" for name in names)) as driver:
        wait_for(lambda: len(study.slurm.running("train_run")) == 4, "four runs side by side", 90)
        placed = sorted(job["node"] for job in study.slurm.running("train_run"))
        assert placed == ["node01", "node02", "node03", "node04"]
        assert driver.wait() == 0, driver.said()
    for name in names:
        assert study.steps(name) == list(range(1, 41))
        assert {line["cards"] for line in study.ledger(name)} == {"0,1,2,3,4,5,6,7"}
