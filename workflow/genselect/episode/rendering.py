"""From messages to token ids, such that data can never pose as structure.

Problem statements and candidates are data: whatever stands in them, be it ``<|im_end|>``, a tool tag or a chat role, they
are tokenised as plain text. So a candidate cannot close its own response, open a turn, or forge a call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from genselect.episode.tools import TOOLS

# Stands for data while a chat template is rendered. Any text would do that no template writes and no tokenizer knows.
_HOLE = "\u2402genselect-data\u2403"


class Tokenizer(Protocol):
    """What is asked of a Hugging Face tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of ``text``."""

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Render a conversation."""

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]:
        """Added tokens, special or not, by id."""


class Renderer:
    """Renders prompts and tool responses for one tokenizer.

    Args:
        tokenizer: With a chat template that knows tools.
        template_options: Passed to the chat template, such as ``{"enable_thinking": False}``.
    """

    def __init__(self, tokenizer: Tokenizer, template_options: Mapping[str, Any] | None = None) -> None:
        self._tokenizer = tokenizer
        self._options = dict(template_options or {})
        added = sorted((str(token) for token in tokenizer.added_tokens_decoder.values()), key=len, reverse=True)
        self._added = re.compile("|".join(map(re.escape, added))) if added else None
        self._before_response, self._after_response = self._response_frame()

    def data(self, text: str) -> list[int]:
        """Ids of ``text`` as plain text: never an added token, special or not."""
        if self._added is None:
            return self._tokenizer.encode(text, add_special_tokens=False)
        ids: list[int] = []
        start = 0
        # Cut inside every spelling of an added token and tokenise the parts apart: no part spells one any more. Matches may
        # overlap, so the search goes on one character after each match's beginning.
        match = self._added.search(text)
        while match:
            ids += self._plain(text[start : match.start() + 1])
            start = match.start() + 1
            match = self._added.search(text, start)
        return ids + self._plain(text[start:])

    def prompt(self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]] = TOOLS) -> list[int]:
        """Ids of the system and user messages with the tools, up to where the policy writes. Their contents are data."""
        holes = [{**message, "content": f"{_HOLE}{position};"} for position, message in enumerate(messages)]
        text = self._render(holes, tools=list(tools), add_generation_prompt=True)
        ids: list[int] = []
        for position, message in enumerate(messages):
            before, _, text = text.partition(f"{_HOLE}{position};")
            ids += self._structure(before) + self.data(message["content"])
        return ids + self._structure(text)

    def response(self, text: str) -> list[int]:
        """Ids that follow the policy's turn: the tool's response, and the opening of its next turn."""
        return [*self._before_response, *self.data(text), *self._after_response]

    def _response_frame(self) -> tuple[list[int], list[int]]:
        """What the template puts before and after a tool's response, found by rendering one."""
        call = {"type": "function", "function": {"name": "explore", "arguments": {}}}
        played: list[dict[str, Any]] = [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
        answered = [*played, {"role": "tool", "content": _HOLE}]
        whole = self._render(answered, tools=list(TOOLS), add_generation_prompt=True)
        before, _, after = whole.partition(_HOLE)
        # The policy ended its turn with the end-of-turn token; what the template writes after that token is the frame.
        end = str(getattr(self._tokenizer, "eos_token"))  # noqa: B009  (not part of the protocol: None for some tokenizers)
        return self._structure(before[before.rindex(end) + len(end) :]), self._structure(after)

    def _render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, **options, **self._options))

    def _structure(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False) if text else []

    def _plain(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False) if text else []
