"""One play, of a group's member or for an evaluation: from the task to the event that says what was sampled."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

from environments import Environment, Outcome, Policy, Tokenizer, TooLong, checked_outcome
from producers.held_out import Drawn
from schemas import (
    EngineError,
    EnvironmentFault,
    Evaluated,
    Failure,
    GroupTask,
    Rollout,
    Task,
    Timings,
)

from .gate import Gate, RolloutSampler, TooLate

log = logging.getLogger("headrace.generator")
MESSAGE_LIMIT = 500
"""Characters of an environment's own error that the event keeps."""
CANCEL_S = 1.0
"""A play that goes on for so long after it was cancelled is left behind."""


class OutOfTime(Exception):
    """A play took longer than it may."""


class EvaluationPlay(msgspec.Struct, frozen=True):
    """One play that an evaluation needs."""

    version: int
    env: str
    task: int
    """Number among the environment's evaluation tasks."""
    sample: int
    """Which play of that task, from 0."""
    drawn: Drawn


class Attempt(msgspec.Struct, frozen=True):
    """One play of a member: what was recorded, and how it ended."""

    policy: Policy
    sampler: RolloutSampler
    outcome: Outcome | None
    failure: Failure | None


class Player:
    """Plays members of groups on one gate, with retries and a time limit."""

    def __init__(
        self,
        gate: Gate,
        tokenizer: Tokenizer,
        environments: dict[str, Environment],
        *,
        max_tokens: int,
        play_timeout_s: float,
        retries: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``environments``: by their names in the configuration.

        ``max_tokens``: of one rollout, context and replies together. ``play_timeout_s``: of one play, in seconds.
        ``retries``: further plays after an environment's fault or a timeout. ``clock``: seconds since the epoch.
        """
        self._gate = gate
        self._tokenizer = tokenizer
        self._environments = environments
        self._max_tokens = max_tokens
        self._play_timeout_s = play_timeout_s
        self._retries = retries
        self._clock = clock
        self._left_behind: set[asyncio.Task[object]] = set()

    def knows(self, env: str) -> bool:
        """Whether ``env`` is one of the environments."""
        return env in self._environments

    async def play(self, task: GroupTask, member: int, *, generator: str, attempt: int) -> Rollout:
        """Play to the end, or to a failure that retries did not cure; never raises for the environment's faults.

        Raises EngineError when the engine is unusable.
        """
        started_at = self._clock()
        played = await self._retried(f"{task.group}-{member}", task.env, task.task, None)
        return Rollout(
            run=task.run,
            group=task.group,
            member=member,
            env=task.env,
            index=task.index,
            generator=generator,
            attempt=attempt,
            swaps_during=played.sampler.swaps,
            **self._record(played, started_at),
        )

    async def evaluate(self, play: EvaluationPlay, *, run: str, generator: str, temperature: float) -> Evaluated:
        """As ``play``, for an evaluation: at a temperature of its own, and with the weights held (``Gate.held``)."""
        started_at = self._clock()
        name = f"v{play.version}-{play.env}-{play.task}-{play.sample}"
        played = await self._retried(name, play.env, play.drawn.task, temperature)
        return Evaluated(
            run=run,
            version=play.version,
            env=play.env,
            task=play.task,
            sample=play.sample,
            index=play.drawn.index,
            generator=generator,
            **self._record(played, started_at),
        )

    async def _retried(self, name: str, env: str, task: Task, temperature: float | None) -> Attempt:
        """The first play that no retry could better, or the last; ``temperature``: None for the run's own."""
        for _ in range(self._retries + 1):
            played = await self._attempt(name, env, task, temperature)
            if played.failure is None or played.failure.kind not in ("environment", "timeout"):
                break
            log.warning("play %s of %s failed: %s", name, env, played.failure.message)
        return played

    def _record(self, played: Attempt, started_at: float) -> dict[str, Any]:
        """What both events say of a play, by field."""
        transcript, outcome = played.policy.transcript(), played.outcome
        return {
            "tokens": transcript.tokens.astype("<i4", copy=False).tobytes(),
            "logprobs": transcript.logprobs.astype("<f4", copy=False).tobytes(),
            "turns": transcript.turns,
            "spans": transcript.spans,
            "starts": transcript.starts,
            "reward": None if outcome is None else outcome.reward,
            "metrics": {} if outcome is None else outcome.metrics,
            "error": played.failure,
            "timings": Timings(
                started_at=started_at,
                total_s=self._clock() - started_at,
                sampling_s=played.sampler.sampling_s,
            ),
        }

    async def _attempt(self, name: str, env: str, task: Task, temperature: float | None) -> Attempt:
        sampler = self._gate.sampler(name, temperature)
        policy = Policy(sampler, self._tokenizer, self._max_tokens)
        try:
            outcome, failure = await self._outcome(env, task, policy), None
            # The environment may have caught the first: what it made of it must not count.
            if fault := sampler.fault or policy.fault:
                raise fault
        except Exception as error:
            outcome, failure = None, self._failure(error, sampler.fault or policy.fault)
        finally:
            sampler.close()
        return Attempt(policy, sampler, outcome, failure)

    async def _outcome(self, env: str, task: Task, policy: Policy) -> Outcome:
        return checked_outcome(await self._played(self._environments[env], task, policy), policy.transcript())

    async def _played(self, environment: Environment, task: Task, policy: Policy) -> object:
        """What ``play`` returns. Raises OutOfTime at the time limit, whatever ``play`` makes of its cancellation."""
        # In a task of its own: it can cancel itself and nobody else, and be left behind when it does not end.
        playing = asyncio.create_task(_guarded(environment, task, policy))
        try:
            done, _ = await asyncio.wait({playing}, timeout=self._play_timeout_s)
            if not done:
                raise OutOfTime
            if playing.cancelled():
                raise EnvironmentFault("a cancellation of the environment's own left play: catch it there")
            return playing.result()
        finally:
            if not playing.done():
                await self._end(playing, environment)

    async def _end(self, playing: asyncio.Task[object], environment: Environment) -> None:
        playing.cancel()
        await asyncio.wait({playing}, timeout=CANCEL_S)
        if playing.done():
            playing.cancelled() or playing.exception()  # Taken note of, so that asyncio does not complain about it.
            return
        name = type(environment).__name__
        log.error("a play of %s goes on although it was cancelled: let CancelledError pass in it", name)
        self._left_behind.add(playing)
        playing.add_done_callback(self._left_behind.discard)

    def _failure(self, error: Exception, fault: Exception | None) -> Failure:
        """What the event says of ``error``, or of ``fault``, which came from below. Raises the engine's again."""
        match fault or error:
            case EngineError() if fault is not None:
                raise fault
            case TooLate():
                return Failure(kind="stale", message="its oldest token could no longer be trained in time")
            case TooLong():
                return Failure(kind="too_long", message=_clean(str(error)))
            case OutOfTime():
                limit = f"generator.play_timeout_s {self._play_timeout_s:g} s"
                return Failure(kind="timeout", message=f"play took longer than {limit}")
        return Failure(kind="environment", message=_in_words(error))


def failed_rollout(task: GroupTask, member: int, failure: Failure, *, generator: str, attempt: int) -> Rollout:
    """A member that was not played at all."""
    return Rollout(
        run=task.run,
        group=task.group,
        member=member,
        env=task.env,
        index=task.index,
        generator=generator,
        attempt=attempt,
        tokens=b"",
        logprobs=b"",
        turns=[],
        spans=[],
        reward=None,
        error=failure,
        timings=Timings(started_at=time.time(), total_s=0.0, sampling_s=0.0),
    )


async def _guarded(environment: Environment, task: Task, policy: Policy) -> object:
    """What ``play`` returns. Raises nothing that would end more than the play."""
    try:
        return await environment.play(task, policy)
    except (Exception, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        # asyncio would end the process with sys.exit's, and whoever supervises it would take that for an orderly end.
        raise EnvironmentFault(f"{type(error).__name__} left play: an environment must not end its process") from error


def _in_words(error: BaseException) -> str:
    """Class and text of ``error``; of a group, those of its first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    try:
        text = str(error)
    except Exception as fault:
        text = f"(its text cannot be had: {type(fault).__name__})"
    return _clean(f"{type(error).__name__}: {text}")


def _clean(message: str) -> str:
    """``message`` as an event can carry it: bounded, and without halves of surrogate pairs, which are no UTF-8."""
    return message[:MESSAGE_LIMIT].encode("utf-8", "replace").decode()
