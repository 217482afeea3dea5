"""The handle by which an environment talks to the policy; it records each turn token by token.

What is trained is exactly what was sampled: reply tokens are kept as the engine gave them, never
decoded and encoded again. A rollout is one sequence: context, reply, context, reply, ...

Shape legend: T tokens of the sequence, S sampled tokens of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from schemas import GREATEST_LOGPROB, LEAST_LOGPROB, EngineError, EnvironmentFault, Span, Turn

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


class Transcript(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What was said so far, in the form that a Rollout carries."""

    tokens: npt.NDArray[np.int32]
    """int32 [T]: for each turn its context, then its reply."""
    logprobs: npt.NDArray[np.float32]
    """float32 [S]: log-probability of each sampled token after temperature."""
    turns: list[Turn]
    spans: list[Span]
    """Weights versions over 0 to S, merged over turns."""


class Policy:
    """One rollout's conversation with the policy."""

    def __init__(self, sampler: Sampler, tokenizer: Tokenizer, max_tokens_total: int) -> None:
        """``max_tokens_total``: most tokens T of the whole conversation."""
        self._sampler = sampler
        self._tokenizer = tokenizer
        self._max_tokens_total = max_tokens_total
        self._tokens: list[int] = []
        self._logprobs: list[float] = []
        self._turns: list[Turn] = []
        self._spans: list[Span] = []
        self._speaking = False
        self.fault: EngineError | None = None
        """What the engine returned that cannot be recorded, whether the environment passed it on or not."""

    async def say(self, text: str, *, max_tokens: int | None = None, stop: str | None = None) -> Reply:
        """Add ``text`` to the conversation and return the policy's reply to it.

        The reply ends with the model's end token, with ``stop`` (which must be one token of the model),
        after ``max_tokens`` tokens, or when the conversation is full.
        Raises TooLong when ``text`` leaves no room for a reply, EnvironmentFault for a ``stop`` that is not one
        token or an impossible ``max_tokens``, EngineError for a sample that cannot be recorded.
        """
        if self._speaking:
            raise EnvironmentFault("policy.say was called while another reply was being sampled: await each reply")
        if max_tokens is not None and max_tokens < 1:
            raise EnvironmentFault(f"policy.say got max_tokens={max_tokens}: a reply has at least one token")
        context = self._tokenizer.encode(text)
        prefix = self._tokens + context
        stop_ids = [self._tokenizer.end_id] if stop is None else [self._tokenizer.end_id, self._stop_id(stop)]
        limit = self._room(prefix) if max_tokens is None else min(max_tokens, self._room(prefix))
        self._speaking = True
        try:
            sample = await self._sampler.sample(prefix, max_tokens=limit, stop_ids=stop_ids)
        finally:
            self._speaking = False
        try:
            _check(sample, limit, stop_ids)
            self._record(prefix, len(context), sample)
        except EngineError as error:
            self.fault = error
            raise
        spoken = sample.tokens[:-1] if sample.finish == "stop" else sample.tokens
        return Reply(text=self._tokenizer.decode(spoken), finish=sample.finish, tokens=len(sample.tokens))

    def transcript(self) -> Transcript:
        """All finished turns. Valid after a failed turn too: that one is not in it."""
        return Transcript(
            tokens=np.array(self._tokens, dtype=np.int32),
            logprobs=np.array(self._logprobs, dtype=np.float32),
            turns=list(self._turns),
            spans=list(self._spans),
        )

    def _stop_id(self, stop: str) -> int:
        ids = self._tokenizer.encode(stop)
        if len(ids) != 1:
            raise EnvironmentFault(
                f"stop {stop!r} is {len(ids)} tokens of this model: use a text that is exactly one, or no stop"
            )
        return ids[0]

    def _room(self, prefix: Sequence[int]) -> int:
        """Tokens that a reply to ``prefix`` may have: at least one."""
        if not prefix:
            raise EnvironmentFault("the conversation began with an empty text: give the first turn a prompt")
        room = self._max_tokens_total - len(prefix)
        if room < 1:
            raise TooLong(
                f"{len(prefix)} tokens of conversation leave no room for a reply within {self._max_tokens_total}: "
                "shorten the environment's texts or raise generator.max_model_len"
            )
        return room

    def _record(self, prefix: list[int], n_context: int, sample: Sample) -> None:
        spans = _merged(self._spans, sample.spans, offset=len(self._logprobs))
        self._tokens = prefix + sample.tokens
        self._logprobs += sample.logprobs
        self._spans = spans
        self._turns.append(
            Turn(context=n_context, sampled=len(sample.tokens), cached=sample.cached, finish=sample.finish)
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
