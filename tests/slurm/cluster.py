"""A real Slurm on the loopback: munged, slurmctld and a slurmd for each node, all state in one folder.

The cards are character devices that Slurm counts and hands out; nothing is behind them. There are no control groups: Slurm does not keep a
job to its memory, cores or cards here, it only accounts for them. Nodes share this machine's addresses and processes, unless they are
asked to be ``apart``: then each is in namespaces of its own, and has its own address, host name, process table and /tmp/ray.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
#: Steps of a job forget SLURM_CONF (the executor's job step drops every SLURM_ variable), so the file must be where Slurm looks.
CONF = Path("/etc/slurm/slurm.conf")

_CONF = """\
ClusterName=test
SlurmctldHost={host}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.sock
SlurmctldPort={port}
SlurmctldPidFile={root}/slurmctld.pid
SlurmctldLogFile={root}/slurmctld.log
StateSaveLocation={root}/state
SlurmdPidFile={root}/slurmd-%n.pid
SlurmdLogFile={root}/slurmd-%n.log
SlurmdSpoolDir={root}/spool-%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MpiDefault=none
{listening}ReturnToService=2
MinJobAge=300
KillWait=3
OverTimeLimit=0
GresTypes=gpu
AccountingStorageType=accounting_storage/none
{nodes}PartitionName=cpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=10
PartitionName=low Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace_s}
PartitionName=lowest Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=100 PreemptMode=OFF
"""


def why_not() -> str | None:
    """Why no Slurm can be started on this machine; None when one can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"no Slurm on this machine ({', '.join(missing)}): apt-get install slurm-wlm"
    if os.geteuid() != 0:
        return "Slurm's daemons need root here, to make device files and /etc/slurm/slurm.conf"
    if CONF.exists() or CONF.is_symlink():
        return f"{CONF} is there: this machine belongs to a Slurm, which the tests leave alone"
    return None


def why_not_apart() -> str | None:
    """Why nodes cannot have namespaces of their own on this machine; None when they can."""
    if (reason := why_not()) is not None:
        return reason
    probe = ["unshare", "--net", "ip", "link", "add", "probe", "type", "bridge"]
    if shutil.which("ip") is None or not _succeeds(*probe) or not _succeeds(*_NAMESPACES, "true"):
        return "nodes of their own need network and process namespaces here (ip, unshare, CAP_NET_ADMIN, CAP_SYS_ADMIN)"
    return None


_NAMESPACES = ("unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--uts")
#: Of nodes that are apart: a bridge, and below it a cable to each.
_BRIDGE, _NETWORK = "gs-bridge", "10.231.7"


class Slurm:
    """Daemons and what is asked of them; a context manager."""

    def __init__(
        self, root: Path, *, nodes: int = 1, cards: int = 8, cores: int = 128, grace_s: int = 20, apart: bool = False
    ) -> None:
        self.root = root
        self._apart = apart
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.cards = cards
        self._nodes = [f"node{number:02d}" for number in range(1, nodes + 1)]
        self._cores = cores
        self._grace_s = grace_s

    def __enter__(self) -> Slurm:
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o755)
        try:
            self._write_configuration()
            key = self.root / "munge.key"
            key.write_bytes(secrets.token_bytes(128))
            key.chmod(0o600)
            files = {"key-file": "key", "socket": "sock", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
            _run("munged", "--force", *(f"--{name}={self.root}/munge.{end}" for name, end in files.items()))
            wait_for(lambda: _succeeds("munge", "-S", f"{self.root}/munge.sock", "-n"), "munged")
            CONF.parent.mkdir(exist_ok=True)
            CONF.symlink_to(self.root / "slurm.conf")
            if self._apart:
                self._lay_cables()
            self.start_controller("-c")
            for node in self._nodes:
                if self._apart:
                    self._start_apart(node)
                else:
                    self._daemon("slurmd", "-N", node)
            wait_for(lambda: self._idle() == len(self._nodes), "the nodes")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(subprocess.SubprocessError):
            self.cancel_all()
        nodes = [] if self._apart else self.root.glob("slurmd-*.pid")
        for pid_file in [*nodes, self.root / "slurmctld.pid", self.root / "munge.pid"]:
            _stop(pid_file)
        for daemon in self._daemons:
            daemon.kill()  # and with it all processes of its node
            daemon.wait()
        if self._apart:
            self._take_cables_away()
        if CONF.is_symlink() and CONF.readlink() == self.root / "slurm.conf":
            CONF.unlink()

    def start_controller(self, *options: str) -> None:
        """Start slurmctld and wait for its first answer."""
        self._daemon("slurmctld", *options)
        wait_for(lambda: _succeeds("scontrol", "ping"), "slurmctld")

    def stop_controller(self) -> None:
        """Take slurmctld away; jobs go on."""
        _stop(self.root / "slurmctld.pid")

    def jobs(self) -> list[dict[str, str]]:
        """Every job that Slurm still knows, by number: id, state, rule, cards (as Slurm counts them), node, partition, restarts, time."""
        form = "JobID:|,State:|,Comment:|,tres-per-job:|,NodeList:|,Partition:|,RestartCnt:|,TimeUsed:|"
        lines = _run("squeue", "--noheader", "--states=all", "--Format", form.replace(":|", ":300|")).splitlines()
        names = ("id", "state", "rule", "cards", "node", "partition", "restarts", "time")
        found = [dict(zip(names, (part.strip() for part in line.split("|")), strict=False)) for line in lines if line]
        return sorted(found, key=lambda job: int(job["id"]))

    def seconds(self, rule: str) -> list[int]:
        """How long each job of a rule ran, by number."""
        used = [re.split("[-:]", job["time"]) for job in self.jobs() if job["rule"].startswith(f"rule_{rule}")]
        units = (1, 60, 3600, 86400)  # [[days-]hours:]minutes:seconds
        return [sum(int(part) * unit for part, unit in zip(reversed(parts), units, strict=False)) for parts in used]

    def running(self, rule: str) -> list[dict[str, str]]:
        """The running jobs of a rule."""
        return [job for job in self.jobs() if job["state"] == "RUNNING" and job["rule"].startswith(f"rule_{rule}")]

    def waiting(self, rule: str) -> list[dict[str, str]]:
        """The jobs of a rule that wait in the queue."""
        return [job for job in self.jobs() if job["state"] == "PENDING" and job["rule"].startswith(f"rule_{rule}")]

    def cancel(self, *options: str) -> None:
        """Run ``scancel`` with these options."""
        _run("scancel", *options)

    def cancel_all(self) -> None:
        """Cancel every job and wait until none runs."""
        if not _succeeds("scontrol", "ping"):
            return
        _run("scancel", "--user=root")
        with contextlib.suppress(AssertionError):
            wait_for(lambda: not _run("squeue", "--noheader"), "the end of the jobs", 30)

    def submit(self, *options: str, command: str) -> str:
        """Submit a job that is not Snakemake's; returns its number."""
        return _run("sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap={command}").strip()

    def _daemon(self, *command: str) -> None:
        # gres.conf is looked for beside the file that this names.
        environment = {**os.environ, "SLURM_CONF": str(self.root / "slurm.conf")}
        subprocess.run(command, env=environment, check=True, timeout=60, stdout=subprocess.DEVNULL)

    def processes(self, node: str) -> list[str]:
        """The command lines of the processes of a node that is apart, but for Slurm's own."""
        found = _run(*self._within(node), "ps", "-eo", "args=").splitlines()
        return [line for line in found if not line.startswith(("slurm", "ps ", "nsenter", "(", "[", "/usr/sbin/slurm"))]

    def _within(self, node: str) -> list[str]:
        """What goes before a command that is to run on a node that is apart."""
        # The child of unshare is the first process of the node.
        unshare = self._daemons[self._nodes.index(node)].pid
        (first,) = Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()
        return ["nsenter", "--target", first, "--all"]

    def _lay_cables(self) -> None:
        _run("ip", "link", "add", _BRIDGE, "type", "bridge")
        _run("ip", "address", "add", f"{_NETWORK}.254/24", "dev", _BRIDGE)
        _run("ip", "link", "set", _BRIDGE, "up")
        for number, node in enumerate(self._nodes, start=1):
            _run("ip", "netns", "add", f"gs-{node}")
            _run("ip", "link", "add", f"gs-{node}", "type", "veth", "peer", "name", "eth0", "netns", f"gs-{node}")
            _run("ip", "link", "set", f"gs-{node}", "master", _BRIDGE, "up")
            inside = ("ip", "-n", f"gs-{node}")
            _run(*inside, "address", "add", f"{_NETWORK}.{number}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _run(*inside, "link", "set", device, "up")
            # Leads nowhere; Ray looks for the address that would be used to go there.
            _run(*inside, "route", "add", "default", "via", f"{_NETWORK}.254")

    def _take_cables_away(self) -> None:
        for node in self._nodes:
            _succeeds("ip", "netns", "delete", f"gs-{node}")
        _succeeds("ip", "link", "delete", _BRIDGE)

    def _start_apart(self, node: str) -> None:
        Path("/tmp/ray").mkdir(exist_ok=True)
        inside = f"hostname {node}; mount -t tmpfs ray /tmp/ray; exec slurmd -D -N {node}"
        command = ["ip", "netns", "exec", f"gs-{node}", *_NAMESPACES, "sh", "-c", inside]
        environment = {**os.environ, "SLURM_CONF": str(self.root / "slurm.conf")}
        with (self.root / f"{node}.log").open("wb") as log:
            self._daemons.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    def _idle(self) -> int:
        return int(_run("sinfo", "--noheader", "--partition=cpu", "--states=idle", "--format=%D").strip() or 0)

    def _write_configuration(self) -> None:
        host = socket.gethostname().split(".")[0]
        controller, *ports = _free_ports(1 + len(self._nodes))
        nodes, devices = "", ""
        for number, (node, port) in enumerate(zip(self._nodes, ports, strict=True), start=1):
            name, address = (node, f"{_NETWORK}.{number}") if self._apart else (host, "127.0.0.1")
            nodes += (
                f"NodeName={node} NodeHostname={name} NodeAddr={address} Port={port} CPUs={self._cores} "
                f"RealMemory=2000000 Gres=gpu:{self.cards} State=UNKNOWN\n"
            )
            folder = self.root / f"cards-{node}"
            folder.mkdir()
            for card in range(self.cards):
                # Character devices: with plain files Slurm leaves CUDA_VISIBLE_DEVICES empty.
                os.mknod(folder / f"gpu{card}", 0o600 | 0o020000, os.makedev(1, 3))
            devices += f"NodeName={node} Name=gpu Flags=nvidia_gpu_env File={folder}/gpu[0-{self.cards - 1}]\n"
        address = f"{_NETWORK}.254" if self._apart else "127.0.0.1"
        # On the loopback alone, where that is enough.
        listening = "" if self._apart else "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny\n"
        fields = {"host": host, "address": address, "listening": listening, "grace_s": self._grace_s}
        text = _CONF.format(root=self.root, port=controller, nodes=nodes, **fields)
        (self.root / "slurm.conf").write_text(text)
        (self.root / "gres.conf").write_text(devices)
        (self.root / "cgroup.conf").write_text(
            "CgroupPlugin=cgroup/v1\nConstrainDevices=no\nConstrainCores=no\nConstrainRAMSpace=no\n"
        )


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = 30) -> None:
    """Wait until ``condition()`` is true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"no sign of {what} in {timeout_s:.0f} s"
        time.sleep(0.2)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def _stop(pid_file: Path) -> None:
    """End the daemon that wrote this file, and only that."""
    with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError):
        pid = int(pid_file.read_text())
        os.kill(pid, signal.SIGTERM)
        for _ in range(100):
            os.kill(pid, 0)
            time.sleep(0.1)
        os.kill(pid, signal.SIGKILL)
    pid_file.unlink(missing_ok=True)
