"""The handle by which an environment talks to the policy; it records each turn token by token.

What is trained is exactly what was sampled: reply tokens are kept as the engine gave them, never
decoded and encoded again. A rollout is one sequence: context, reply, context, reply, ...

A conversation in messages is rendered anew for each reply, by the model's own chat template. Where the rendering begins
with the text of the sequence so far, only the rest is new context. Where it does not (templates leave out the thinking
of earlier replies, environments shorten what was said), the prefix is broken: a new training sequence starts with
the whole rendering as its context, and the finished one stays as it was sampled.

Shape legend: T tokens of all sequences together, S sampled tokens of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from schemas import GREATEST_LOGPROB, LEAST_LOGPROB, MAX_ROLLOUT_TOKENS, EngineError, EnvironmentFault, Span, Turn

from .chat_template import ChatTemplate, Message
from .sampling import Finish, Sample, Sampler
from .tokenizer import Tokenizer


class TooLong(EnvironmentFault):
    """The conversation left no room for a further reply."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What the policy said in one turn."""

    text: str
    """Without the end or stop token."""
    finish: Finish
    """``stop``: it ended by itself; ``length``: it met its token limit."""
    tokens: int
    """How many were sampled, the end or stop token included."""
    prompt_tokens: int
    """How many stood before it in its sequence."""

    @property
    def message(self) -> dict[str, Any]:
        """The message to append to those of ``chat``. Its text is as it was said, which keeps the prefix."""
        return {"role": "assistant", "content": self.text}


class Transcript(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What was said so far, in the form that a Rollout carries."""

    tokens: npt.NDArray[np.int32]
    """int32 [T]: for each turn its context, then its reply; the sequences one after another."""
    logprobs: npt.NDArray[np.float32]
    """float32 [S]: log-probability of each sampled token after temperature."""
    turns: list[Turn]
    spans: list[Span]
    """Weights versions over 0 to S, merged over turns."""
    starts: list[int]
    """Turns at which a new sequence starts; turn 0, which always does, is not listed."""


class Policy:
    """One rollout's conversation with the policy."""

    def __init__(self, sampler: Sampler, tokenizer: Tokenizer, max_tokens_total: int) -> None:
        """``max_tokens_total``: most tokens of one sequence, context and replies together."""
        self._sampler = sampler
        self._tokenizer = tokenizer
        self._max_tokens_total = max_tokens_total
        self._tokens: list[int] = []
        self._logprobs: list[float] = []
        self._turns: list[Turn] = []
        self._spans: list[Span] = []
        self._starts: list[int] = []
        self._begin = 0
        self._text = ""
        self._speaking = False
        self.fault: EngineError | None = None
        """What the engine returned that cannot be recorded, whether the environment passed it on or not."""

    @property
    def has_chat(self) -> bool:
        """Whether the model has a chat template, without which ``chat`` cannot be called."""
        return self._tokenizer.chat_template is not None

    @property
    def shows_tools(self) -> bool:
        """Whether the chat template tells the model of ``tools``; where not, an environment describes them itself."""
        template = self._tokenizer.chat_template
        if template is None:
            return False
        messages, tool = [{"role": "user", "content": "?"}], {"name": "t", "description": "", "parameters": {}}
        tools = [{"type": "function", "function": tool}]
        return template.render(messages, tools=tools) != template.render(messages)

    async def say(self, text: str, *, max_tokens: int | None = None, stop: str | None = None) -> Reply:
        """Add ``text`` to the conversation and return the policy's reply to it.

        The reply ends with the model's end token, with ``stop`` (which must be one token of the model),
        after ``max_tokens`` tokens, or when the conversation is full.
        Raises TooLong when ``text`` leaves no room for a reply, EnvironmentFault for a ``stop`` that is not one
        token or an impossible ``max_tokens``, EngineError for a sample that cannot be recorded.
        """
        stop_ids = [self._tokenizer.end_id] if stop is None else [self._tokenizer.end_id, self._stop_id(stop)]
        return await self._reply(text, stop_ids, max_tokens, anew=False)

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        max_tokens: int | None = None,
    ) -> Reply:
        """The policy's reply to ``messages``, the whole conversation so far: append ``reply.message`` to it.

        ``tools``: JSON schemas of functions, for templates that show them: {"type": "function", "function": {...}}.
        The reply ends with an end token of the model, after ``max_tokens`` tokens, or when the conversation is full.
        Raises as ``say``, and EnvironmentFault where the model has no chat template or it refuses ``messages``.
        """
        text = self._template().render(messages, tools=tools)
        stop_ids = list(self._tokenizer.chat_stop_ids)
        if text.startswith(self._text):
            return await self._reply(text[len(self._text) :], stop_ids, max_tokens, anew=False)
        return await self._reply(text, stop_ids, max_tokens, anew=True)

    async def _reply(self, text: str, stop_ids: list[int], max_tokens: int | None, *, anew: bool) -> Reply:
        """Sample the reply to the sequence so far (to nothing where it starts ``anew``) and ``text``."""
        # An environment may ask again and again, whatever error it gets: others have their turn in between, so that
        # its time can run out.
        await asyncio.sleep(0)
        if self._speaking:
            raise EnvironmentFault("the policy was asked while another reply was being sampled: await each reply")
        if max_tokens is not None and max_tokens < 1:
            raise EnvironmentFault(f"the policy got max_tokens={max_tokens}: a reply has at least one token")
        begin = len(self._tokens) if anew else self._begin
        context = self._tokenizer.encode(text)
        prefix = self._tokens[begin:] + context
        limit = self._room(begin, prefix) if max_tokens is None else min(max_tokens, self._room(begin, prefix))
        self._speaking = True
        try:
            sample = await self._sampler.sample(prefix, max_tokens=limit, stop_ids=stop_ids)
        finally:
            self._speaking = False
        try:
            _check(sample, limit, stop_ids)
            self._record(context, sample, anew)
        except EngineError as error:
            self.fault = error
            raise
        spoken = sample.tokens[:-1] if sample.finish == "stop" else sample.tokens
        said = self._tokenizer.decode(spoken)
        end = self._tokenizer.decode(sample.tokens[len(spoken) :])
        self._text = ("" if anew else self._text) + text + said + end
        return Reply(text=said, finish=sample.finish, tokens=len(sample.tokens), prompt_tokens=len(prefix))

    def transcript(self) -> Transcript:
        """All finished turns. Valid after a failed turn too: that one is not in it."""
        return Transcript(
            tokens=np.array(self._tokens, dtype=np.int32),
            logprobs=np.array(self._logprobs, dtype=np.float32),
            turns=list(self._turns),
            spans=list(self._spans),
            starts=list(self._starts),
        )

    def _template(self) -> ChatTemplate:
        template = self._tokenizer.chat_template
        if template is None:
            raise EnvironmentFault(
                "the model has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json): "
                "use a model that has one, or an environment that speaks plain text (many take chat = false)"
            )
        return template

    def _stop_id(self, stop: str) -> int:
        ids = self._tokenizer.encode(stop)
        if len(ids) != 1:
            raise EnvironmentFault(
                f"stop {stop!r} is {len(ids)} tokens of this model: use a text that is exactly one, or no stop"
            )
        return ids[0]

    def _room(self, begin: int, prefix: Sequence[int]) -> int:
        """Tokens that a reply to ``prefix``, which stands at ``begin`` of all tokens, may have: at least one."""
        if not prefix:
            raise EnvironmentFault("the conversation began with an empty text: give the first turn a prompt")
        room = self._max_tokens_total - len(prefix)
        if room < 1:
            raise TooLong(
                f"{len(prefix)} tokens of conversation leave no room for a reply within {self._max_tokens_total}: "
                "shorten the environment's texts or raise generator.max_model_len"
            )
        room_of_rollout = MAX_ROLLOUT_TOKENS - begin - len(prefix)
        if room_of_rollout < 1:
            raise TooLong(
                f"{len(self._starts) + 1} sequences leave no room for a reply within the {MAX_ROLLOUT_TOKENS} tokens "
                "of a rollout: let the conversation keep its prefix, or end it earlier"
            )
        return min(room, room_of_rollout)

    def _record(self, context: list[int], sample: Sample, anew: bool) -> None:
        self._spans = _merged(self._spans, sample.spans, offset=len(self._logprobs))
        if anew:
            self._starts.append(len(self._turns))
            self._begin = len(self._tokens)
        self._tokens += context + sample.tokens
        self._logprobs += sample.logprobs
        self._turns.append(
            Turn(context=len(context), sampled=len(sample.tokens), cached=sample.cached, finish=sample.finish)
        )


def _check(sample: Sample, limit: int, stop_ids: Sequence[int]) -> None:
    """Raise EngineError unless the sample is whole: only then can it be trained."""
    n = len(sample.tokens)
    problem = ""
    if not 1 <= n <= limit:
        problem = f"{n} tokens for a limit of {limit}"
    elif len(sample.logprobs) != n:
        problem = f"{len(sample.logprobs)} log-probabilities for {n} tokens"
    elif odd := [logprob for logprob in sample.logprobs if not LEAST_LOGPROB <= logprob <= GREATEST_LOGPROB]:
        problem = f"log-probability {odd[0]:g} (are its weights still numbers?)"
    elif (sample.tokens[-1] in stop_ids) != (sample.finish == "stop"):
        problem = f"finish {sample.finish!r} with last token {sample.tokens[-1]} and stop tokens {list(stop_ids)}"
    elif [span.start for span in sample.spans] + [n] != [0] + [span.end for span in sample.spans]:
        problem = f"version spans {[(s.start, s.end) for s in sample.spans]} that do not cover {n} tokens in order"
    if problem:
        raise EngineError(f"the engine returned {problem}: restart it")


def _merged(spans: list[Span], more: list[Span], offset: int) -> list[Span]:
    """``spans`` followed by ``more`` moved by ``offset``; neighbours of one version become one.

    Raises EngineError where a version would decrease: weights never go back under a running rollout.
    """
    merged = list(spans)
    for span in more:
        if span.start == span.end:  # a swap between the last token and the request's end
            continue
        moved = Span(span.version, span.start + offset, span.end + offset)
        last = merged[-1] if merged else None
        if last is not None and moved.version < last.version:
            raise EngineError(
                f"the engine sampled with weights {moved.version} after weights {last.version} in one rollout: "
                "restart it"
            )
        if last is not None and moved.version == last.version:
            merged[-1] = Span(last.version, last.start, moved.end)
        else:
            merged.append(moved)
    return merged
