"""Seconds that planning takes: `snakemake -n` on the full configuration and on the miniature's. Writes dry_run.md.

python docs/benchmarks/dry_run.py [--repeats 5]
"""

import argparse
import datetime
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def plan(config: str, repeats: int) -> tuple[list[float], int]:
    """Wall seconds of each dry run, and the number of jobs planned, with no results in the way."""
    seconds, jobs = [], 0
    with tempfile.TemporaryDirectory() as empty:
        command = ["snakemake", "-n", "--configfile", config, "--config", f"results={empty}"]
        for _ in range(repeats):
            began = time.perf_counter()
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            seconds.append(time.perf_counter() - began)
            found = re.search(r"^total\s+(\d+)$", done.stdout + done.stderr, flags=re.MULTILINE)
            jobs = int(found[1]) if found else 0
    return seconds, jobs


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="dry runs of each configuration")
    repeats = parser.parse_args().repeats
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    began = time.perf_counter()
    subprocess.run(["snakemake", "--version"], check=True, capture_output=True)
    bare = time.perf_counter() - began
    rows = [
        "# Planning",
        "",
        f"Made by `docs/benchmarks/dry_run.py` on {datetime.date.today()}, {os.cpu_count()} cores, {repeats} runs each.",
        f"`snakemake --version` alone took {bare:.2f} s in the same run.",
        "",
        "| configuration | jobs | seconds, median | least | most |",
        "|---|---|---|---|---|",
    ]
    for config in ("config/config.yaml", "config/study.yaml", "config/mini.yaml"):
        seconds, jobs = plan(config, repeats)
        rows.append(
            f"| `{config}` | {jobs} | {statistics.median(seconds):.2f} | {min(seconds):.2f} | {max(seconds):.2f} |"
        )
    text = "\n".join(rows) + "\n"
    print(text)
    (ROOT / "docs" / "benchmarks" / "dry_run.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
