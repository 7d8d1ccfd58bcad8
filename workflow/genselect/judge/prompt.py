"""What the judge reads: the prompt template, its hash, and the messages of one question.

A template holds ``{problem}``, ``{expected_answer}`` and ``{predicted_answer}``. Braces follow the rule of ``str.format`` as
far as templates need it: ``{{`` and ``}}`` stand for one brace, and so NeMo-Skills' prompts read as their authors meant. Any
other single brace is literal, so a template may also hold ``\\frac{1}{2}`` as it is. Values go in untouched: nothing inside a
problem or an answer is ever taken for a field.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import yaml

from genselect.config import fingerprint
from genselect.config.models import JudgePrompt as PromptSection
from genselect.errors import GenselectError

FIELDS = ("problem", "expected_answer", "predicted_answer")

_TOKEN = re.compile(r"\{\{|\}\}|\{(" + "|".join(FIELDS) + r")\}")
_HINT = "The prompt holds {problem}, {expected_answer} and {predicted_answer}; docs/judge.md shows both forms of file."


@dataclass(frozen=True)
class JudgePrompt:
    """A judge prompt: a user message and perhaps a system message, both templates."""

    user: str
    """Template of the user message; holds every field at least once."""
    system: str = ""
    """Template of the system message; no such message is sent when it is blank."""

    @classmethod
    def load(cls, section: PromptSection) -> JudgePrompt:
        """The prompt that the configuration names: the project's own when ``section.path`` is null.

        ``.yaml`` and ``.yml`` files are read in NeMo-Skills' form (``user``, and perhaps ``system``), others as plain text.

        Raises:
            GenselectError: The file is missing, not UTF-8, not of that form, lacks a field, or has another checksum.
        """
        if section.path is None:
            content, origin = (
                resources.files(__package__).joinpath("prompt.txt").read_bytes(),
                "the project's own prompt",
            )
        else:
            content, origin = _read(section.path), str(section.path)
        found = hashlib.sha256(content).hexdigest()
        if section.sha256 and found != section.sha256:
            raise GenselectError(
                f"{origin}: its sha256 is {found}, and judge.prompt.sha256 says {section.sha256}",
                "Fetch the prompt again from its pinned revision, or correct the checksum if the new text is meant.",
            )
        text = _decode(content, origin)
        is_yaml = section.path is not None and section.path.suffix.lower() in {".yaml", ".yml"}
        prompt = _from_yaml(text, origin) if is_yaml else cls(user=text.strip("\n"))
        missing = [name for name in FIELDS if name not in _TOKEN.findall(prompt.system + "\n" + prompt.user)]
        if missing:
            raise GenselectError(f"{origin}: {{{'}, {'.join(missing)}}} is missing from the judge prompt", _HINT)
        return prompt

    @property
    def sha256(self) -> str:
        """Hash of the text that is sent, before the fields are filled in; part of the judge fingerprint."""
        return fingerprint({"system": self.system, "user": self.user})

    def messages(self, problem: str, expected: str, predicted: str) -> list[dict[str, str]]:
        """The chat messages that ask about one pair of answers."""
        values = dict(zip(FIELDS, (problem, expected, predicted), strict=True))
        user = {"role": "user", "content": _fill(self.user, values)}
        if not self.system.strip():
            return [user]
        return [{"role": "system", "content": _fill(self.system, values)}, user]


def _fill(template: str, values: Mapping[str, str]) -> str:
    return "".join(values[part] if is_field else part for part, is_field in _parts(template))


@functools.cache
def _parts(template: str) -> tuple[tuple[str, bool], ...]:
    """The template's literal texts and the names of its fields, in order. Only it is scanned, never what fills it."""
    parts: list[tuple[str, bool]] = []
    literal, end = "", 0
    for match in _TOKEN.finditer(template):
        literal += template[end : match.start()]
        end = match.end()
        if match[1]:
            parts += [(literal, False), (match[1], True)]
            literal = ""
        else:
            literal += match[0][0]
    return (*parts, (literal + template[end:], False))


def _from_yaml(text: str, origin: str) -> JudgePrompt:
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise GenselectError(f"{origin}: not YAML: {error}", _HINT) from None
    if not isinstance(values, dict) or not isinstance(values.get("user"), str):
        raise GenselectError(f"{origin}: a judge prompt in YAML is a mapping with the key user, a text", _HINT)
    unknown = sorted(set(values) - {"user", "system"}, key=str)
    system = values.get("system") or ""
    if unknown or not isinstance(system, str):
        what = f"the keys {', '.join(map(str, unknown))} are not known" if unknown else "system must be a text"
        raise GenselectError(f"{origin}: {what}; a judge prompt has user, and perhaps system", _HINT)
    return JudgePrompt(user=values["user"], system=system)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise GenselectError(
            f"{path}: the judge prompt cannot be read: {error.strerror}",
            "Correct judge.prompt.path, or set it to null for the project's own prompt.",
        ) from error


def _decode(content: bytes, origin: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise GenselectError(f"{origin}: not UTF-8 (byte {error.start})", "Save the prompt as UTF-8.") from None
