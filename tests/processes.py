"""Looking at processes that may end while they are looked at."""

from __future__ import annotations

import psutil


def command_line(process: psutil.Process) -> str:
    """The words of a running process's command; empty once it has ended, waited for by its parent or not."""
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def running(processes: list[psutil.Process]) -> list[str]:
    """The command lines of those that still run."""
    return [line for process in processes if (line := command_line(process))]


def trainer_below(pid: int) -> psutil.Process:
    """The program of a training rule, below Snakemake and its shell."""
    for child in psutil.Process(pid).children(recursive=True):
        if any(word.endswith("train.py") for word in command_line(child).split()):
            return child
    raise AssertionError("no train.py is running")
