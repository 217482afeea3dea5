"""Tool calls in what a model said, in the two ways in which open models write them.

Qwen, Hermes and many others, several at once too: ``<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>``.
Llama 3, whose whole reply is one: ``{"name": "add", "parameters": {"a": 1}}``.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

_TAGGED = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)


class ToolCall(msgspec.Struct, frozen=True):
    """A function that the model wants called."""

    name: str
    arguments: dict[str, Any]


def parse_tool_calls(text: str) -> tuple[str, list[ToolCall]]:
    """What was said beside the calls, and the calls in order.

    What only looks like a call (no JSON, no name, arguments that are no object) stays in the text.
    """
    calls: list[ToolCall] = []

    def take(match: re.Match[str]) -> str:
        call = _call(match[1])
        if call is None:
            return match[0]
        calls.append(call)
        return ""

    rest = _TAGGED.sub(take, text)
    if not calls and (call := _call(text.strip())) is not None:
        return "", [call]
    return (rest.strip() if calls else text), calls


def _call(text: str) -> ToolCall | None:
    try:
        said = msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    if not isinstance(said, dict):
        return None
    arguments = said.get("arguments", said.get("parameters"))
    name = said.get("name")
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return ToolCall(name, arguments)
