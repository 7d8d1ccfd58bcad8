r"""Split the normal form of an answer into tokens, and token lists at top-level separators."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["CLOSERS", "FUNCTIONS", "Guarded", "Token", "Unreadable", "split_top", "text_of", "tokenize", "top_level"]


class Unreadable(ValueError):
    """The strict reader does not understand this text; nothing may be concluded from it."""


class Guarded(Unreadable):
    """The text is of a kind that is refused on purpose, because comparing it by pieces accepts falsely."""


@dataclass(frozen=True)
class Token:
    r"""One token: ``kind`` is number, letter, word, text (a ``\text{}``), command or symbol."""

    kind: str
    text: str
    spaced: bool = False  # white space stood before it


FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan arccot sinh cosh tanh coth ln log lg exp max min gcd lcm "
    "asin acos atan".split()
)
CLOSERS = {
    "(": ")",
    "[": "]",
    "{": "}",
    r"\{": r"\}",
    r"\langle": r"\rangle",
    r"\lfloor": r"\rfloor",
    r"\lceil": r"\rceil",
}
_PLAIN_COMMANDS = FUNCTIONS | set(
    "sqrt pi theta alpha beta gamma delta lambda mu sigma phi omega infty Theta Omega".split()
)
_WORD_COMMANDS = {"inf": r"\infty", "infinity": r"\infty", "oo": r"\infty", "union": r"\cup"}
_TEXT_COMMANDS = {"or": "or", "and": "and"}

_TOKEN = re.compile(
    r"(?P<number>\d*\.\d*\\overline\{\d+\}|\d+\.\d+|\d+|\.\d+)|(?P<text>\\text\{[^{}]*\}|\\operatorname\*?\{[^{}]*\})"
    r"|(?P<command>\\[A-Za-z]+|\\.)|(?P<word>[A-Za-z]+)|(?P<symbol><=|>=|!=|\S)",
    re.DOTALL,
)


def tokenize(text: str) -> list[Token]:
    r"""Tokens of a normal form. Function and constant names in plain letters (``sin``, ``pi``) become commands."""
    tokens: list[Token] = []
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "symbol"
        raw = match.group()
        spaced = match.start() > 0 and text[match.start() - 1].isspace()
        if kind == "text":
            tokens.append(_text_token(raw[raw.index("{") + 1 : -1].strip(), spaced))
        elif kind == "word":
            tokens.extend(_word_tokens(raw, spaced))
        elif raw in {"<=", ">=", "!="}:
            tokens.append(Token("command", {"<=": r"\leq", ">=": r"\geq", "!=": r"\neq"}[raw], spaced))
        elif raw == r"\degree":
            tokens.extend([Token("symbol", "^", spaced), Token("command", r"\circ")])
        else:
            tokens.append(Token(kind, raw, spaced))
    return _merge_degrees(tokens)


def split_top(tokens: list[Token], separators: set[str]) -> list[list[Token]]:
    """``tokens`` split at the separators that stand outside every bracket. Raises Unreadable on unbalanced brackets."""
    parts: list[list[Token]] = [[]]
    for token, depth in top_level(tokens):
        if depth == 0 and token.text in separators:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def top_level(tokens: list[Token]) -> list[tuple[Token, int]]:
    """Each token with its bracket depth (an opening or closing bracket has depth at least 1)."""
    stack: list[str] = []
    out: list[tuple[Token, int]] = []
    for token in tokens:
        if token.text in CLOSERS:
            stack.append(token.text)
            out.append((token, len(stack)))
        elif token.text in _CLOSING:
            if not stack:
                raise Unreadable("unbalanced brackets")
            # Half-open intervals close with the other bracket.
            if token.text != CLOSERS[stack[-1]] and {stack[-1], token.text} - set("()[]"):
                raise Unreadable("unbalanced brackets")
            out.append((token, len(stack)))
            stack.pop()
        else:
            out.append((token, len(stack)))
    if stack:
        raise Unreadable("unbalanced brackets")
    return out


def text_of(tokens: list[Token]) -> str:
    """The tokens' text with single spaces, for messages and textual comparison."""
    return " ".join(token.text for token in tokens)


_CLOSING = frozenset(CLOSERS.values())


def _text_token(content: str, spaced: bool) -> Token:
    lowered = content.lower().strip(" ,")
    if lowered in _TEXT_COMMANDS:
        return Token("word", lowered, True)
    if content in FUNCTIONS:
        return Token("command", "\\" + content, spaced)
    return Token("text", content, spaced)


def _word_tokens(word: str, spaced: bool) -> list[Token]:
    if len(word) == 1:
        return [Token("letter", word, spaced)]
    if word in _PLAIN_COMMANDS:
        return [Token("command", "\\" + word, spaced)]
    if word.lower() in _WORD_COMMANDS:
        return [Token("command", _WORD_COMMANDS[word.lower()], spaced)]
    return [Token("word", word, spaced)]


def _merge_degrees(tokens: list[Token]) -> list[Token]:
    out: list[Token] = []
    for token in tokens:
        if token.text == r"\circ" and out and out[-1].text == "^":
            out[-1] = Token("symbol", "°", out[-1].spaced)
        else:
            out.append(token)
    return out
