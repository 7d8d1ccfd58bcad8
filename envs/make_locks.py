"""Resolve every pin in envs/ again, and write what follows from them: ``make lock``.

mini.in, mini.overrides -> mini.lock                        the one environment of the miniature, the tests and a laptop
NAME.in -> NAME.lock -> NAME.yaml, NAME.post-deploy.sh      a conda environment of the rules on the node (pins.py)
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import pins
from packaging.utils import canonicalize_name

#: The node: glibc 2.31 (Debian 11, Ubuntu 20.04, RHEL 9) or newer. For an older one llguidance, which vllm brings, has no wheel.
PLATFORM = ("--python-platform", "x86_64-manylinux_2_31")


def resolve(source: Path, before: Path | None, *options: str) -> str:
    """Resolve the requirements in ``source`` with uv; pins of the lock ``before`` stay wherever they can."""
    with tempfile.TemporaryDirectory() as folder:
        # uv prefers what the file that it writes over held before.
        output = Path(folder) / "pins.txt"
        if before is not None and before.exists():
            output.write_text(before.read_text(encoding="utf-8"), encoding="utf-8")
        compile_pins(source, output, *options)
        return output.read_text(encoding="utf-8")


def compile_pins(source: Path, output: Path, *options: str) -> None:
    """Call ``uv pip compile``; ends the program with uv's words if ``source`` does not resolve."""
    command = ["uv", "pip", "compile", str(source), "--output-file", str(output), "--python-version", "3.11"]
    command += ["--no-header", "--no-emit-find-links", "--quiet", *options]
    # From this folder, so that the lock says "via -r data.in" wherever it is made.
    done = subprocess.run(command, cwd=source.parent, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: {source.name} does not resolve:\n{done.stderr}\nHint: loosen the requirement that uv names.")


def installable(resolved: str) -> tuple[dict[str, list[str]], list[str]]:
    """The hashes of the files of each resolved package that the node may install, wheels that fit it or else the source; and the packages
    that come as source."""
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder) / "pins.in", Path(folder) / "pylock.toml"
        source.write_text(resolved, encoding="utf-8")
        # The standard lock (PEP 751) is the form in which uv says which file a hash belongs to.
        compile_pins(source, output, "--no-deps", *PLATFORM)
        packages = tomllib.loads(output.read_text(encoding="utf-8"))["packages"]
    hashes = {}
    for package in packages:
        files = package.get("wheels") or [package["sdist"]]
        hashes[canonicalize_name(package["name"])] = sorted(file["hashes"]["sha256"] for file in files)
    return hashes, [package["name"] for package in packages if not package.get("wheels")]


def lock(source: Path, before: Path | None) -> tuple[str, list[str]]:
    """The lock of an ``.in`` file for the node, with who brings each package as a comment; and its packages that come as source."""
    resolved = resolve(source, before, *PLATFORM)
    hashes, sources = installable(resolved)

    def with_hashes(match: re.Match[str]) -> str:
        lines = [match[0], *(f"    --hash=sha256:{digest}" for digest in hashes[canonicalize_name(match[1])])]
        return " \\\n".join(lines)

    return re.sub(r"^([A-Za-z0-9._-]+)==\S+$", with_hashes, resolved, flags=re.MULTILINE), sources


def write(name: str, *, upgrade: bool) -> None:
    """Write one environment's lock, and what follows from it."""
    started = time.monotonic()
    path = pins.ENVS / f"{name}.lock"
    text, sources = lock(pins.ENVS / f"{name}.in", None if upgrade else path)
    path.write_text(text, encoding="utf-8")
    for file, text in pins.written(name).items():
        if text is None:
            file.unlink(missing_ok=True)
        else:
            file.write_text(text, encoding="utf-8")
    count, seconds = len(pins.read_lock(path)), time.monotonic() - started
    print(f"envs/{name}.lock: {count} packages, {seconds:.1f} s; as source: {', '.join(sources) or 'none'}")


def main() -> None:
    """Write every lock, or only compare what was written with its locks (``--check``)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--find-links", metavar="FOLDER", help="where the CPU wheel of torch lies")
    parser.add_argument(
        "--upgrade", action="store_true", help="let every pin move; without it only what the .in files ask for does"
    )
    parser.add_argument("--check", action="store_true", help="write nothing: are YAMLs, locks and .in files in step?")
    arguments = parser.parse_args()
    if arguments.check:
        found = [problem for name in pins.NAMES for problem in pins.problems(name)]
        sys.exit("\n".join([*found, "Hint: make lock"]) if found else 0)
    links = ("--find-links", arguments.find_links) if arguments.find_links else ()
    mini = pins.ENVS / "mini.lock"
    options = ("--override", "mini.overrides", "--generate-hashes", *links)
    mini.write_text(resolve(pins.ENVS / "mini.in", None if arguments.upgrade else mini, *options), encoding="utf-8")
    print(f"envs/mini.lock: {len(pins.read_lock(mini))} packages")
    for name in pins.NAMES:
        write(name, upgrade=arguments.upgrade)


if __name__ == "__main__":
    main()
