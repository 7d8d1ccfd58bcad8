"""The prompt, the verdict parser and the fingerprint: what is sent, how replies are read, what makes two judges one."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge_cases import config

from genselect.config.models import JudgePrompt as PromptSection
from genselect.errors import GenselectError
from genselect.judge import JudgePrompt, judge_fingerprint, parse_verdict, reasoning_of

NEMO = r"""
# a comment, as upstream has one
system: ""

user: |-
    Judge $\sqrt{{7!}}$ first.
    Problem: {problem}
    Predicted answer: {predicted_answer}
    Expected answer: {expected_answer}
"""


def test_the_projects_own_prompt_shows_both_answers_and_plain_braces():
    (message,) = JudgePrompt.load(PromptSection()).messages("Find {x}.", r"\frac{1}{2}", r"\{0, {problem}\}")
    assert message["role"] == "user"
    assert "Problem: Find {x}.\n" in message["content"]
    assert "Expected answer: \\frac{1}{2}\n" in message["content"]
    assert message["content"].endswith("Predicted answer: \\{0, {problem}\\}")
    assert r"3\sqrt{2}" in message["content"]


def test_a_nemo_skills_prompt_reads_as_str_format_would(tmp_path):
    path = tmp_path / "math.yaml"
    path.write_text(NEMO)
    (message,) = JudgePrompt.load(PromptSection(path=path)).messages("P", "E", "A")
    assert message["content"] == "Judge $\\sqrt{7!}$ first.\nProblem: P\nPredicted answer: A\nExpected answer: E"


def test_a_system_message_is_sent_when_there_is_one(tmp_path):
    path = tmp_path / "p.yml"
    path.write_text("system: Be strict.\nuser: '{problem} {expected_answer} {predicted_answer}'\n")
    roles = [message["role"] for message in JudgePrompt.load(PromptSection(path=path)).messages("P", "E", "A")]
    assert roles == ["system", "user"]


def test_single_braces_of_a_plain_text_prompt_are_literal(tmp_path):
    path = tmp_path / "p.txt"
    path.write_text(r"\frac{1}{2} {unknown} {problem}{expected_answer}{{{predicted_answer}}}")
    (message,) = JudgePrompt.load(PromptSection(path=path)).messages("{{", "}}", "A")
    assert message["content"] == r"\frac{1}{2} {unknown} {{}}{A}"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("p.txt", b"{problem} {expected_answer}", "predicted_answer"),
        ("p.txt", b"{problem} {expected_answer} {{predicted_answer}}", "predicted_answer"),
        ("p.txt", b"\xff{problem}", "not UTF-8"),
        ("p.yaml", b"user: [", "not YAML"),
        ("p.yaml", b"users: x", "key user"),
        ("p.yaml", b"user: '{problem}{expected_answer}{predicted_answer}'\nfew_shot: 3", "few_shot"),
    ],
)
def test_an_unusable_prompt_file_is_refused_by_name(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(GenselectError, match=words) as caught:
        JudgePrompt.load(PromptSection(path=path))
    assert str(path) in str(caught.value)


def test_the_checksum_is_checked(tmp_path):
    path = tmp_path / "p.txt"
    path.write_text("{problem} {expected_answer} {predicted_answer}")
    right = hashlib.sha256(path.read_bytes()).hexdigest()
    JudgePrompt.load(PromptSection(path=path, sha256=right))
    with pytest.raises(GenselectError, match=right):
        JudgePrompt.load(PromptSection(path=path, sha256="0" * 64))
    with pytest.raises(GenselectError, match="cannot be read"):
        JudgePrompt.load(PromptSection(path=tmp_path / "absent.txt"))


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("Reasoning: same.\nJudgement: Yes", True),
        ("Judgment: no", False),
        ("JUDGEMENT: YES.", True),
        ("**Judgement:** Yes", True),
        ("Judgement: **Yes**", True),
        ("**Judgement**: **No**", False),
        ("**Judgement: No**", False),
        ("## Judgement:\n\nYes", True),
        ("Judgement : `No`", False),
        ("Judgement：Yes", True),
        ("Judgement: No, they differ. Judgement: Yes", True),
        ("Judgement: Yes ... Final judgement: No", False),
        ("Judgement: Nothing differs, so Yes", None),
        ("Judgement: yesterday", None),
        ("Judgement: Nope", None),
        ("Judgement: Yes or No", None),
        ("Judgement: Yes/No", None),
        ("Judgement: **Yes** or **No**", None),
        ("Judgement: No-brainer", None),
        ("Judgement: Yes. Later judgement: unclear", None),
        ("Misjudgement: Yes", None),
        ("Judgements: Yes", None),
        ("Yes", None),
        ("Judgement Yes", None),
        ("Judgement:", None),
        ("", None),
        ("<think>Judgement: No</think>Judgement: Yes", True),
        ("<think>Judgement: No</think>", None),
        ("so No. Judgement: No</think>\nJudgement: Yes", True),
        ("<think>Judgement: Yes", None),
        ("Judgement: Yes, since nothing differs", True),
        ("Judgement: No\n\nYes, I am sure.", False),
    ],
)
def test_the_word_after_the_last_mark_decides(reply, verdict):
    assert parse_verdict(reply) is verdict


@given(
    st.text(),
    st.sampled_from(["Judgement", "judgment", "JUDGEMENT", "**Judgement"]),
    st.sampled_from([":", " :", ":**", "**: "]),
    st.sampled_from(["Yes", "no", "**No**", "YES"]),
    st.sampled_from(["", ".", "\n", " because it is."]),
)
def test_a_verdict_at_the_end_is_read_whatever_comes_before(before, mark, colon, word, after):
    before = before.replace("<think>", "").replace("</think>", "")
    assert parse_verdict(f"{before}\n{mark}{colon} {word}{after}") is ("yes" in word.lower())


@given(st.text(max_size=200))
def test_no_reply_breaks_the_parser(reply):
    assert parse_verdict(reply) in (True, False, None)
    assert len(reasoning_of(reply)) <= 2000


def test_the_reasoning_is_the_judges_sentence():
    assert reasoning_of("Reasoning: 3/2 is\n 1.5.\nJudgement: Yes") == "3/2 is 1.5."
    assert reasoning_of("**Reasoning:** Same value.\n\n**Judgement:** Yes") == "Same value."
    assert reasoning_of("<think>hm</think>Judgement: No") == "Judgement: No"
    assert reasoning_of("I cannot tell.") == "I cannot tell."
    assert reasoning_of("x" * 5000).endswith("…")


def test_the_fingerprint_is_about_the_judge_and_not_about_where_it_runs(tmp_path):
    first = judge_fingerprint(config(tmp_path, ["http://127.0.0.1:1/v1"]))
    assert first == judge_fingerprint(config(tmp_path, ["http://127.0.0.1:2/v1"], client={"concurrency": 3}))
    assert first == judge_fingerprint(config(tmp_path, [], kind="vllm", server={"port": 1234, "env": {"A": "b"}}))
    audited = {"symbolic": False, "audit_fraction": 0.5}
    assert first == judge_fingerprint(config(tmp_path, ["http://127.0.0.1:1/v1"], cascade=audited))


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"revision": "1234567"},
        {"sampling": {"first_max_tokens": 64, "second_max_tokens": 256, "seed": 2}},
        {"cascade": {"symbolic": True}},
        {"server": {"args": ["--quantization", "fp8"]}},
        {"prompt": {}},
        {"kind": "rule"},
    ],
)
def test_whatever_changes_a_verdict_changes_the_fingerprint(tmp_path, change):
    urls = ["http://127.0.0.1:1/v1"]
    assert judge_fingerprint(config(tmp_path, urls)) != judge_fingerprint(config(tmp_path, urls, **change))


def test_the_rule_has_no_model_in_its_fingerprint(tmp_path):
    rule = [config(tmp_path, [], kind="rule", model=model) for model in ("a", None)]
    assert judge_fingerprint(rule[0]) == judge_fingerprint(rule[1])
