#!/usr/bin/env python3
"""Measure the merge at full size: against only decoding the same columns, and against a straightforward pandas version.

    docs/benchmarks/merge.py --workdir DIR [--rows 565620] [--output docs/benchmarks/merge.md]

Writes shards like the real ones (about 2.5 GB on disk) under DIR, measures, and removes them.
"""

import argparse
import datetime
import json
import multiprocessing
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from genselect.dataset.miniature import render_prompt
from genselect.dataset.prompt import parse_judgment
from genselect.dataset.shards import COLUMNS, SHARD_SCHEMA

ROWS, PROBLEMS, SHARDS, CANDIDATES = 565_620, 33_251, 14, 11
ROW_GROUP = 1000
MERGE = Path(__file__).resolve().parents[2] / "workflow" / "scripts" / "merge_candidates.py"


# --- the input ----------------------------------------------------------------------------------------------------------


def make_pool(problems):
    """Statements, answers and candidates of about 1 KB, from phrases with numbers between, as mathematics compresses."""
    rng = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(rng.choices(letters, k=rng.randrange(2, 10))) for _ in range(3000)]
    marks = ["\\frac{1}{2}", "$x^2 + 1$", "\\sqrt{3}", "\\cdot", "=", "\n\n", "\\left(n-1\\right)", "$a_n$", "\n"]
    phrases = [" ".join(rng.choices(words, k=3) + rng.choices(marks, k=1)) for _ in range(3000)]
    pool = []
    for index in range(problems):
        answer = str(rng.randrange(1000))
        texts = []
        for _ in range(CANDIDATES + rng.randrange(-2, 3)):
            body = " ".join(rng.choices(phrases, k=rng.randrange(34, 58)))
            boxed = answer if rng.random() < 0.5 else str(rng.randrange(1000))
            texts.append(f"{rng.randrange(10**6)} {body}\n\nso the answer is $\\boxed{{{boxed}}}$.")
        pool.append((f"Question {index}: " + " ".join(rng.choices(phrases, k=8)), answer, texts))
    return pool, phrases


def write_shard(task):
    """One shard of ``rows`` rows, row group by row group."""
    path, rows, seed = task
    rng = random.Random(seed)
    pool, phrases = POOL
    with pq.ParquetWriter(path, SHARD_SCHEMA, compression="snappy") as writer:
        for start in range(0, rows, ROW_GROUP):
            made = [one_row(rng, pool, phrases) for _ in range(min(ROW_GROUP, rows - start))]
            writer.write_table(pa.Table.from_pylist(made, schema=SHARD_SCHEMA))


def one_row(rng, pool, phrases):
    statement, answer, texts = pool[rng.randrange(len(pool))]
    shown = rng.sample(texts, min(len(texts), rng.randrange(2, 17)))
    return {
        "expected_answer": answer,
        "problem_type": "has_answer_extracted",
        "problem_source": "aops_c6_high_school_olympiads",
        "generation_model": "QwQ-32B",
        "pass_rate_72b_tir": "0.65625",
        "problem": render_prompt(statement, shown),
        "generated_solution": " ".join(rng.choices(phrases, k=60)) + f"\n\nJudgment: {rng.randrange(len(shown))}",
        "inference_mode": "genselect",
        "used_in_kaggle": False,
    }


POOL = None


def make_input(folder, rows):
    global POOL
    POOL = make_pool(max(1, PROBLEMS * rows // ROWS))
    folder.mkdir(parents=True)
    ends = [rows * (index + 1) // SHARDS for index in range(SHARDS)]
    tasks = [
        (folder / f"genselect-{index:05}-of-{SHARDS:05}.parquet", end - start, index)
        for index, (start, end) in enumerate(zip([0, *ends], ends, strict=False))
    ]
    with multiprocessing.get_context("fork").Pool(2) as workers:
        workers.map(write_shard, tasks, chunksize=1)
    POOL = None


# --- what is measured ---------------------------------------------------------------------------------------------------


def decode(folder):
    """Only decode the columns that the merge reads, as pyarrow does by default (all cores)."""
    for path in sorted(Path(folder).glob("*.parquet")):
        pq.read_table(path, columns=list(COLUMNS))


def decode_batches(folder):
    """The same, a batch at a time on one core."""
    for path in sorted(Path(folder).glob("*.parquet")):
        for _ in pq.ParquetFile(path).iter_batches(batch_size=1024, columns=list(COLUMNS), use_threads=False):
            pass


def pandas_merge(shard, output):
    """What one would write in a quarter of an hour with pandas: whole column in memory, one regular expression a row."""
    frame = pd.read_parquet(shard, columns=list(COLUMNS))
    frame = frame[frame.problem_type == "has_answer_extracted"]
    body = frame.problem.str.extract(
        r"(?s)YOUR TASK\s+Problem:\s*(.*?)\s*Solutions:\s+(Solution 0:.*)\nEvaluation Process:"
    )
    frame["statement"] = body[0]
    frame["solutions"] = body[1].str.split(r"(?m)^Solution \d+:", regex=True).str[1:]
    frame["judgment"] = frame.generated_solution.map(parse_judgment)
    lines = []
    for statement, group in frame.groupby("statement", sort=False):
        texts = pd.Series(group.solutions.explode().str.strip().unique())
        boxed = texts.str.extract(r".*\\boxed\{([^{}]*)\}", flags=re.S)[0]
        candidates = [{"text": text, "boxed": box} for text, box in zip(texts, boxed, strict=True)]
        lines.append(
            json.dumps({"problem": statement, "answer": group.expected_answer.iloc[0], "candidates": candidates})
        )
    Path(output).write_text("\n".join(lines) + "\n")
    return len(lines)


def run(*command):
    """Wall seconds and peak resident memory (MB, all processes together) of a command."""
    start = time.perf_counter()
    process = psutil.Popen([sys.executable, *map(str, command)], stderr=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        resident = 0
        try:
            for one in [process, *process.children(recursive=True)]:
                resident += one.memory_info().rss
        except psutil.NoSuchProcess:
            pass
        peak = max(peak, resident)
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"{command} failed")
    return time.perf_counter() - start, peak / 2**20


def measure(folder, repeats):
    this = Path(__file__).resolve()
    shards = sorted(folder.glob("*.parquet"))
    out = folder.parent / "out"
    run(this, "--part", "decode", folder)  # warms the page cache, so that all the rest reads from memory
    results = {}
    for _ in range(repeats):
        for name, command in {
            "decode": (this, "--part", "decode", folder),
            "decode_batches": (this, "--part", "decode_batches", folder),
            "merge": (MERGE, "--shards", folder, "--output", out / "m.jsonl", "--stats", out / "s.json"),
        }.items():
            results.setdefault(name, []).append(run(*command))
    results["slice_pandas"] = [run(this, "--part", "pandas", shards[0], out / "pandas.jsonl")]
    slice_merge = (MERGE, "--shards", shards[0], "--output", out / "slice.jsonl", "--stats", out / "slice.json")
    results["slice_merge"] = [run(*slice_merge, "--workers", "1")]
    check_same(out / "pandas.jsonl", out / "slice.jsonl")
    return results, json.loads((out / "s.json").read_text())


def check_same(pandas_lines, our_lines):
    """Both versions must find the same problems and texts."""

    def read(path):
        rows = map(json.loads, path.read_text().splitlines())
        return [(row["problem"], row["candidates"]) for row in rows]

    if read(pandas_lines) != read(our_lines):
        raise SystemExit("the pandas version and the merge disagree")


def report(results, stats, folder):
    """The Markdown page."""
    sizes = [pq.ParquetFile(path).metadata for path in folder.glob("*.parquet")]
    decoded = sum(m.row_group(g).total_byte_size for m in sizes for g in range(m.num_row_groups))
    disk = sum(path.stat().st_size for path in folder.glob("*.parquet"))
    wall = {name: statistics.median(seconds for seconds, _ in runs) for name, runs in results.items()}
    peak = {name: max(mb for _, mb in runs) for name, runs in results.items()}
    runs = {name: ", ".join(f"{seconds:.1f}" for seconds, _ in each) for name, each in results.items()}
    load = os.getloadavg()[0]
    rows = [
        ("decode only, `pq.read_table` a shard, all cores", "decode"),
        ("decode only, batches, one core", "decode_batches"),
        ("**merge** (with seal and sha256 of all files)", "merge"),
    ]
    lines = [
        "# Merge at full size",
        "",
        f"Made by `docs/benchmarks/merge.py` on {datetime.date.today()}: {len(os.sched_getaffinity(0))} cores ({platform.machine()}),",
        f"Python {platform.python_version()}, pyarrow {pa.__version__}, pandas {pd.__version__}; other work ran on the same cores",
        f"(load average {load:.1f} at the end), so the ratios say more than the seconds. Files are read from the page cache.",
        "",
        f"Input: {stats['rows_read']:,} rows in {len(sizes)} shards, {disk / 1e9:.2f} GB on disk (snappy), {decoded / 1e9:.2f} GB of",
        f"columns; {stats['problems']:,} problems, {stats['candidates']:,} distinct candidates, {stats['solutions_read']:,}",
        "solutions read,",
        "rows of a problem spread over all shards.",
        "",
        "| what | wall, s (median) | runs | against decoding | peak memory, MB |",
        "|---|---|---|---|---|",
    ]
    for title, name in rows:
        lines.append(
            f"| {title} | {wall[name]:.1f} | {runs[name]} | {wall[name] / wall['decode']:.2f}× | {peak[name]:.0f} |"
        )
    lines += [
        "",
        f"On one shard ({stats['shards'][0]['rows']:,} rows), one process each, same problems and candidates found:",
        "",
        "| what | wall, s | peak memory, MB |",
        "|---|---|---|",
        f"| straightforward pandas | {wall['slice_pandas']:.1f} | {peak['slice_pandas']:.0f} |",
        f"| merge | {wall['slice_merge']:.1f} | {peak['slice_merge']:.0f} |",
        "",
        f"So the merge is {wall['slice_pandas'] / wall['slice_merge']:.1f} times as fast as pandas there.",
        "Peak memory is the sum over the processes of a command, sampled every 50 ms.",
        "",
        "The aim was twice the time of decoding and 2 GB of memory. Decoding alone costs one core",
        f"{wall['decode_batches']:.1f} s, and the merge must do that as well; it takes {wall['merge'] / wall['decode_batches']:.2f}× that.",
        "The rest goes into finding, hashing and setting aside the texts (about as much as decoding), writing half a",
        "gigabyte of JSON, starting processes, and the sha256 of every shard.",
        "",
    ]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", type=Path, help="folder for the input, about 4 GB; emptied afterwards")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".md"))
    parser.add_argument("--keep", action="store_true", help="leave the input there, and use it again if it is")
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        {"decode": decode, "decode_batches": decode_batches, "pandas": pandas_merge}[arguments.part[0]](
            *arguments.part[1:]
        )
        return
    if arguments.workdir is None:
        parser.error("--workdir is required")
    folder = arguments.workdir / "merge_benchmark" / "shards"
    try:
        if not folder.exists():
            start = time.perf_counter()
            make_input(folder, arguments.rows)
            print(f"input written in {time.perf_counter() - start:.0f} s", file=sys.stderr)
        page = report(*measure(folder, arguments.repeats), folder)
    finally:
        if not arguments.keep:
            shutil.rmtree(folder.parent, ignore_errors=True)
    arguments.output.write_text(page)
    print(page)


if __name__ == "__main__":
    main()
