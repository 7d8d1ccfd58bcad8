#!/usr/bin/env python3
"""A `conda` for tests: answers what Snakemake asks of one.

Solving and linking are real (py-rattler), against one local channel, which stands for whichever channels an environment names. Lines for
pip go to the environment's own pip, word for word and with the options that conda gives it (conda/env/installers/pip.py).
What it does not do: run link scripts, or know more of conda than these calls.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

#: Holds channel/ and bin/activate.
BASE = Path(os.environ["CONDA_STAND_IN"])
#: New enough for Snakemake (MIN_CONDA_VER).
VERSION = "26.9.0"
PLATFORM = "linux-64"


def main() -> None:
    """Dispatch on conda's own words."""
    parser = argparse.ArgumentParser(prog="conda", description=__doc__)
    parser.add_argument("--version", action="version", version=f"conda {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info").add_argument("--json", action="store_true")
    config = commands.add_parser("config")
    config.add_argument("--get", choices=["channel_priority"])
    config.add_argument("--json", action="store_true")
    # Snakemake has archives deleted after each environment; there is nothing to delete.
    clean = commands.add_parser("clean")
    clean.add_argument("-y", action="store_true")
    clean.add_argument("--tarballs", action="store_true")
    from_yaml = commands.add_parser("env").add_subparsers(dest="subcommand", required=True).add_parser("create")
    from_pins = commands.add_parser("create")
    for create in (from_yaml, from_pins):
        create.add_argument("--quiet", action="store_true")
        create.add_argument("--yes", action="store_true")
        create.add_argument("--no-default-packages", action="store_true")
        create.add_argument("--file", type=Path, required=True)
        create.add_argument("--prefix", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.command == "info":
        print(json.dumps({"conda_prefix": str(BASE), "platform": PLATFORM, "conda_version": VERSION}))
    elif arguments.command == "config":
        print(json.dumps({"get": {"channel_priority": "strict"}}))
    elif arguments.command == "env":
        create_from_yaml(arguments.file, arguments.prefix)
    elif arguments.command == "create":
        create_from_pins(arguments.file, arguments.prefix)


def create_from_yaml(file: Path, prefix: Path) -> None:
    """`conda env create`: solve, link, then pip."""
    import yaml

    dependencies = yaml.safe_load(file.read_text(encoding="utf-8"))["dependencies"]
    link([entry for entry in dependencies if isinstance(entry, str)], prefix)
    for entry in dependencies:
        if isinstance(entry, dict):
            with tempfile.NamedTemporaryFile(
                "w", dir=file.parent, prefix="condaenv.", suffix=".requirements.txt", encoding="utf-8"
            ) as requirements:
                requirements.write("\n".join(entry["pip"]))
                requirements.flush()
                pip = [prefix / "bin" / "python", "-m", "pip", "install", "-U", "-r", requirements.name]
                if subprocess.run([*pip, "--exists-action=b"], check=False, cwd=file.parent).returncode:
                    sys.exit("CondaEnvException: Pip failed")


def create_from_pins(file: Path, prefix: Path) -> None:
    """`conda create` from an explicit list: exactly these files, or nothing."""
    lines = [line.partition("#")[0] for line in file.read_text(encoding="utf-8").splitlines()]
    specs = []
    for url in (line for line in lines if line and not line.startswith("@")):
        name, version, build = url.rpartition("/")[2].removesuffix(".tar.bz2").rsplit("-", 2)
        specs.append(f"{name} =={version} {build}")
    link(specs, prefix)


def link(specs: list[str], prefix: Path) -> None:
    """Solve ``specs`` and link what comes out into ``prefix``."""
    import rattler

    async def solve_and_link() -> None:
        channel = BASE / "channel"
        records = await rattler.solve([channel.as_uri()], specs, platforms=[PLATFORM, "noarch"])
        await rattler.install(records, prefix, cache_dir=BASE / "pkgs", show_progress=False)

    try:
        asyncio.run(solve_and_link())
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
