"""A results folder of 120,000 files, staged: time, files before and after, every byte accounted for, and unpacked again. Writes staging.md.

python docs/benchmarks/staging.py [--files 120000] [--folder DIR]
"""

import argparse
import datetime
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "workflow"))

from genselect.config import Config  # noqa: E402
from genselect.plan.runs import resolved_runs  # noqa: E402
from genselect.publishing.layout import make_plan  # noqa: E402
from genselect.publishing.publication import Publication  # noqa: E402
from genselect.publishing.stage import stage  # noqa: E402
from genselect.publishing.sums import check_tree  # noqa: E402
from genselect.publishing.unpack import unpack  # noqa: E402

#: Of each closed run: steps, each with records, token arrays, validation, potential and proofs.
STEPS = 800
#: Steps of the run whose one folder has more entries than the Hub takes; records and token arrays, two files each.
LONG = 6000
#: Steps of the run that is still open.
OPEN = 500


def configuration(closed: int) -> Config:
    """The miniature's, with so many closed runs, one long and one open one."""
    values = yaml.safe_load((ROOT / "config" / "mini.yaml").read_text())
    names = [f"run-{number:02d}" for number in range(closed)] + ["long", "open"]
    values["publish"]["base_model"] = False  # there is none among the files
    values["runs"] |= {name: {"extends": "formal", "set": {"seed": number + 2}} for number, name in enumerate(names)}
    return Config.model_validate(values)


class Tree:
    """Writes files, and counts them and their bytes by the way they should go."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.count = 0
        draw = random.Random(1)
        words = "first try sums then halves a second look says the same \\boxed{42} so the answer holds".split()
        # Some contents of each kind, used over and over: reading and packing do not care.
        self.parquet = []
        for number in range(20):
            texts = [" ".join(draw.choices(words, k=40 + number)) for _ in range(8)]
            buffer = pa.BufferOutputStream()
            pq.write_table(
                pa.table({"question_id": [f"omr-{row:06d}" for row in range(8)], "text": texts}),
                buffer,
                compression="zstd",
            )
            self.parquet.append(buffer.getvalue().to_pybytes())
        self.text = [
            ("{" + f'"step": {number}, "figures": [' + "0.25, " * number + "0]}\n").encode() for number in range(1, 60)
        ]

    def write(self, path: str, number: int) -> None:
        """One file."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        contents = self.parquet if path.endswith(".parquet") else self.text
        target.write_bytes(contents[number % len(contents)])
        self.count += 1

    def run(self, name: str, steps: int, kinds: tuple[str, ...], *, done: bool) -> None:
        """A run's folder."""
        for step in range(1, steps + 1):
            for kind in kinds:
                self.write(f"runs/{name}/{kind}".replace("#", str(step)), step)
        for file in ("manifest.json", "metrics.jsonl", *(("done.json",) if done else ())):
            self.write(f"runs/{name}/{file}", 1)


ARRAYS = ("records/step_#.parquet", "records/tokens_step_#.parquet")
ALL = (*ARRAYS, "validation/step_#.parquet", "potential/step_#.json", "proofs/step_#.json")


def build(root: Path, files: int) -> tuple[Config, Tree]:
    """The results folder of exactly ``files`` files."""
    tree = Tree(root)
    rest = files - (2 * LONG + 3) - (5 * OPEN + 2) - 20
    closed = rest // (5 * STEPS + 3)
    config = configuration(closed)
    tree.run("long", LONG, ARRAYS, done=True)
    tree.run("open", OPEN, ALL, done=False)
    for number in range(closed):
        tree.run(f"run-{number:02d}", STEPS, ALL, done=True)
    number = 0
    while tree.count < files:
        save = f"runs/run-00/checkpoints/global_step_{number}/model.pt"
        tree.write(f"logs/mini/train_run/log_{number}.log" if number % 2 else save, number)
        number += 1
    return config, tree


def listing(root: Path) -> dict[str, int]:
    """Sizes by path."""
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder) / name
            found[path.relative_to(root).as_posix()] = path.stat().st_size
    return found


def entries(root: Path) -> int:
    """Of the fullest folder."""
    return max(len(folders) + len(names) for _, folders, names in os.walk(root))


def restored(publication: Publication, tree: Path, results: Path, into: Path) -> int:
    """Put the tree's files and its unpacked archives together and compare everything with the results; files compared."""
    shutil.copytree(tree, into, copy_function=os.link)
    for archive in publication.archives:
        unpack(tree / archive.path, archive, into)
        (into / archive.path).unlink()
    count = 0
    for path in listing(into):
        if path not in ("README.md", "publication.json"):
            assert (into / path).read_bytes() == (results / path).read_bytes(), path
            count += 1
    shutil.rmtree(into)
    return count


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=120_000)
    parser.add_argument("--folder", type=Path, help="where the folder is made; it is deleted at the end")
    arguments = parser.parse_args()
    home = Path(tempfile.mkdtemp(dir=arguments.folder))
    results = home / "results"
    config, _ = build(results, arguments.files)
    runs = resolved_runs(config)
    before = listing(results)
    clocks: dict[str, tuple[float, float]] = {}

    def timed(what, work):
        wall, cpu = time.perf_counter(), time.process_time()
        value = work()
        clocks[what] = (time.perf_counter() - wall, time.process_time() - cpu)
        return value

    timed("the plan (also the dry run's part)", lambda: make_plan(config, results))
    staged = timed("staging, both trees", lambda: stage(config, runs, results))
    trees = {target: results / "publication" / "mini" / target for target in staged}
    first = {target: (tree / "publication.json").read_bytes() for target, tree in trees.items()}
    timed("staging again", lambda: stage(config, runs, results))
    same = all((trees[target] / "publication.json").read_bytes() == content for target, content in first.items())
    timed("every sum of both trees compared", lambda: [check_tree(tree) for tree in trees.values()])
    compared = timed(
        "the Hub's tree unpacked and compared", lambda: restored(staged["hub"], trees["hub"], results, home / "again")
    )
    rows = []
    for target, publication in staged.items():
        own = [file for file in publication.files if file.kind not in ("archive", "front_page")]
        parts = [
            (len(own), sum(file.bytes for file in own)),
            (
                sum(archive.members for archive in publication.archives),
                sum(archive.bytes for archive in publication.archives),
            ),
            (sum(entry.files for entry in publication.left_out), sum(entry.bytes for entry in publication.left_out)),
        ]
        assert (sum(part[0] for part in parts), sum(part[1] for part in parts)) == (
            len(before),
            sum(before.values()),
        ), target
        shown = " | ".join(f"{count:,} ({size:,})" for count, size in parts)
        files = len(listing(trees[target]))
        rows.append(
            f"| {target} | {files:,} | {-(-files // 100):,} | {entries(trees[target]):,} | {len(publication.archives)} | {shown} |"
        )
    folders = Counter(path.rpartition("/")[0] for path in before)
    packed = {archive.folder.split("/")[1] for archive in staged["hub"].archives}
    assert "open" not in packed
    assert compared == len(before) - sum(entry.files for entry in staged["hub"].left_out)
    same_said = "Staged again, both trees had the same bytes." if same else "STAGED AGAIN, THE TREES DIFFERED."
    lines = [
        "# Staging",
        "",
        f"Made by `docs/benchmarks/staging.py` on {datetime.date.today()}, {os.cpu_count()} cores: {len(config.runs)} runs,",
        f"one of them open, one with {max(folders.values()):,} files in one folder.",
        "",
        f"**Before:** {len(before):,} files, {sum(before.values()):,} bytes. Limits: {config.publish.max_files:,} files a tree, 10,000",
        "entries a folder.",
        "",
        "| tree | files | commits of 100 | entries of its fullest folder | archives | staged as they are (bytes) "
        "| in archives (bytes) | left out (bytes) |",
        "|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        "In each line the last three columns add up to the files and bytes before.",
        f"Unpacked, the Hub's tree gave {compared:,} files, each byte for byte the one in the results; the other",
        f"{len(before) - compared:,} are what was left out. No folder of the open run was packed. {same_said}",
        "",
        "| | seconds | of them CPU |",
        "|---|---|---|",
        *(f"| {what} | {wall:.1f} | {cpu:.1f} |" for what, (wall, cpu) in clocks.items()),
        "",
        f"Largest memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB. Staging reads every file three times (gated",
        "questions, secrets, sums), packed ones four times. Other work ran on the machine meanwhile: go by the CPU seconds.",
    ]
    text = "\n".join(lines)
    print(text)
    if arguments.files == parser.get_default("files"):
        (ROOT / "docs" / "benchmarks" / "staging.md").write_text(text + "\n", encoding="utf-8")
    shutil.rmtree(home)


if __name__ == "__main__":
    main()
