"""A run over several nodes of a Slurm job: Ray on each of them, the trainer on the first.

``ray symmetric-run``, started by ``srun`` on every node, brings Ray up, runs the trainer on the node whose address it was given, and takes
Ray down again. Below srun each node has its own keeper (:mod:`genselect.judge.keeper`): srun hands its standard input on to all of them,
so they end everything when the launcher lets go of it or is gone, as on one node.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from genselect.errors import GenselectError

#: Seconds for Ray to be up on all nodes. Its own 30 are few where Python is read from a file system that nodes share.
_WAIT_S = 300


def check_nodes(name: str, nodes: int) -> None:
    """Make sure that the job has the nodes of the run ``name``.

    Raises:
        GenselectError: More than one are wanted, and this is no Slurm job, or one of another number of nodes.
    """
    if nodes == 1:
        return
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        raise GenselectError(
            f"{name}: nodes is {nodes}, and this is no Slurm job",
            f"Start it with --profile profiles/slurm (docs/slurm.md), or set runs.{name}.nodes to 1.",
        )
    command = ["squeue", "--noheader", f"--jobs={job}", "--format=%D"]
    # A controller that is silent now is no reason: srun finds out.
    granted = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    if granted and int(granted) != nodes:
        raise GenselectError(
            f"{name}: nodes is {nodes}, and job {job} has {granted}",
            "Take `nodes` for train_run out of the profile: the rule asks for them by the configuration.",
        )


def over_nodes(keep: Sequence[str], trainer: Sequence[str], nodes: int, cards: int) -> list[str]:
    """The command that keeps ``trainer``, over all nodes of the job.

    Args:
        keep: The keeper with its arguments.
        trainer: The trainer's command.
        nodes: Of the job, whose first this is.
        cards: That Ray is to count on each node.
    """
    address = _own_address()
    own = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [
        # All of the job's cores, memory and cards on each node; whoever fails takes the others along, whoever is done does not.
        *("srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--cpu-bind=none"),
        # Or Slurm may leave cards out: of sixteen, 22.05 gave this node one and the other eight.
        *([f"--gpus-per-node={len(own.split(','))}"] if own else []),
        *("--export=ALL", "--input=all", "--label", "--kill-on-bad-exit=1", "--wait=0"),
        *keep,
        *(str(Path(sys.executable).with_name("ray")), "symmetric-run", "--address", address, "--min-nodes", str(nodes)),
        *(f"--num-gpus={cards}", "--"),
        # For the trainer alone: Ray's own programs would take it for the cluster that they are to join.
        *("env", f"RAY_ADDRESS={address}", *trainer),
    ]


def environment() -> dict[str, str]:
    """What Ray reads from the environment on every node."""
    return {
        "RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT": str(_WAIT_S),
        # Whoever reaches Ray's port could run anything. Said here, because Ray 2.60 decides for itself otherwise, and differently on its
        # head (`ray start`, by ~/.ray/auth_token) and on the nodes that wait for it (`ray symmetric-run`, never).
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }


def _own_address() -> str:
    """Address of this node in the cluster's network, as Ray sees it, and a port that is free."""
    import ray.util

    with socket.socket() as probe:
        probe.bind(("", 0))
        return f"{ray.util.get_node_ip_address()}:{probe.getsockname()[1]}"
