r"""Take the final answer out of a model's text: the content of the last complete ``\boxed{...}``.

The decision for each awkward form (truncated boxes, nested boxes, ``\boxed`` in prose) is tabulated in
``docs/answers.md``.
"""

from __future__ import annotations

import re

__all__ = ["extract_boxed", "final_answer", "has_box_command"]

_BOX = r"\\(?:boxed|fbox)(?![A-Za-z])"

# One left-to-right scan. A box command wins over an escape, so that the "\\boxed{5}" of a doubly escaped text is a box;
# any other backslash takes the next character with it, so that \{ and \} never count as braces.
_TOKEN = re.compile(rf"(?P<box>{_BOX}\s*)|\\(?!{_BOX})[\s\S]|[{{}}]")

# `\boxed 5` is what TeX would box; a bare word after \boxed is prose about the command.
_BARE = re.compile(r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:/\d+)?(?:\\?%)?(?![A-Za-z\d{])|[A-J](?=\s*(?:$|[$.,;:)\n]))")

# A closing line such as "**Answer:** 4." The bounded runs keep the search linear in the text.
_ANSWER_LINE = re.compile(
    r"(?:^|\n|(?<=[.!?] ))[ \t>#*_]{0,12}(?:final[ \t]{1,4})?answer[ \t*_]{0,8}:[ \t*_]{0,8}", re.IGNORECASE
)


def extract_boxed(text: str) -> str | None:
    r"""Content of the last complete box in ``text``, inner whitespace as written; ``None`` when there is none.

    A box is ``\boxed{...}`` or ``\fbox{...}`` (spaces before the brace allowed), or ``\boxed`` followed by a bare
    number or a single capital A to J that ends its clause. "Last" means the one that starts last, so that of two nested
    boxes the inner one counts. A box whose brace never closes is skipped. Runs in time linear in ``len(text)``.
    """
    open_braces: list[int | None] = []  # start of the content for a box's brace, None for any other
    last_start, last_content = -1, None
    pending = -1  # where the content starts when the previous token was a box command ending right here
    for match in _TOKEN.finditer(text):
        token = match.group()
        if match.group("box") is not None:
            pending = match.end()
            bare = _BARE.match(text, pending)
            if bare and pending > last_start:
                last_start, last_content = pending, bare.group().rstrip(",")
        elif token == "{":
            open_braces.append(match.end() if match.start() == pending else None)
        elif token == "}" and open_braces:
            start = open_braces.pop()
            if start is not None and start > last_start:
                last_start, last_content = start, text[start : match.start()]
    return last_content


def has_box_command(text: str) -> bool:
    r"""Whether ``text`` names ``\boxed`` or ``\fbox`` at all, complete or not."""
    return re.search(_BOX, text) is not None


def final_answer(text: str) -> str | None:
    r"""The answer a whole reply gives: its last complete box, unless a closing line ``Answer: X`` comes after it.

    Text without any box command and without such a line is an answer as it stands. A box command that no box completes
    gives ``None``: the reply was cut, or only talks about boxes. Labelling and the reward use ``extract_boxed`` alone.
    """
    end = None
    for line in _ANSWER_LINE.finditer(text):
        end = line.end()
    said = text[end:].strip().strip("*_").strip() if end is not None else ""
    if said and "\n" not in said and not has_box_command(said):
        return said
    if has_box_command(text):
        return extract_boxed(text)
    return text
