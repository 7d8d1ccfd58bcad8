"""Runs a command and makes sure that nothing of it outlives whoever asked for it.

Started as a program by :mod:`genselect.judge.server`, with standard input on a pipe that its parent holds. When the pipe closes,
because the parent lets go or because it died in whatever way (``kill -9`` too), the command's process group gets
SIGTERM, after a grace period SIGKILL, and so does every other descendant. This is needed because vLLM's API server, killed, leaves
its ``VLLM::EngineCore`` and ``VLLM::Worker`` processes behind with the card's memory (seen with vLLM 0.32.0).

Usage: ``python keeper.py GRACE_SECONDS COMMAND...``. Exit status: the command's own, as a shell reports it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

import psutil

# <linux/prctl.h>
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_POLL_S = 0.2


def keep(grace_s: float, command: list[str]) -> int:
    """Run ``command`` until it ends or standard input does; returns its exit status."""
    # Orphans of the command become our children, so that they can be found whatever group they moved to.
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    stop = _StopFlag()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_die_with_the_keeper
    ) as process:
        while process.poll() is None and not stop.seen():
            pass
        _signal_group(process.pid, signal.SIGTERM)
        _wait_for_descendants(grace_s)
        _signal_group(process.pid, signal.SIGKILL)
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        status = process.wait()
    return 128 - status if status < 0 else status


class _StopFlag:
    """Set by SIGTERM or SIGINT, or by the end of standard input."""

    def __init__(self) -> None:
        self._told = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._tell)

    def _tell(self, *_: object) -> None:
        self._told = True

    def seen(self) -> bool:
        """Look, for a moment."""
        readable, _, _ = select.select([sys.stdin.fileno()], [], [], _POLL_S)
        return self._told or (bool(readable) and not os.read(sys.stdin.fileno(), 1024))


def _wait_for_descendants(grace_s: float) -> None:
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline:
        # Zombies are gone for our purpose; those that were handed to us are reaped on the way.
        alive = [child for child in psutil.Process().children(recursive=True) if _is_running(child)]
        if not alive:
            return
        time.sleep(0.05)


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _die_with_the_keeper() -> None:
    # Should the keeper itself be killed with -9: the API server then at least shuts its own children down.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(keep(float(sys.argv[1]), sys.argv[2:]))
