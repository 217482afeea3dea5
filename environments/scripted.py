"""A policy that says what it is told: for tests, and for the transcripts that the supervised warm-up learns from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from schemas import EnvironmentFault, Span

from .chat_template import Message
from .policy import Policy, Reply
from .sampling import Sample
from .tokenizer import Tokenizer

Demonstrator = Callable[[str], str]
"""From a turn's context text to the reply. In a conversation of messages that is the last message's content."""


class ScriptedPolicy(Policy):
    """Replies with a script: a function of each turn's context, or a list with one reply for each turn.

    A reply is encoded, ended by the turn's stop token (the model's end token where it has none) and cut at the
    turn's token limit. Each token counts as certain: log-probability 0, version 0.
    """

    def __init__(
        self, tokenizer: Tokenizer, script: Demonstrator | Sequence[str], *, max_tokens_total: int = 1 << 20
    ) -> None:
        self._script = script if callable(script) else _recite(script)
        self._reply_text = ""
        super().__init__(self, tokenizer, max_tokens_total)

    async def say(self, text: str, *, max_tokens: int | None = None, stop: str | None = None) -> Reply:
        """Raises EnvironmentFault when a list of replies is used up; otherwise as Policy.say."""
        self._reply_text = self._script(text)
        return await super().say(text, max_tokens=max_tokens, stop=stop)

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        max_tokens: int | None = None,
    ) -> Reply:
        """Raises EnvironmentFault when a list of replies is used up; otherwise as Policy.chat."""
        self._reply_text = self._script(_content(messages))
        return await super().chat(messages, tools=tools, max_tokens=max_tokens)

    async def sample(self, tokens: list[int], *, max_tokens: int, stop_ids: list[int]) -> Sample:
        """The next reply of the script, as an engine would return it."""
        reply = [*self._tokenizer.encode(self._reply_text), stop_ids[-1]][:max_tokens]
        return Sample(
            tokens=reply,
            logprobs=[0.0] * len(reply),
            spans=[Span(0, 0, len(reply))],
            finish="stop" if reply[-1] in stop_ids else "length",
            cached=0,
        )


def _content(messages: Sequence[Message]) -> str:
    """Of the last message; empty where it has none, or none in text."""
    content = messages[-1].get("content") if messages else None
    return content if isinstance(content, str) else ""


def _recite(replies: Sequence[str]) -> Demonstrator:
    remaining = iter(replies)

    def next_reply(_: str) -> str:
        reply = next(remaining, None)
        if reply is None:
            raise EnvironmentFault(f"the script's {len(replies)} replies are used up: the environment asked for more")
        return reply

    return next_reply
