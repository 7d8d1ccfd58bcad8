"""From the judge's reply to a verdict: yes, no, or unparsable, which is neither."""

from __future__ import annotations

import re

#: Longest reasoning kept in a label, in characters. A reply that rambles to its token cap would fill the file.
MAX_REASONING = 2000

_MARK = re.compile(r"\bjudge?ment\b[\s*_`]*[:：][\s*_`]*", re.IGNORECASE)
# `Yes or No` and `Yes/No` repeat the instruction. A word that goes on (`yesterday`, `No-one`) is no verdict.
_WORD = re.compile(r"(yes|no)(?![\w-])(?![\s*_`]*(?:/|\bor\b)[\s*_`]*(?:yes|no)\b)", re.IGNORECASE)
_THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)
_REASONING = re.compile(r"^[\s*_`#]*reasoning\b[\s*_`]*[:：][\s*_`]*", re.IGNORECASE)


def parse_verdict(reply: str) -> bool | None:
    """Whether ``reply`` says that the answers are equivalent; None when it does not say.

    The last ``Judgement:`` (or ``Judgment:``, any case, bold tolerated) decides, and only the word right after its colon:
    ``Judgement: Nothing differs, so Yes`` has no verdict. What stands in a thinking block does not count.
    """
    found = _split(reply)
    return found[1] if found else None


def reasoning_of(reply: str) -> str:
    """What the judge wrote before its verdict, on one line; the whole reply when it has no verdict mark."""
    found = _split(reply)
    text = found[0] if found and found[0].strip(" \t\n*_`#") else _without_thinking(reply)
    text = " ".join(_REASONING.sub("", text).split()).rstrip("*_`# ")
    return text if len(text) <= MAX_REASONING else text[: MAX_REASONING - 1] + "…"


def _split(reply: str) -> tuple[str, bool | None] | None:
    """The text before the last mark, and the verdict after it; None when there is no mark."""
    text = _without_thinking(reply)
    mark = None
    for mark in _MARK.finditer(text):  # noqa: B007 - the last one is wanted
        pass
    if mark is None:
        return None
    word = _WORD.match(text, mark.end())
    return text[: mark.start()], (word[1].lower() == "yes" if word else None)


def _without_thinking(reply: str) -> str:
    text = _THINKING.sub("", reply)
    # Templates that open the block in the prompt leave only its end in the reply; a reply cut inside it, only its start.
    return text.rpartition("</think>")[2].partition("<think>")[0]
