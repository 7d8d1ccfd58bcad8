"""The two tools, as chat templates and parsers want them described."""

from __future__ import annotations

from typing import Any

#: OpenAI's function schema, which chat templates render and tool parsers read argument types from.
TOOLS: tuple[dict[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "explore",
            "description": "Reveal the next candidate solution.",
            "parameters": {"type": "object", "properties": {}, "required": []},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "submit",
            "description": "Submit the final answer. This ends the episode.",
            "parameters": {
                "type": "object",
                "properties": {"answer": {"type": "string", "description": "The final answer."}},
                "required": ["answer"],
            },
        },
    },
)

#: For a policy that sees all candidates at once.
SUBMIT_ONLY = TOOLS[1:]
