"""Stand-in for ``genselect.training.main``, the process that verl runs in, below the real launcher: a step is a pause.

Like verl's, it knows nothing of signals; like the trainer in it, it looks for the request to stop at each step boundary, and asks the
guards. From the environment: STAND_IN_STEP_S, and the steps at which its policy jumps (STAND_IN_JUMP_AT), at which it crashes
(STAND_IN_CRASH_AT) and at which it leaves with nothing wrong (STAND_IN_LEAVE_AT). Where Ray is up it asks each of its nodes who it is.
"""

import json
import os
import sys
import time
from pathlib import Path

import yaml

from genselect.formats import read_json, write_json
from genselect.provenance.run_directory import STOP_FILE
from genselect.provenance.saves import Saves
from genselect.training import guards

config = yaml.safe_load(Path(sys.argv[1]).read_text())
ours, total = config["genselect"], config["trainer"]["total_training_steps"]
save_every = config["trainer"]["save_freq"]
directory = Path(ours["directory"])
saves = Saves(directory / "checkpoints")
rules = guards.settings_from(ours["guards"])


def note(**values: object) -> None:
    """Add a line to the ledger: what happened, and where."""
    where = {"job": os.environ.get("SLURM_JOB_ID"), "node": os.environ.get("SLURMD_NODENAME")}
    with (directory / "ledger.jsonl").open("a") as file:
        file.write(json.dumps({**values, **where, "cards": os.environ.get("CUDA_VISIBLE_DEVICES", "")}) + "\n")


def asked_for(name: str, step: int) -> bool:
    """Whether this is the step at which the environment wants something to happen."""
    return os.environ.get(f"STAND_IN_{name}_AT") == str(step)


def healthy(step: int) -> bool:
    """What the guards say, written as the trainer writes it."""
    path = directory / "health.json"
    health = guards.evaluate([], {"actor/ppo_kl": 2.0 if asked_for("JUMP", step) else 0.0}, rules, step=step)
    log = read_json(path) if path.exists() else None
    record = guards.record_health(log, health, [save.step for save in saves.complete()])
    write_json(path, record)
    for broken in record["broken_saves"]:
        saves.mark_broken(broken, f"guard stop at step {step}")
    return health.level is not guards.Level.STOP


def look_around() -> None:
    """Note Ray's nodes, as tasks on them see them, and the cards that Ray counts."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.init(log_to_driver=False)

    @ray.remote(num_cpus=0)
    def who() -> tuple[str, str]:
        return os.environ["SLURMD_NODENAME"], os.environ["SLURM_JOB_ID"]

    places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in ray.nodes() if node["Alive"]]
    found = ray.get([who.options(scheduling_strategy=place).remote() for place in places])
    note(
        event="ray",
        nodes=sorted(found),
        ray_cards=ray.cluster_resources()["GPU"],
        trainer_nodes=config["trainer"]["nnodes"],
    )


def train() -> None:
    """From the last save to the last step, or to a stop."""
    if "RAY_ADDRESS" in os.environ:
        look_around()
    last = saves.last_complete_save()
    note(event="start", resumed_from=last.step if last else None)
    for step in range((last.step if last else 0) + 1, total + 1):
        time.sleep(float(os.environ.get("STAND_IN_STEP_S", "0.2")))
        if asked_for("CRASH", step):
            sys.exit("the trainer crashed")
        note(event="step", step=step)
        with (directory / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "attempt": ours["attempt"]}) + "\n")
        stop = (directory / STOP_FILE).exists()
        if (stop or step in (total, save_every * (step // save_every))) and saves.begin_save(step, ours["attempt"]):
            for rank in range(ours["world_size"]):
                file = saves.path(step) / "actor" / f"model_world_size_{ours['world_size']}_rank_{rank}.pt"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(b"weights")
            saves.mark_complete(
                step, world_size=ours["world_size"], attempt=ours["attempt"], base_weights=ours["base_weights"]
            )
            note(event="save", step=step)
        if not healthy(step) or stop or asked_for("LEAVE", step):
            return


if __name__ == "__main__":
    train()
