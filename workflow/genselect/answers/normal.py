r"""Textual forms of an answer: the strict one that stage 1 compares, and the normal form the reader starts from.

Two answers with the same normal form are the same answer written differently. The normal form only ever removes
typesetting: wrappers, spacing and sizing commands, alternative names of one command, braces around a single
character, thousands separators, a final full stop.
"""

from __future__ import annotations

import re

__all__ = ["identical", "normal_form", "strip_wrappers"]

_UNICODE = {
    "−": "-", "×": r"\times ", "·": r"\cdot ", "÷": r"\div ", "π": r"\pi ", "∞": r"\infty ", "≤": r"\leq ",
    "≥": r"\geq ", "≠": r"\neq ", "∪": r"\cup ", "∩": r"\cap ", "±": r"\pm ", "∓": r"\mp ", "∈": r"\in ",
    "∅": r"\emptyset ", "°": r"^\circ ", "²": "^2", "³": "^3", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "ℝ": r"\mathbb{R}", "→": r"\to ",
    "…": r"\ldots ", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u200b": "",
}  # fmt: skip

_SYNONYMS = {
    r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\cfrac": r"\frac", r"\dbinom": r"\binom", r"\tbinom": r"\binom",
    r"\le": r"\leq", r"\leqslant": r"\leq", r"\ge": r"\geq", r"\geqslant": r"\geq", r"\ne": r"\neq",
    r"\dots": r"\ldots", r"\cdots": r"\ldots", r"\dotsc": r"\ldots", r"\dotsb": r"\ldots", r"\lbrace": r"\{",
    r"\rbrace": r"\}", r"\lbrack": "[", r"\rbrack": "]", r"\varnothing": r"\emptyset", r"\lvert": "|",
    r"\rvert": "|", r"\vert": "|", r"\ast": "*", r"\colon": ":", r"\lt": "<", r"\gt": ">", r"\mathds": r"\mathbb",
    r"\textrm": r"\text", r"\textup": r"\text", r"\mbox": r"\text", r"\textbf": r"\text", r"\textit": r"\text",
    r"\textnormal": r"\text", r"\bf": "", r"\rm": "", r"\textsf": r"\text", r"\degree": r"^\circ",
    r"\degrees": r"^\circ", r"\longrightarrow": r"\to", r"\rightarrow": r"\to", r"\equal": "=", r"\space": " ",
    r"\bm": r"\mathbf", r"\boldsymbol": r"\mathbf", r"\displaystyle": " ", r"\textstyle": " ",
    r"\limits": "", r"\nolimits": "", r"\quad": " ", r"\qquad": " ", r"\enspace": " ", r"\thinspace": " ",
    r"\left": "", r"\right": "", r"\middle": "", r"\big": "", r"\bigl": "", r"\bigr": "", r"\Big": "",
    r"\Bigl": "", r"\Bigr": "", r"\bigg": "", r"\biggl": "", r"\biggr": "", r"\Bigg": "", r"\Biggl": "",
    r"\Biggr": "", r"\lparen": "(", r"\rparen": ")", r"\hfill": " ", r"\nobreak": "",
}  # fmt: skip

_COMMAND = re.compile(r"\\[A-Za-z]+|\\\\")
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_TOKEN = re.compile(r"\\text\{[^{}]*\}|\\[A-Za-z]+|\\.|\d+(?:\.\d+)?|[A-Za-z]+|\S", re.DOTALL)
_THOUSANDS = re.compile(r"(?<![\d.,])(\d{1,3}(?:,\d{3})+)(?![\d,])")
_LETTER = re.compile(r"(?:(?i:option|choice|answer:?)\s*)?(?:\\text\{\(?([A-J])\)?[.:]?\}|\(([A-J])\)|([A-J])[.):]?)")
_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))


def strip_wrappers(answer: str, *, display: bool = True) -> str:
    r"""``answer`` without outer spaces and outer ``$``, ``\( \)`` (and, with ``display``, ``\[ \]``) pairs."""
    text = answer.strip()
    while True:
        for opening, closing in _WRAPPERS if display else _WRAPPERS[:3]:
            inner = text[len(opening) : -len(closing)]
            wrapped = len(text) > len(opening) + len(closing) and text.startswith(opening) and text.endswith(closing)
            # `$a$ and $b$` is not one wrapped formula, and `\$` is a currency sign.
            nested = opening != closing and inner.strip().startswith(opening) and inner.strip().endswith(closing)
            if wrapped and not inner.endswith("\\") and (nested or opening not in inner):
                text = inner.strip()
                break
        else:
            return text


def identical(gold: str, pred: str) -> bool:
    r"""Stage 1: equal after stripping outer ``$``, ``\( \)`` and spaces only. Two empty answers are not identical."""
    left, right = strip_wrappers(gold, display=False), strip_wrappers(pred, display=False)
    return bool(left) and left == right


def normal_form(answer: str) -> str:
    r"""Cheap textual normal form; idempotent. Equal normal forms mean the same answer, unequal ones mean nothing.

    Beyond wrappers it removes: spacing (``\,`` ``\!`` ``~`` ``\quad``) and sizing (``\left`` ``\right`` ``\big``)
    commands, inner ``$``, a final full stop, thousands separators (``1,234`` outside brackets, ``1{,}234``,
    ``1,\!234``), braces around one character after ``^`` and ``_``; and it maps Unicode mathematics, ``\dfrac`` and
    other alternative names, ``\frac12``, ``\sqrt2`` to one spelling, and ``\text{A}``, ``(A)``, ``A.`` to ``A``.
    """
    text = strip_wrappers(answer)
    for _ in range(4):  # each pass can expose another wrapper or separator; texts settle in two
        previous, text = text, _one_pass(text)
        if text == previous:
            break
    return text


def _one_pass(text: str) -> str:
    text = "".join(_UNICODE.get(ch, ch) for ch in text)
    text = _strip_full_stop(text)
    text = re.sub(r"(?<=\d)(?:\{,\}|,\s*\\!|\\,(?=\d{3}(?!\d)))\s*(?=\d)", "", text)  # explicit thousands separators
    # Row breaks are matched first and kept, or the second half of `\\\\ ` would pass for a spacing command.
    text = re.sub(r"(\\\\)|\\[,;:!>\s]|~", lambda m: m.group(1) or " ", text)
    text = re.sub(r"\\(?:left|right)\s*\.", "", text)
    text = _COMMAND.sub(lambda m: _SYNONYMS.get(m.group(), m.group()), text)
    text = re.sub(r"(?<!\\)\$", "", text)
    # Upright single letters are e, i, d; any other upright letter after a number is a unit (25\,\mathrm{m}).
    text = re.sub(
        r"\\(?:mathrm\s*\{\s*([eid])\s*\}|(?:mathbf|mathit|mathsf|mathcal)\s*\{\s*([A-Za-z])\s*\})", r" \1\2 ", text
    )
    text = re.sub(r"\\(?:mathrm|mathsf|mathbf|mathit)\s*\{", r"\\text{", text)
    text = re.sub(r"\\text\s*(?=[^{\sA-Za-z])", "", text)
    text = _TEXT.sub(lambda m: r"\text{" + " ".join(m.group(1).split()) + "}", text)
    text = re.sub(r"\^\s*\{\s*\\circ\s*\}|\^\s*\\circ(?![A-Za-z])", r"^\\circ ", text)
    text = text.replace("**", "^")
    text = _whole_text(text.strip())
    text = _brace_arguments(text)
    return _respace(text)


def _strip_full_stop(text: str) -> str:
    text = text.strip()
    return text[:-1].rstrip() if text.endswith(".") and not text.endswith("..") and len(text) > 1 else text


def _whole_text(text: str) -> str:
    """An answer that is one text command is its words; a choice letter in any dress is the letter."""
    letter = _LETTER.fullmatch(text)
    if letter:
        return next(group for group in letter.groups() if group)
    match = _TEXT.fullmatch(text)
    return match.group(1).strip() if match else text


def _brace_arguments(text: str) -> str:
    text = re.sub(r"\\(frac|binom)\s*(\d|[A-Za-z])\s*(?=[\dA-Za-z{\\])", r"\\\1{\2}", text)
    text = re.sub(r"\\(frac|binom)(\s*\{(?:[^{}]|\{[^{}]*\})*\})\s*(\d|[A-Za-z])", r"\\\1\2{\3}", text)
    text = re.sub(
        r"\\sqrt\s*(\[[^\]]*\])?\s*(\d|[A-Za-z])", lambda m: rf"\sqrt{m.group(1) or ''}{{{m.group(2)}}}", text
    )
    return re.sub(r"([\^_])\s*\{\s*([0-9A-Za-z])\s*\}", r"\1\2 ", text)


def _respace(text: str) -> str:
    """One canonical spacing: a space only where two tokens would otherwise run together, and after list commas."""
    tokens = [(m.group(), m.start() > 0 and text[m.start() - 1].isspace()) for m in _TOKEN.finditer(text)]
    out: list[str] = []
    depth = 0
    for index, (token, spaced) in enumerate(tokens):
        previous = out[-1].strip() if out else ""
        runs_on = bool(previous) and previous[-1].isalnum() and token[0].isalnum()
        after_command = previous.startswith("\\") and previous[-1:].isalpha()
        if previous == ",":
            following = tokens[index - 2][0] if index > 1 else ""
            thousands = depth == 0 and following.isdigit() and re.fullmatch(r"\d{3}(?:\.\d+)?", token) and not spaced
            out.append(token if thousands else " " + token)
        elif token[0].isalpha() if after_command else runs_on and spaced:
            out.append(" " + token)
        else:
            out.append(token)
        out[-1] = out[-1].lstrip() if len(out) == 1 else out[-1]
        if token in {"(", "[", r"\{"}:
            depth += 1
        elif token in {")", "]", r"\}"}:
            depth = max(0, depth - 1)
    joined = "".join(out)
    return _THOUSANDS.sub(lambda m: m.group().replace(",", ""), joined)
