"""A judge elsewhere, behind a tunnel that breaks: nothing is lost, nothing is asked twice, and no label is "none" because of it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_judge import FakeJudge
from judge_cases import different_answers, label_command, labels, settings, start, write_config, write_merged
from judge_tunnel import Forwarder, SshTunnel, why_no_ssh

PROBLEMS = 40
QUESTIONS = 3 * PROBLEMS


class Labelling:
    """A labelling job behind a tunnel, and what it makes in peace."""

    def __init__(self, folder: Path, tunnel: Forwarder | SshTunnel, fake: FakeJudge) -> None:
        self.tunnel, self.fake = tunnel, fake
        self.output = folder / "labels.jsonl"
        self._folder = folder
        self._merged = write_merged(folder / "merged.jsonl", different_answers(PROBLEMS))
        self.configure()

    def configure(self, **client: Any) -> None:
        # Long, so that a busy machine does not look like a lost tunnel.
        client = {"request_timeout_s": 60.0, **client}
        values = settings(self._folder, [f"http://127.0.0.1:{self.tunnel.port}/v1"], client=client)
        write_config(self._folder / "config.yaml", values)

    def start(self) -> subprocess.Popen[str]:
        return start(label_command(self._merged, self._folder / "config.yaml", self._folder / "journal", self.output))

    def end(self, job: subprocess.Popen[str]) -> tuple[int, str]:
        """Exit status and words."""
        _, said = job.communicate(timeout=60)
        return job.returncode, said

    def wait_for_questions(self, count: int) -> None:
        deadline = time.monotonic() + 60
        while len(self.fake.asked()) < count:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def check_the_labels(self) -> None:
        """Every candidate has the verdict that the judge would give it, and at most what was in flight was asked twice."""
        found = labels(self.output)
        assert len(found) == 4 * PROBLEMS
        assert {row["source"] for row in found.values()} == {"judge"}
        assert all(row["correct"] == (row["reasoning"].split()[0][-1] in "02468") for row in found.values())
        asked = self.fake.asked()
        assert len(set(asked)) == QUESTIONS
        assert len(asked) <= QUESTIONS + 8


@pytest.fixture
def through(tmp_path: Path) -> Iterator[Callable[..., Labelling]]:
    """``through(fake)``: a labelling job that reaches this judge through a forwarder; with ``ssh=True`` through ssh, if that is here."""
    opened: list[Forwarder | SshTunnel] = []

    def make(fake: FakeJudge, ssh: bool = False) -> Labelling:
        real = ssh and why_no_ssh() is None
        opened.append(SshTunnel(fake.port, tmp_path / "ssh") if real else Forwarder(fake.port))
        return Labelling(tmp_path, opened[0], fake)

    yield make
    for tunnel in opened:
        tunnel.close() if isinstance(tunnel, SshTunnel) else tunnel.cut()


def test_a_tunnel_that_stays_down_stops_the_job_and_the_same_command_goes_on(tmp_path: Path, through: Any) -> None:
    with FakeJudge(tmp_path / "fake", latency=0.05) as fake:
        labelling = through(fake, ssh=True)
        job = labelling.start()
        labelling.wait_for_questions(QUESTIONS // 2)
        labelling.tunnel.cut()
        status, said = labelling.end(job)
        assert status == 2, said
        assert "failed 12 times in a row" in said
        assert not labelling.output.exists()

        status, said = labelling.end(labelling.start())
        assert status == 2
        assert "no judge can be reached" in said
        assert "SSH tunnel" in said

        labelling.tunnel.set_up()
        status, said = labelling.end(labelling.start())
        assert status == 0, said
        labelling.check_the_labels()


def test_a_tunnel_that_comes_back_soon_is_waited_for(tmp_path: Path, through: Any) -> None:
    with FakeJudge(tmp_path / "fake", latency=0.05) as fake:
        labelling = through(fake)
        labelling.configure(max_attempts=8, backoff_s=0.2, backoff_max_s=2.0, breaker_failures=50)
        job = labelling.start()
        labelling.wait_for_questions(QUESTIONS // 2)
        labelling.tunnel.cut()
        time.sleep(1.0)
        labelling.tunnel.set_up()
        status, said = labelling.end(job)
        assert status == 0, said
        assert "tries failed and were made again" in said
        labelling.check_the_labels()


def test_a_tunnel_that_breaks_under_the_last_question_stops_the_job_too(tmp_path: Path, through: Any) -> None:
    """One question alone never fails often enough in a row for the breaker."""
    last = f"a_{{{PROBLEMS - 1}}}+2"
    with FakeJudge(tmp_path / "fake", rules=[{"match": last, "fault": "hang", "times": 1}]) as fake:
        labelling = through(fake)
        job = labelling.start()
        labelling.wait_for_questions(QUESTIONS)
        time.sleep(0.3)  # the others are answered
        labelling.tunnel.cut()
        status, said = labelling.end(job)
        assert status == 2, said
        assert "the judge does not answer" in said
        assert not labelling.output.exists()

        labelling.tunnel.set_up()
        status, said = labelling.end(labelling.start())
        assert status == 0, said
        labelling.check_the_labels()
