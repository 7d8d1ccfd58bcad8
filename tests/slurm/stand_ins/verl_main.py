"""Stand-in for ``genselect.training.main``, the process that verl runs in, below the real launcher: a step is a pause.

Like verl's, it knows nothing of signals; like the trainer in it, it looks for the request to stop at each step boundary.
"""

import json
import os
import sys
import time
from pathlib import Path

import yaml

from genselect.provenance.run_directory import STOP_FILE
from genselect.provenance.saves import Saves

config = yaml.safe_load(Path(sys.argv[1]).read_text())
ours, total = config["genselect"], config["trainer"]["total_training_steps"]
directory = Path(ours["directory"])
saves = Saves(directory / "checkpoints")


def note(**values: object) -> None:
    """Add a line to the ledger."""
    with (directory / "ledger.jsonl").open("a") as file:
        file.write(json.dumps(values) + "\n")


last = saves.last_complete_save()
note(event="start", resumed_from=last.step if last else None)
for step in range((last.step if last else 0) + 1, total + 1):
    time.sleep(float(os.environ.get("STAND_IN_STEP_S", "0.2")))
    note(event="step", step=step)
    with (directory / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": step, "attempt": ours["attempt"]}) + "\n")
    stop = (directory / STOP_FILE).exists()
    if (stop or step == total) and saves.begin_save(step, ours["attempt"]):
        actor = saves.path(step) / "actor"
        actor.mkdir(parents=True)
        (actor / f"model_world_size_{ours['world_size']}_rank_0.pt").write_bytes(b"weights")
        saves.mark_complete(step, world_size=ours["world_size"], attempt=ours["attempt"])
        note(event="save", step=step)
    if stop:
        break
