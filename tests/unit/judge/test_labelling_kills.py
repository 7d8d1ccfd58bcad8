"""Labelling jobs killed and stopped at seeded moments: resumed, the file is the same, and nothing that was answered is asked again."""

from __future__ import annotations

import json
import random
import signal
import time

import pytest
from fake_judge import FakeJudge
from judge_cases import (
    config,
    different_answers,
    label_command,
    seal_counts,
    settings,
    start,
    write_config,
    write_merged,
)

from genselect.judge import Shard, judge_fingerprint, label_candidates
from genselect.judge.journal import content_key

CONCURRENCY = 8


def kill_series(tmp_path, *, kills: int, problems: int, seed: int) -> dict:
    """Kill a job ``kills`` times at seeded numbers of requests, let it end, and compare it with one left in peace."""
    merged = write_merged(tmp_path / "merged.jsonl", different_answers(problems))
    questions = 3 * problems
    with FakeJudge(tmp_path / "peace", latency=0.005) as fake:
        peaceful = tmp_path / "peaceful.jsonl"
        label_candidates(merged, config(tmp_path, [fake.url]), journal=tmp_path / "peace", output=peaceful)

    moments = sorted(random.Random(seed).sample(range(5, questions - 5), kills))
    output, journal = tmp_path / "labels.jsonl", tmp_path / "journal"
    repeated = 0
    kept: list[tuple[int, set[str]]] = []  # at each kill: requests so far, and what the journal holds
    with FakeJudge(tmp_path / "fake", latency=0.05) as fake:
        values = settings(tmp_path, [fake.url], client={"concurrency": CONCURRENCY})
        command = label_command(merged, write_config(tmp_path / "config.yaml", values), journal, output)
        fingerprint = judge_fingerprint(config(tmp_path, [fake.url]))
        known = {content_key(f"Problem {n}: what is it?", f"g_{n}", a, fingerprint): a
                 for n, (_, answers) in enumerate(different_answers(problems)) for a in answers}  # fmt: skip
        for moment in moments:
            job = start(command)
            while len(fake.asked()) < moment + repeated and job.poll() is None:
                time.sleep(0.005)
            job.kill()
            job.communicate()
            assert not output.exists()
            answered = {known[key] for key in journaled(journal)}
            # Whatever was asked by now and is not in the journal was in flight at this kill: no more than the concurrency.
            in_flight = set(fake.asked()) - answered
            assert len(in_flight) <= CONCURRENCY
            repeated += len(in_flight)
            kept.append((len(fake.asked()), answered))
        job = start(command)
        assert job.wait() == 0, job.stderr.read()
        asked = fake.asked()
    assert output.read_bytes() == peaceful.read_bytes()
    assert seal_counts(output) == seal_counts(peaceful)
    assert len(asked) - questions <= repeated
    assert set(asked) == set(known.values())
    assert all(not answered & set(asked[so_far:]) for so_far, answered in kept)
    return {"kills": kills, "questions": questions, "asked": len(asked), "in_flight_at_kills": repeated}


def journaled(folder) -> list[str]:
    """Keys of the judge's records that are whole in the journal."""
    path = folder / "journal.jsonl"
    if not path.exists():
        return []
    whole = path.read_bytes().rpartition(b"\n")[0].splitlines()
    records = [json.loads(line) for line in whole]
    return [record["key"] for record in records if record["stage"] == "judge"]


def test_a_killed_job_is_resumed_without_a_trace(tmp_path):
    kill_series(tmp_path, kills=3, problems=60, seed=7)


@pytest.mark.soak
def test_twenty_kills(tmp_path):
    print(kill_series(tmp_path, kills=20, problems=200, seed=1))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_stopped_job_says_how_to_go_on(tmp_path, number, status):
    merged = write_merged(tmp_path / "merged.jsonl", different_answers(60))
    output, journal = tmp_path / "labels.jsonl", tmp_path / "journal"
    with FakeJudge(tmp_path / "fake", latency=0.05) as fake:
        config_path = write_config(tmp_path / "config.yaml", settings(tmp_path, [fake.url]))
        command = label_command(merged, config_path, journal, output, "--log", str(tmp_path / "log"))
        job = start(command)
        while len(fake.asked()) < 40:
            time.sleep(0.01)
        job.send_signal(number)
        _, words = job.communicate(timeout=20)
        assert job.returncode == status
        assert f"stopped by {signal.Signals(number).name}. Start the same command again" in words
        assert "Traceback" not in words
        assert json.loads((journal / "progress.json").read_text())["state"] == "stopped"
        assert len(journaled(journal)) >= 40 - 8
        assert not output.exists()
        job = start(command)
        assert job.wait(timeout=60) == 0
        assert len(fake.asked()) <= 180 + 8
    assert seal_counts(output)["judged"] == 240


def test_a_kill_during_the_symbolic_stage_costs_nothing(tmp_path):
    """The cascade's answers are journaled as well, and its workers do not outlive the job."""
    import psutil

    merged = write_merged(
        tmp_path / "merged.jsonl", [(rf"\frac{{{n}}}{{7}}", [f"{n}/7", f"{n}/8"]) for n in range(560)]
    )
    output, journal = tmp_path / "labels.jsonl", tmp_path / "journal"
    values = settings(tmp_path, [], kind="rule", cascade={})
    command = label_command(merged, write_config(tmp_path / "config.yaml", values), journal, output)
    job = start(command)
    path = journal / "journal.jsonl"
    while job.poll() is None and not (path.exists() and path.stat().st_size):
        time.sleep(0.01)
    children = psutil.Process(job.pid).children(recursive=True)
    job.kill()
    job.communicate()
    known = path.read_text().count("\n")
    assert known >= 1
    assert psutil.wait_procs(children, timeout=10)[1] == []
    assert start(command).wait(timeout=120) == 0
    assert path.read_text().count("\n") == 1120
    peaceful = tmp_path / "peaceful.jsonl"
    label_candidates(merged, config(tmp_path, [], kind="rule", cascade={}), journal=tmp_path / "j2", output=peaceful)
    assert output.read_bytes() == peaceful.read_bytes()
    assert seal_counts(output) == seal_counts(peaceful)


def test_another_cut_into_shares_asks_nothing_again(tmp_path):
    merged = write_merged(tmp_path / "merged.jsonl", different_answers(9))
    with FakeJudge(tmp_path / "fake", latency=0.001) as fake:
        whole = tmp_path / "labels" / "1-of-1" / "labels.jsonl"
        label_candidates(merged, config(tmp_path, [fake.url]), journal=whole.parent / "journal", output=whole)
        asked = len(fake.asked())
        assert asked == 27
        parts = []
        for k in (1, 2, 3):
            part = tmp_path / "labels" / f"{k}-of-3" / "labels.jsonl"
            label_candidates(
                merged,
                config(tmp_path, [fake.url]),
                journal=part.parent / "journal",
                output=part,
                shard=Shard.parse(f"{k}/3"),
                reuse=tmp_path / "labels",
            )
            parts.append(part)
        assert len(fake.asked()) == asked
    lines = sorted(line for part in parts for line in part.read_text().splitlines())
    assert lines == sorted(whole.read_text().splitlines())
    # What was borrowed is now this share's own: it survives the other journal's removal.
    assert (parts[0].parent / "journal" / "journal.jsonl").stat().st_size > 0
