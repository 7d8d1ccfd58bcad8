"""The pins of the conda environments: read a lock, write what Snakemake installs from it, find what is out of step.

    NAME.in       what is asked for, with reasons             by hand
    NAME.lock     that and everything below it, with hashes   `make lock` (make_locks.py)
    conda.pins    what comes from conda                       by hand
    NAME.yaml     the conda environment                       written from NAME.lock and conda.pins
    NAME.post-deploy.sh   what is built inside it, if anything is

Snakemake copies the YAML, alone, to where it makes the environment, and names the environment by a hash over the YAML and the
script beside it. A YAML that said ``-r NAME.lock`` would find no such file there, and a changed lock would make no new environment. So
the YAML lists the whole lock, hashes and all; conda hands such lines to pip as they are. docs/environments.md has the rest.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ENVS = Path(__file__).resolve().parent
#: The conda environments, each for a group of rules.
NAMES = ("data", "judge", "train", "publish")
#: Packages whose build imports what the environment itself holds, with what that build is told. pip, called by conda, builds apart from
#: the environment; so these are left to a script that Snakemake runs inside the finished one.
BUILT_INSIDE = {
    # setup.py imports torch. Left alone it first asks its releases for a wheel, which no hash of ours would cover.
    "flash-attn": "FLASH_ATTENTION_FORCE_BUILD=TRUE",
}

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)")
_HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})")
_ASKED_BY = re.compile(r"^ +#(?: via)? +-r (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Pin:
    """One package of a lock."""

    name: str
    version: str
    #: Of the files that may be installed: the wheels for Linux on x86-64, or the source where there is no such wheel.
    hashes: tuple[str, ...]
    #: The ``.in`` files that name it; none for a package that another one brings.
    asked_by: tuple[str, ...] = ()

    def line(self) -> str:
        """The pin as a line of a requirements file."""
        return " ".join([f"{self.name}=={self.version}", *(f"--hash={digest}" for digest in self.hashes)])


def read_lock(path: Path) -> list[Pin]:
    """The pins of a lock, in its order.

    Raises:
        ValueError: a requirement is not pinned to one version.
    """
    pins = []
    for block in re.split(r"\n(?=\S)", path.read_text(encoding="utf-8")):
        if not block.strip() or block.startswith("#"):
            continue
        match = _PIN.match(block)
        if match is None:
            raise ValueError(f"{path}: not a pin: {block.splitlines()[0]}")
        pins.append(
            Pin(canonicalize_name(match[1]), match[2], tuple(_HASH.findall(block)), tuple(_ASKED_BY.findall(block)))
        )
    return pins


def read_asked(path: Path) -> list[Requirement]:
    """What an ``.in`` file asks for, those that it names with ``-r`` included."""
    asked = []
    for line in path.read_text(encoding="utf-8").splitlines():
        words = re.sub(r"(^|\s)#.*", "", line).strip()
        if words.startswith("-r "):
            asked += read_asked(path.parent / words[3:].strip())
        elif words:
            asked.append(Requirement(words))
    return asked


def conda_packages(envs: Path = ENVS) -> list[str]:
    """What every environment takes from conda."""
    lines = (envs / "conda.pins").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def environment(name: str, pins: Iterable[Pin], conda: Iterable[str]) -> str:
    """The text of ``NAME.yaml``."""
    lines = [
        f"# Written by `make lock` from {name}.lock and conda.pins; what is asked for, and why, is in {name}.in.",
        "channels: [conda-forge, nodefaults]",
        "dependencies:",
        *(f"  - {package}" for package in conda),
        "  - pip:",
        *(f"      - {pin.line()}" for pin in pins if pin.name not in BUILT_INSIDE),
    ]
    return "\n".join(lines) + "\n"


def post_deploy(name: str, pins: Iterable[Pin]) -> str | None:
    """The text of ``NAME.post-deploy.sh``; None where nothing is built inside the environment."""
    built = [pin for pin in pins if pin.name in BUILT_INSIDE]
    if not built:
        return None
    lines = [
        "#!/usr/bin/env bash",
        f"# Written by `make lock` from {name}.lock. Snakemake runs it inside the environment that it has just made from {name}.yaml;",
        f"# by hand: activate the environment, then `bash envs/{name}.post-deploy.sh`. What the build needs: docs/environments.md.",
        "set -euo pipefail",
        "pins=$(mktemp)",
        "trap 'rm -f \"$pins\"' EXIT",
        "cat >\"$pins\" <<'END'",
        *(pin.line() for pin in built),
        "END",
        *(f"export {BUILT_INSIDE[pin.name]}" for pin in built),
        # pip's cache may hold a wheel that was built against another environment's packages.
        'python -m pip install --no-cache-dir --no-deps --no-build-isolation --require-hashes --requirement "$pins"',
    ]
    return "\n".join(lines) + "\n"


def written(name: str, envs: Path = ENVS) -> dict[Path, str | None]:
    """What the files that follow from ``NAME.lock`` have to hold; None for one that must not be there."""
    pins = read_lock(envs / f"{name}.lock")
    return {
        envs / f"{name}.yaml": environment(name, pins, conda_packages(envs)),
        envs / f"{name}.post-deploy.sh": post_deploy(name, pins),
    }


def problems(name: str, envs: Path = ENVS) -> list[str]:
    """Where lock, YAML and script of one environment are out of step with each other or with what is asked for; found offline.

    Whether the lock is a whole closure only the package index can tell: `make lock`, or docs/benchmarks/locks.py.
    """
    found = []
    for path, text in written(name, envs).items():
        there = path.read_text(encoding="utf-8") if path.exists() else None
        if there != text:
            found.append(f"envs/{path.name} is not what envs/{name}.lock and envs/conda.pins say")
    pins = {pin.name: pin for pin in read_lock(envs / f"{name}.lock")}
    found += [f"envs/{name}.lock: {pin.name} has no hash" for pin in pins.values() if not pin.hashes]
    asked = read_asked(envs / f"{name}.in")
    for requirement in asked:
        pin = pins.get(canonicalize_name(requirement.name))
        if pin is None:
            found.append(f"envs/{name}.in asks for {requirement}, and envs/{name}.lock has none")
        elif not requirement.specifier.contains(pin.version, prereleases=True):
            found.append(f"envs/{name}.in asks for {requirement}, and envs/{name}.lock pins {pin.version}")
    names = {canonicalize_name(requirement.name) for requirement in asked}
    found += [
        f"envs/{name}.lock pins {pin.name} for {', '.join(pin.asked_by)}, which does not ask for it"
        for pin in pins.values()
        if pin.asked_by and pin.name not in names
    ]
    # With a pin file Snakemake reads no YAML, so nothing that pip brings would be there; a broken one is only warned of.
    found += [f"envs/{path.name}: list conda's pins in envs/conda.pins" for path in envs.glob(f"{name}.*.pin.txt")]
    return found
