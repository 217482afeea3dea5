"""Tool calls are found where models write them, and nowhere else."""

import pytest

from environments.tool_calls import ToolCall, parse_tool_calls

ADD = ToolCall("add", {"a": 1})


@pytest.mark.parametrize(
    ("text", "rest", "calls"),
    [
        ("no call", "no call", []),
        ('<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', "", [ADD]),
        ('I add.\n<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', "I add.", [ADD]),
        ('<tool_call>{"name":"add","arguments":{"a":1}}</tool_call>' * 2, "", [ADD, ADD]),
        ('<tool_call>{"name": "add", "arguments": {"a": 1}}', "", [ADD]),
        ('{"name": "add", "parameters": {"a": 1}}', "", [ADD]),
        ('{"type": "function", "name": "add", "parameters": {"a": 1}}\n', "", [ADD]),
        ("<tool_call>add(1)</tool_call>", "<tool_call>add(1)</tool_call>", []),
        ('<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
         '<tool_call>{"name": "add", "arguments": [1]}</tool_call>', []),
        ('{"name": "add"}', '{"name": "add"}', []),
        ('It is {"name": "add", "parameters": {}}', 'It is {"name": "add", "parameters": {}}', []),
        ("[1]", "[1]", []),
        ("\udc80", "\udc80", []),
        (" leading space stays ", " leading space stays ", []),
    ],
)  # fmt: skip
def test_calls_and_the_rest(text: str, rest: str, calls: list[ToolCall]) -> None:
    assert parse_tool_calls(text) == (rest, calls)
