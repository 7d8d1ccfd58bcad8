"""Tool calls in a turn's text, read as verl's ``qwen3_coder`` parser reads them for string arguments.

verl's own parser (``verl.experimental.agent_loop.tool_parser``) reads the trainer's rollouts. Importing it brings in Ray and takes
a dozen seconds, so the warm start's evaluation uses this one; a test holds the two together.
"""

from __future__ import annotations

import json
import re

from genselect.episode import Call

EXPLORE = "<tool_call>\n<function=explore>\n</function>\n</tool_call>"
_SUBMIT = "<tool_call>\n<function=submit>\n<parameter=answer>\n{answer}\n</parameter>\n</function>\n</tool_call>"

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>|<tool_call>(.*?)$", re.DOTALL)
_FUNCTION = re.compile(r"<function=(.*?)</function>|<function=(.*)$", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=(.*?)</parameter>|<parameter=(.*?)$", re.DOTALL)


def submit_call(answer: str) -> str:
    """The text that submits ``answer``."""
    return _SUBMIT.format(answer=answer)


def read_calls(text: str) -> list[Call]:
    """Every call in the text of a turn. A call cut short counts as far as it goes, as in verl."""
    bodies = [whole or cut for call in _matches(_CALL, text) for whole, cut in _FUNCTION.findall(call)]
    return [_call(body) for body in bodies if ">" in body]


def _call(body: str) -> Call:
    name, _, rest = body.partition(">")
    arguments: dict[str, str | None] = {}
    for parameter in _matches(_PARAMETER, rest):
        key, separator, value = parameter.partition(">")
        if separator:
            value = value.removeprefix("\n").removesuffix("\n")
            arguments[key] = None if value.lower() == "null" else value
    return Call(name, json.dumps(arguments, ensure_ascii=False))


def _matches(pattern: re.Pattern[str], text: str) -> list[str]:
    return [whole or cut for whole, cut in pattern.findall(text)]
