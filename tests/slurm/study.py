"""A copy of the project with stand-ins for whatever needs a card, and Snakemake driving it on Slurm as a user would."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from cluster import Slurm, wait_for

from genselect.provenance import write_seal

STAND_INS = Path(__file__).parent / "stand_ins"
_PARTS = ("Snakefile", "rules", "workflow", "config", "profiles", "envs")
_TINY = {
    "steps": 1,
    "problems": 4,
    "samples": 2,
    "critic_warmup": 0,
    "validate_every": 0,
    "save_every": 1,
    "anchor_every": None,
}

#: The miniature's data, asked of a (stand-in) vLLM judge in two shares, and a model that counts as needing cards.
CONFIG: dict[str, Any] = {
    "dataset": {"name": "mini", "source": "generated", "generated": {"problems": 120, "shards": 2, "seed": 1}},
    "judge": {"kind": "vllm", "model": "stand-in", "revision": None, "shards": 2},
    "prompt": {"system": "solve", "user": "{problem}"},
    "build": {
        "benchmark": "mini", "train_fraction": 0.6,
        "filters": {"answer_pattern": "[0-9]{1,2}", "max_candidate_chars": 200},
    },
    "models": {"base": {"source": "local", "path": "model"}},
    "runs": {
        "smoke": {"kind": "smoke", "cards": 2, "schedule": _TINY},
        "formal": {"kind": "formal", "cards": 8, "schedule": {**_TINY, "steps": 4}},
    },
    "rollouts": {"untrained": {"like": "smoke", "rows": "train", "first": 4, "samples": 2}},
    "evaluation": {"samples": 1, "smallest_effect": 0.05},
}  # fmt: skip


class Study:
    """The copy, its configuration (``my.yaml``) and its profile (``my-slurm``)."""

    def __init__(self, repository: Path, root: Path, slurm: Slurm | None) -> None:
        self.root = root
        if slurm is not None:
            self.slurm = slurm
        self.environment: dict[str, str] = {}
        for part in _PARTS:
            source = repository / part
            if source.is_dir():
                ignored = shutil.ignore_patterns("*.lock", "*.egg-info", "build")
                shutil.copytree(source, root / part, ignore=ignored)
            else:
                root.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, root / part)
        shutil.copytree(STAND_INS / "scripts", root / "workflow" / "scripts", dirs_exist_ok=True)
        # Jobs have workflow/ on their path, before what is installed.
        shutil.copytree(STAND_INS / "vllm", root / "workflow" / "vllm")
        (root / "model").mkdir()
        (root / "model" / "config.json").write_text("{}\n")
        (root / "model" / "model.safetensors").write_bytes(b"weights")
        self.configure()
        self.profile()

    def configure(self, *, judge: Mapping[str, Any] | None = None, **runs: Mapping[str, Any]) -> None:
        """Write ``my.yaml``: ``judge`` adds to the section, ``runs`` stand instead of the small configuration's own."""
        values = {**CONFIG, "judge": {**CONFIG["judge"], **(judge or {})}}
        if runs:
            values |= {"runs": runs, "rollouts": {}}
        (self.root / "my.yaml").write_text(yaml.safe_dump(values, sort_keys=False))

    def profile(self, default: Mapping[str, Any] | None = None, train: Mapping[str, Any] | None = None) -> None:
        """Write the user's own copy of the profile: looks at the jobs come faster; ``default`` for all rules, ``train`` for train_run."""
        values = yaml.safe_load((self.root / "profiles" / "slurm" / "config.yaml").read_text())
        values |= {"max-status-checks-per-second": 10, "slurm-init-seconds-before-status-checks": 1, "latency-wait": 10}
        values["default-resources"] |= default or {}
        values["set-resources"]["train_run"] |= train or {}
        (self.root / "my-slurm").mkdir(exist_ok=True)
        (self.root / "my-slurm" / "config.yaml").write_text(yaml.safe_dump(values, sort_keys=False))

    def command(self, *targets: str) -> list[str]:
        """What a user types; targets first, since --configfile takes every name that follows it."""
        return ["snakemake", *targets, "--profile", "my-slurm", "--configfile", "my.yaml"]

    def snakemake(self, *targets: str, check: bool = True, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        """Run to the end."""
        done = subprocess.run(
            self.command(*targets), cwd=self.root, env=self._environment(), capture_output=True, text=True, timeout=timeout
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stdout + done.stderr + self.logs()
        return done

    def start(self, *targets: str) -> Driver:
        """Start it in the background."""
        return Driver(self, targets)

    def rows(self) -> None:
        """Lay empty files where the built rows would be: Snakemake then plans the runs alone, and the stand-in trainer reads no rows."""
        folder = self.root / "results" / "data" / "mini"
        folder.mkdir(parents=True)
        for name in ("questions.jsonl", "train.parquet", "val.parquet", "partition.json", "stats.json"):
            (folder / name).touch()
        now = datetime.datetime.now(datetime.UTC)
        judge = {"judge": "stand-in"}
        write_seal(
            folder / "stats.json", kind="rows", counts={}, outputs=[], inputs=[], started=now, fingerprints=judge
        )

    def done(self, run: str) -> dict[str, Any]:
        """``done.json`` of a run."""
        return dict(json.loads((self.root / "results" / "runs" / run / "done.json").read_text()))

    def ledger(self, run: str, event: str | None = None) -> list[dict[str, Any]]:
        """What the stand-in trainer did, in order."""
        path = self.root / "results" / "runs" / run / "ledger.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if event in (None, line["event"])]

    def steps(self, run: str) -> list[int]:
        """Every step that was trained, redone ones included, in order."""
        return [line["step"] for line in self.ledger(run, "step")]

    def redone(self, run: str, steps: int) -> list[int]:
        """The steps that were trained more than once, after checking that nothing else was lost: the run is done, each step stands once
        in its metrics, and each attempt went on right behind the last save before it."""
        assert self.done(run)["steps"] == steps
        metrics = (self.root / "results" / "runs" / run / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in metrics] == list(range(1, steps + 1))
        saved = trained = 0
        for line in self.ledger(run):
            if line["event"] == "start":
                assert (line["resumed_from"] or 0) == saved
                trained = saved
            elif line["event"] == "step":
                trained += 1
                assert line["step"] == trained
            elif line["event"] == "save":
                saved = line["step"]
        return sorted(step for step, times in Counter(self.steps(run)).items() if times > 1)

    def reasons(self, run: str) -> list[str]:
        """Why each attempt ended."""
        return [attempt["reason"] for attempt in self.attempts(run)]

    def attempts(self, run: str) -> list[dict[str, Any]]:
        """The attempts in the run's manifest."""
        return list(json.loads((self.root / "results" / "runs" / run / "manifest.json").read_text())["attempts"])

    def wait_for_step(self, run: str, step: int, timeout_s: float = 120) -> None:
        """Wait until a run has trained this step."""
        wait_for(lambda: max(self.steps(run), default=0) >= step, f"step {step} of {run}", timeout_s)

    def logs(self) -> str:
        """The end of every Slurm log, for a test that fails."""
        logs = sorted((self.root / ".snakemake" / "slurm_logs").rglob("*.log"))
        return "".join(f"\n--- {log}\n{log.read_text()[-3000:]}" for log in logs)

    def _environment(self) -> dict[str, str]:
        # Each job starts Snakemake twice more: without bytecode that takes twice as long.
        left_out = ("PYTHONDONTWRITEBYTECODE", "SLURM_CONF")
        return {name: value for name, value in os.environ.items() if name not in left_out} | self.environment


class Driver:
    """Snakemake in the background: the process that submits, watches and submits again."""

    def __init__(self, study: Study, targets: tuple[str, ...]) -> None:
        self._log = study.root / f"driver-{len(list(study.root.glob('driver-*.log')))}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                study.command(*targets), cwd=study.root, env=study._environment(), stdout=log, stderr=log, start_new_session=True
            )  # fmt: skip

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def said(self) -> str:
        """All that it printed."""
        return self._log.read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        """Signal it, as a user or the login node would; nothing if it has ended."""
        self.process.send_signal(number)

    def wait(self, timeout_s: float = 240) -> int:
        """Its exit status."""
        return self.process.wait(timeout=timeout_s)
