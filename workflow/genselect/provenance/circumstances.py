"""Where a result came from: code, environment, machine, command. Secrets never."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import genselect

#: Packages whose versions can change a result.
_PACKAGES = (
    "genselect snakemake pandas pyarrow numpy scipy statsmodels orjson xxhash datasketch math-verify latex2sympy2-extended sympy "
    "huggingface-hub httpx aiohttp vllm verl torch transformers peft ray wandb"
).split()
_SLURM = (
    "SLURM_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_JOB_PARTITION",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_GPUS",
    "SLURM_CLUSTER_NAME",
)
_SECRET_NAME = re.compile(r"(?i)(token|secret|password|passwd|api[_-]?key|credential)")


def collect(argv: list[str] | None = None) -> dict[str, Any]:
    """Git commit and hash of uncommitted changes, lock file hash, package versions, host, GPUs, Slurm ids, argv (redacted)."""
    return {
        **_git(),
        "lock_sha256": _lock_sha256(),
        "python": platform.python_version(),
        "packages": _packages(),
        "host": platform.node(),
        "platform": platform.platform(),
        "gpus": _gpus(),
        "slurm": {name: os.environ[name] for name in _SLURM if name in os.environ},
        "argv": redact(list(sys.argv if argv is None else argv)),
    }


def redact(arguments: list[str]) -> list[str]:
    """``arguments`` with values of secret-looking options, and of the environment's own tokens, replaced by ``***``."""
    secrets = [value for name, value in os.environ.items() if _SECRET_NAME.search(name) and len(value) >= 8]
    shown: list[str] = []
    hide_next = False
    for argument in arguments:
        name, separator, _ = argument.partition("=")
        if hide_next:
            argument = "***"
        elif separator and _SECRET_NAME.search(name):
            argument = f"{name}=***"
        # `--token VALUE` hides the next word; `--token=VALUE` was dealt with above.
        hide_next = not hide_next and not separator and argument.startswith("-") and bool(_SECRET_NAME.search(argument))
        for secret in secrets:
            argument = argument.replace(secret, "***")
        shown.append(argument)
    return shown


def source_root() -> Path:
    """The checkout (or copy) that this library runs from."""
    return Path(genselect.__file__).resolve().parents[2]


@functools.cache
def _git() -> dict[str, str | None]:
    root = source_root()
    if shutil.which("git") is None or _run("git", "rev-parse", "--show-toplevel", cwd=root) != str(root):
        return {"git_commit": None, "git_dirty_sha256": None}
    commit = _run("git", "rev-parse", "HEAD", cwd=root)
    changed = _run("git", "status", "--porcelain", cwd=root)
    if not changed:
        return {"git_commit": commit, "git_dirty_sha256": None}
    digest = hashlib.sha256((_run("git", "diff", "HEAD", "--binary", cwd=root) or "").encode())
    for name in (_run("git", "ls-files", "--others", "--exclude-standard", cwd=root) or "").splitlines():
        path = root / name
        if path.is_file():
            digest.update(name.encode() + b"\0" + path.read_bytes())
    return {"git_commit": commit, "git_dirty_sha256": digest.hexdigest()}


def _run(*command: str, cwd: Path) -> str | None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, errors="replace")
    return done.stdout.strip() if done.returncode == 0 else None


def _lock_sha256() -> str | None:
    lock = source_root() / "envs" / "mini.lock"
    return hashlib.sha256(lock.read_bytes()).hexdigest() if lock.is_file() else None


@functools.cache
def _packages() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _gpus() -> list[dict[str, str]]:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no library, no driver, no card: all mean that there is nothing to report
        return []
    driver = str(pynvml.nvmlSystemGetDriverVersion())
    cards = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    return [
        {"name": str(pynvml.nvmlDeviceGetName(card)), "uuid": str(pynvml.nvmlDeviceGetUUID(card)), "driver": driver}
        for card in cards
    ]
