#!/usr/bin/env python3
"""Resolve, install and import every conda environment's lock, and write down what happened.

    docs/benchmarks/locks.py --workdir DIR [data judge …] [--uv judge train] [--output docs/benchmarks/locks.md]

For each environment of envs/: resolve its .in file again (and compare with the lock), install the YAML's pip lines into a fresh virtual
environment under DIR as conda has pip do it, import every package in it, and every module of the library that its programs reach, and
ask each program that a rule runs there for ``--help``. The environment is removed at the end. Needs the package index; no card, and no
conda: the conda part of the YAML is the one thing not looked at. judge and train are 10 GB each; --uv installs them with uv, from the
same lines, which takes from its cache what both have.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "envs"))

import make_locks  # noqa: E402
import pins  # noqa: E402
import programs  # noqa: E402

#: Run by the environment's own Python: one line of JSON before each import and one after, so that a crash is seen, too.
IMPORTS = """
import importlib, json, sys, time
for name in json.load(sys.stdin):
    print(json.dumps({"name": name}), flush=True)
    started, error = time.monotonic(), None
    try:
        importlib.import_module(name)
    except BaseException as raised:
        error = f"{type(raised).__name__}: {raised}".strip().splitlines()[0]
    print(json.dumps({"name": name, "error": error, "s": time.monotonic() - started}), flush=True)
"""
TOP_MODULES = """
import importlib.metadata, json
print(json.dumps(importlib.metadata.packages_distributions()))
"""


class Trial:
    """One environment, made, looked at and removed."""

    def __init__(self, name, workdir, uv):
        self.name = name
        self.folder = workdir / name
        self.uv = uv
        self.python = self.folder / "bin" / "python"
        # Nothing of the caller's environment; CUDA's absence is meant.
        self.variables = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def run(self, *command, **options):
        """Run a command with this environment's variables; its output is kept."""
        return subprocess.run(
            [*map(str, command)], env=self.variables, capture_output=True, text=True, check=False, **options
        )

    def resolve(self):
        """Does the .in file still lead to the lock, given its pins? With what comes as source, and the seconds that took."""
        path = pins.ENVS / f"{self.name}.lock"
        started = time.monotonic()
        text, sources = make_locks.lock(pins.ENVS / f"{self.name}.in", path)
        return text == path.read_text(encoding="utf-8"), sources, time.monotonic() - started

    def install(self):
        """Install conda's pip and the YAML's pip lines; the seconds that took. Ends the program if it fails."""
        shutil.rmtree(self.folder, ignore_errors=True)
        environment = yaml.safe_load((pins.ENVS / f"{self.name}.yaml").read_text(encoding="utf-8"))
        *conda, lines = environment["dependencies"]
        requirements = self.folder.parent / f"{self.name}.requirements.txt"
        pip = next(package for package in conda if package.startswith("pip=="))
        steps = [["uv", "venv", "--quiet", "--python", sys.executable, self.folder]]
        steps += [["uv", "pip", "install", "--quiet", "--python", self.python, pip]]
        if self.uv:
            install = ["uv", "pip", "install", "--python", self.python, "--require-hashes", "--requirement"]
        else:
            # conda/env/installers/pip.py
            install = [self.python, "-m", "pip", "install", "--exists-action=b", "-U", "-r"]
        started = time.monotonic()
        for step in [*steps, [*install, requirements]]:
            requirements.write_text("\n".join(lines["pip"]), encoding="utf-8")
            done = self.run(*step)
            if done.returncode:
                sys.exit(f"error: {self.name}: {' '.join(map(str, step))}\n{done.stdout}{done.stderr}")
        return time.monotonic() - started

    def build(self, kernels):
        """Run the script that builds inside the environment; what became of it, or None where there is no script."""
        script = pins.ENVS / f"{self.name}.post-deploy.sh"
        if not script.exists():
            return None
        self.variables["PATH"] = f"{self.python.parent}:{self.variables['PATH']}"
        if not kernels:
            self.variables["FLASH_ATTENTION_SKIP_CUDA_BUILD"] = "TRUE"
        started = time.monotonic()
        done = self.run("bash", script)
        if done.returncode:
            sys.exit(f"error: {script.name} failed:\n{done.stdout}{done.stderr}")
        built = next(line for line in done.stdout.splitlines() if line.startswith("Successfully installed"))
        return f"{built}, {time.monotonic() - started:.0f} s" + (
            "" if kernels else "; its Python half, without the CUDA kernels"
        )

    def consistent(self):
        """Does what is installed meet what every package asks for?"""
        done = self.run("uv", "pip", "check", "--python", self.python)
        return done.returncode == 0, done.stderr.strip().splitlines()[1:]

    def imports(self):
        """Import every top module of every package; ``(tried, {module: first line of its error})``."""
        known = json.loads(self.run(self.python, "-c", TOP_MODULES).stdout)
        locked = {pin.name for pin in pins.read_lock(pins.ENVS / f"{self.name}.lock")}
        return self._import(
            sorted(
                module
                for module, packages in known.items()
                if module.isidentifier()
                and not module.startswith("_")
                and {pins.canonicalize_name(package) for package in packages} & locked
            )
        )

    def library(self):
        """Import every module of the library that this environment's programs reach."""
        reached = {
            module
            for program in programs.programs(ROOT).get(self.name, [])
            for module in programs.needs(ROOT, program)[0]
        }
        self.variables["PYTHONPATH"] = str(ROOT / "workflow")
        # The plugin has verl call into the trainer while that is being imported: last, for in a run verl comes first.
        return self._import(sorted(reached, key=lambda module: (module.endswith(".plugin"), module)))

    def _import(self, modules):
        errors, waiting = {}, list(modules)
        while waiting:
            done = self.run(self.python, "-c", IMPORTS, input=json.dumps(waiting), cwd=self.folder)
            lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
            finished = [line for line in lines if "error" in line]
            errors |= {line["name"]: line["error"] for line in finished if line["error"] is not None}
            waiting = waiting[len(finished) :]
            if waiting:
                # The process ended in the midst of an import.
                errors[waiting.pop(0)] = f"the interpreter ended with {done.returncode}"
        return list(modules), errors

    def helps(self):
        """``--help`` of each program that a rule runs here; ``(asked, {program: error})``."""
        self.variables["PYTHONPATH"] = str(ROOT / "workflow")
        asked = programs.programs(ROOT).get(self.name, [])
        errors = {}
        for program in asked:
            done = self.run(self.python, ROOT / "workflow" / "scripts" / f"{program}.py", "--help")
            if done.returncode or "usage:" not in done.stdout:
                errors[program] = (done.stderr.strip().splitlines() or ["no usage"])[-1]
        return asked, errors

    def size(self):
        """Bytes on disk."""
        return sum(file.lstat().st_size for file in self.folder.rglob("*") if file.is_file())


def tell(name, workdir, uv, kernels):
    """Try one environment; its section of the report."""
    trial = Trial(name, workdir, uv)
    pinned = pins.read_lock(pins.ENVS / f"{name}.lock")
    same, sources, resolving = trial.resolve()
    installing = trial.install()
    built = trial.build(kernels)
    consistent, wishes = trial.consistent()
    modules, broken = trial.imports()
    library, broken_library = trial.library()
    asked, broken_programs = trial.helps()
    named = f" ({', '.join(asked)})" if asked else ""
    lines = [
        f"## {name}",
        "",
        f"- **Resolved** in {resolving:.0f} s: {len(pinned)} packages, {'the lock to the letter' if same else 'NOT what the lock says'}; "
        f"as source: {', '.join(sources) or 'none'}.",
        f"- **Installed** in {installing:.0f} s ({'uv' if uv else 'pip, as conda calls it'}), hashes checked: {trial.size() / 1e9:.1f} GB.",
        *([f"- **Built inside it**: {built}."] if built else []),
        f"- **Consistent**: {'every package has what it asks for' if consistent else '; '.join(wishes)}.",
        f"- **Imported** {len(modules) - len(broken)} of {len(modules)} top modules.",
        *(f"  - `{module}`: {error}" for module, error in broken.items()),
        f"- **The library**: {len(library) - len(broken_library)} of the {len(library)} modules that its programs reach.",
        *(f"  - `{module}`: {error}" for module, error in broken_library.items()),
        f"- **Programs** that answer `--help`: {len(asked) - len(broken_programs)} of {len(asked)}{named}.",
        *(f"  - `{program}`: {error}" for program, error in broken_programs.items()),
        "",
        "<details><summary>Every module that was imported</summary>",
        "",
        ", ".join(f"`{module}`" for module in modules if module not in broken),
        "",
        "</details>",
        "",
    ]
    shutil.rmtree(trial.folder)
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(pins.NAMES)}; all without one")
    parser.add_argument("--workdir", type=Path, required=True, help="where the environments are made, and removed")
    parser.add_argument("--uv", nargs="*", default=(), metavar="NAME", help="install these with uv instead of pip")
    parser.add_argument("--kernels", action="store_true", help="compile flash-attn's CUDA kernels, too (hours)")
    parser.add_argument("--output", type=Path, help="write the sections here; printed in any case")
    arguments = parser.parse_args()
    arguments.workdir.mkdir(parents=True, exist_ok=True)
    sections = []
    for name in arguments.names or pins.NAMES:
        sections.append(tell(name, arguments.workdir.resolve(), name in arguments.uv, arguments.kernels))
        print(sections[-1], flush=True)
    if arguments.output:
        head = (
            f"# The environments, resolved, installed and imported\n\nMade by `docs/benchmarks/locks.py` on {datetime.date.today()}, "
            f"Python {platform.python_version()}, {os.cpu_count()} cores ({platform.machine()}) that other work ran on, no card, "
            "no conda.\n\n"
        )
        arguments.output.write_text(head + "\n".join(sections), encoding="utf-8")


if __name__ == "__main__":
    main()
