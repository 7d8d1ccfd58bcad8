"""Labelling against a judge that misbehaves: what passes is retried, what cannot pass stops the job with the server's words."""

from __future__ import annotations

import email.utils
import json
import socket
import time

import pytest
from fake_judge import FakeJudge
from judge_cases import config, different_answers, labels, seal_counts, write_merged

from genselect.errors import GenselectError
from genselect.judge import label_candidates
from genselect.judge.client import _seconds

ANSWERS = [("0", ["0", "$0$", "12", "13", "12 ", None, "7b"])]


@pytest.fixture
def case(tmp_path):
    """Label ``problems`` against ``urls`` in a fresh folder; returns the output's path."""
    merged = tmp_path / "merged.jsonl"

    def run(problems, urls, **judge):
        write_merged(merged, problems)
        output = tmp_path / "labels.jsonl"
        label_candidates(merged, config(tmp_path, urls, **judge), journal=tmp_path / "journal", output=output)
        return output

    return run


def test_verdicts_reach_every_candidate_with_the_same_answer(tmp_path, case):
    with FakeJudge(tmp_path / "fake") as fake:
        output = case(ANSWERS, [fake.url])
        assert sorted(fake.asked()) == ["12", "13", "7b"]  # "12 " is "12" in its normal form
        assert fake.requests()[0]["body"] == {
            "model": "judge",
            "messages": [{"role": "user", "content": "problem<Problem 0: what is it?> expected<0> predicted<12>"}],
            "temperature": 0.0,
            "seed": 1,
            "max_tokens": 64,
            "chat_template_kwargs": {"enable_thinking": False},
        }
    found = labels(output)
    assert [(row["correct"], row["judged"], row["source"]) for row in found.values()] == [
        (True, True, "identical"),
        (True, True, "identical"),
        (True, True, "judge"),
        (False, True, "judge"),
        (True, True, "judge"),
        (False, False, "none"),
        (False, True, "judge"),
    ]
    assert found["omr-000000", 2]["reasoning"] == "12 was looked at."
    counts = seal_counts(output)
    assert counts["judge_calls"] == 3
    assert counts["calls_saved"] == {"identical": 2, "symbolic": 0, "shared_pair": 1}
    assert counts["no_verdict"] == {"no boxed answer": 1}
    assert counts["by_source"]["candidates"] == {"identical": 2, "symbolic": 0, "judge": 4, "rule": 0, "none": 1}
    progress = json.loads((tmp_path / "journal" / "progress.json").read_text())
    assert (progress["state"], progress["done"], progress["total"], progress["judged"]) == ("done", 7, 7, 3)


def test_the_thinking_switch_is_left_out_when_it_is_null(tmp_path, case):
    with FakeJudge(tmp_path / "fake") as fake:
        case(ANSWERS, [fake.url], sampling={"enable_thinking": None, "temperature": 0.5, "seed": 9})
        body = fake.requests()[0]["body"]
    assert "chat_template_kwargs" not in body
    assert (body["temperature"], body["seed"], body["max_tokens"]) == (0.5, 9, 512)


@pytest.mark.parametrize("fault", ["500", "502", "429", "503", "408", "reset", "garbage", "empty", "hang"])
def test_a_fault_that_passes_is_retried_and_leaves_no_trace(tmp_path, case, fault):
    rules = [{"match": "13", "fault": fault, "times": 2}]
    with FakeJudge(tmp_path / "fake", rules=rules) as fake:
        output = case(ANSWERS, [fake.url], client={"request_timeout_s": 0.4})
        assert fake.asked().count("13") == 3
        assert len(fake.asked()) == 5
    assert labels(output)["omr-000000", 3]["judged"]
    assert seal_counts(output)["judge_calls"] == 3  # answered ones: the same as in peace


def test_retry_after_is_honoured_for_the_whole_server(tmp_path, case):
    rules = [{"match": "12", "fault": "429:1", "times": 1}]
    with FakeJudge(tmp_path / "fake", rules=rules) as fake:
        began = time.monotonic()
        output = case(ANSWERS, [fake.url], client={"concurrency": 1})
        assert time.monotonic() - began >= 1.0
    assert seal_counts(output)["judged"] == 6


def test_retry_after_is_read_in_both_forms():
    assert _seconds("7") == 7.0
    assert 28 <= _seconds(email.utils.formatdate(time.time() + 30, usegmt=True)) <= 30
    assert _seconds(email.utils.formatdate(time.time() - 30, usegmt=True)) == 0.0
    assert _seconds("soon") is None
    assert _seconds(None) is None


def test_the_window_settles_below_what_the_server_takes(tmp_path, case):
    """A server with four slots says 429 beyond them; the client stops hammering it and every pair gets its verdict."""
    rules = [{"slots": 4, "fault": "429"}]
    with FakeJudge(tmp_path / "fake", latency=0.02, rules=rules) as fake:
        client = {"concurrency": 64, "max_attempts": 40, "breaker_failures": 1000}
        output = case(different_answers(100), [fake.url], client=client)
        refused = [request["fault"] for request in fake.requests()]
    assert seal_counts(output)["judged"] == 400
    assert sum(fault is not None for fault in refused[-150:]) < 75


def test_a_reply_cut_at_the_first_cap_is_asked_again_with_the_second(tmp_path, case):
    rules = [{"match": "13", "fault": "cut", "below": 100, "times": 9}]
    with FakeJudge(tmp_path / "fake", rules=rules) as fake:
        output = case(ANSWERS, [fake.url])
        assert [r["max_tokens"] for r in fake.requests() if r["predicted"] == "13"] == [64, 256]
    assert labels(output)["omr-000000", 3] == {
        "id": "omr-000000",
        "index": 3,
        "correct": False,
        "judged": True,
        "reasoning": "13 was looked at.",
        "finish_reason": "stop",
        "source": "judge",
    }
    assert seal_counts(output)["judge_second_cap_calls"] == 1


def test_no_verdict_is_not_a_wrong_answer(tmp_path, case):
    """Cut at both caps and unparsable are final; unavailable is asked again by a later start."""
    rules = [
        {"match": "12", "fault": "cut", "times": 9},
        {"match": "13", "fault": "unparsable", "times": 9},
        {"match": "7b", "fault": "500", "times": 99},
    ]
    with FakeJudge(tmp_path / "fake", rules=rules) as fake:
        output = case(ANSWERS, [fake.url])
        found = labels(output)
        shown = [(found["omr-000000", i]["reasoning"], found["omr-000000", i]["finish_reason"]) for i in (2, 3, 6)]
        assert shown == [
            ("The judge's reply was cut at both token caps.", "length"),
            ("The judge's reply holds no verdict: I would rather not say.", "stop"),
            ("The judge did not answer.", "stop"),
        ]
        assert all(
            not found["omr-000000", i]["judged"] and found["omr-000000", i]["source"] == "none" for i in (2, 3, 6)
        )
        assert seal_counts(output)["no_verdict"] == {
            "The judge did not answer.": 1,
            "The judge's reply holds no verdict": 1,
            "The judge's reply was cut at both token caps.": 2,
            "no boxed answer": 1,
        }
    with FakeJudge(tmp_path / "later") as fake:
        output = case(ANSWERS, [fake.url])
        assert fake.asked() == ["7b"]
    assert labels(output)["omr-000000", 6]["judged"]


@pytest.mark.parametrize("status", ["400", "401", "404", "422"])
def test_a_refused_request_stops_the_job_with_the_servers_words(tmp_path, case, status):
    with FakeJudge(tmp_path / "fake", rules=[{"match": "13", "fault": status, "times": 9}]) as fake:
        with pytest.raises(GenselectError, match=f"refused a request with HTTP {status}: scripted fault {status}"):
            case(ANSWERS, [fake.url])
        assert fake.asked().count("13") == 1
    assert not (tmp_path / "labels.jsonl").exists()
    assert json.loads((tmp_path / "journal" / "progress.json").read_text())["state"] == "stopped"


def test_a_server_that_goes_away_stops_the_job_and_a_later_start_completes_it(tmp_path, case):
    problems = different_answers(60)
    with FakeJudge(tmp_path / "whole") as fake:
        expected = case(problems, [fake.url]).read_bytes()
    (tmp_path / "journal" / "journal.jsonl").unlink()
    (tmp_path / "labels.jsonl").unlink()

    with FakeJudge(tmp_path / "fake", rules=[{"die_after": 80}]) as fake, pytest.raises(GenselectError) as caught:
        case(problems, [fake.url])
    assert "times in a row" in str(caught.value)
    assert fake.url in str(caught.value)
    assert "verdicts so far are kept" in str(caught.value)
    assert not (tmp_path / "labels.jsonl").exists()
    answered = (tmp_path / "journal" / "journal.jsonl").read_text().count('"stage":"judge"')
    assert 60 <= answered < 80

    with FakeJudge(tmp_path / "again") as fake:
        output = case(problems, [fake.url])
        assert len(fake.asked()) == 180 - answered
    assert output.read_bytes() == expected


def test_the_other_endpoints_carry_on_when_one_is_gone(tmp_path, case):
    with (
        FakeJudge(tmp_path / "a", latency=0.01, rules=[{"die_after": 20}]) as first,
        FakeJudge(tmp_path / "b", latency=0.01) as second,
    ):
        output = case(different_answers(60), [first.url, second.url])
        assert len(first.asked()) >= 10
        assert len(second.asked()) >= 140
    assert seal_counts(output)["judged"] == 240


def test_requests_are_spread_over_endpoints(tmp_path, case):
    with FakeJudge(tmp_path / "a", latency=0.01) as first, FakeJudge(tmp_path / "b", latency=0.01) as second:
        case(different_answers(60), [first.url, second.url])
        assert min(len(first.asked()), len(second.asked())) > 45


def test_a_model_the_server_does_not_serve_is_named_before_anything_is_asked(tmp_path, case):
    with FakeJudge(tmp_path / "fake", model="someone-else") as fake:
        with pytest.raises(GenselectError, match="does not serve the model 'judge'; it serves someone-else"):
            case(ANSWERS, [fake.url])
        assert fake.asked() == []


def test_an_unreachable_judge_is_named_by_its_address(case):
    with socket.socket() as held:  # bound and not listening: refuses connections, and nobody else takes the port
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}/v1"
        with pytest.raises(GenselectError, match=f"no judge can be reached: {url}"):
            case(ANSWERS, [url])


def test_an_address_without_v1_is_explained(tmp_path, case):
    with FakeJudge(tmp_path / "fake") as fake, pytest.raises(GenselectError, match="ends in /v1"):
        case(ANSWERS, [fake.url.removesuffix("/v1")])


def test_the_audit_asks_about_accepted_pairs_and_changes_none(tmp_path, case):
    problems = [(str(number), [str(number), f"{number}x"]) for number in range(40)]
    with FakeJudge(tmp_path / "fake") as fake:
        output = case(problems, [fake.url], cascade={"symbolic": False, "audit_fraction": 0.5})
        counts = seal_counts(output)
        audited = [answer for answer in fake.asked() if answer.isdecimal()]
    assert 10 <= counts["audited"] == counts["audit_calls"] == len(audited) <= 30
    assert counts["audit_disagreements"] == sum(int(answer) % 2 for answer in audited)
    assert counts["judge_calls"] == 40 + len(audited)
    assert all(row["correct"] for (_, index), row in labels(output).items() if index == 0)


def test_the_rule_decides_without_a_judge(tmp_path, case):
    output = case([(r"\frac{1}{2}", ["0.5", r"\frac12", "2", "??"])], [], kind="rule", cascade={})
    found = labels(output)
    assert [found["omr-000000", i]["correct"] for i in range(3)] == [True, True, False]
    assert found["omr-000000", 2]["source"] == "rule"
    assert seal_counts(output)["judge_calls"] == 0
