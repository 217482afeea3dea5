"""A policy that says what it is told."""

from __future__ import annotations

import pytest

from environments import ScriptedPolicy
from schemas import EnvironmentFault, Span
from tests.environments.characters import END_ID, Characters


async def test_list_of_replies_is_said_in_order() -> None:
    policy = ScriptedPolicy(Characters(), ["one", "two"])
    assert [(await policy.say(text)).text for text in "ab"] == ["one", "two"]
    with pytest.raises(EnvironmentFault, match="2 replies are used up"):
        await policy.say("c")


async def test_function_gets_each_turns_context() -> None:
    heard: list[str] = []

    def echo(context: str) -> str:
        heard.append(context)
        return context

    policy = ScriptedPolicy(Characters(), echo)
    await policy.say("ab")
    assert (await policy.say("cd")).text == "cd"
    assert heard == ["ab", "cd"]


async def test_reply_is_cut_at_the_turns_limit() -> None:
    policy = ScriptedPolicy(Characters(), ["abc"])
    reply = await policy.say("x", max_tokens=3)
    assert (reply.text, reply.finish) == ("abc", "length")


async def test_transcript_ends_replies_with_the_turns_stop() -> None:
    policy = ScriptedPolicy(Characters(), ["1", "2"])
    await policy.say("x", stop="\n")
    await policy.say("y")
    newline = Characters().encode("\n")[0]
    assert policy.transcript().tokens.tolist() == [
        *Characters().encode("x1"),
        newline,
        *Characters().encode("y2"),
        END_ID,
    ]
    assert policy.transcript().spans == [Span(0, 0, 4)]
