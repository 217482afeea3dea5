"""One member of a group, from its task to the event that says what was sampled."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable

import msgspec

from environments import Environment, Outcome, Policy, Tokenizer, TooLong
from schemas import EngineError, EnvironmentFault, Failure, GroupTask, Rollout, Timings

from .gate import Gate, RolloutSampler, TooLate

log = logging.getLogger("headrace.generator")
MESSAGE_LIMIT = 500
"""Characters of an environment's own error that the event keeps."""


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

    async def play(self, task: GroupTask, member: int, *, generator: str, attempt: int) -> Rollout:
        """Play to the end, or to a failure that retries did not cure; never raises for the environment's faults.

        Raises EngineError when the engine is unusable.
        """
        started_at = self._clock()
        for _ in range(self._retries + 1):
            played = await self._attempt(task, member)
            if played.failure is None or played.failure.kind not in ("environment", "timeout"):
                break
            log.warning("group %d member %d failed: %s", task.group, member, played.failure.message)
        return self._rollout(task, member, played, generator=generator, attempt=attempt, started_at=started_at)

    async def _attempt(self, task: GroupTask, member: int) -> Attempt:
        sampler = self._gate.sampler(f"{task.group}-{member}")
        policy = Policy(sampler, self._tokenizer, self._max_tokens)
        try:
            outcome, failure = await self._outcome(task, policy), None
            if sampler.fault is not None:  # The environment has caught it: what it made of it must not count.
                raise sampler.fault
        except Exception as error:
            outcome, failure = None, _failure(sampler.fault or error, self._play_timeout_s)
        finally:
            sampler.close()
        return Attempt(policy, sampler, outcome, failure)

    async def _outcome(self, task: GroupTask, policy: Policy) -> Outcome:
        environment = self._environments.get(task.env)
        if environment is None:
            raise EnvironmentFault(f"environment {task.env!r} is not in this generator's configuration")
        outcome = _checked(await self._played(environment, task, policy))
        if not policy.transcript().logprobs.size:
            raise EnvironmentFault("play returned without a reply: call policy.say at least once")
        return outcome

    async def _played(self, environment: Environment, task: GroupTask, policy: Policy) -> object:
        """What ``play`` returns. Raises TimeoutError for the time limit alone, CancelledError when we are cancelled."""
        try:
            async with asyncio.timeout(self._play_timeout_s) as limit:
                return await environment.play(task.task, policy)
        except TimeoutError as error:
            if limit.expired():
                raise
            raise EnvironmentFault(f"a TimeoutError of the environment's own: {error}") from error
        except asyncio.CancelledError as error:
            ours = asyncio.current_task()
            if ours is None or ours.cancelling():
                raise
            # Let through, it would end this member's task without a word, and the group would lack a member for good.
            raise EnvironmentFault("a cancellation of the environment's own left play: catch it there") from error

    def _rollout(
        self, task: GroupTask, member: int, played: Attempt, *, generator: str, attempt: int, started_at: float
    ) -> Rollout:
        transcript = played.policy.transcript()
        return Rollout(
            run=task.run,
            group=task.group,
            member=member,
            env=task.env,
            index=task.index,
            generator=generator,
            attempt=attempt,
            tokens=transcript.tokens.astype("<i4").tobytes(),
            logprobs=transcript.logprobs.astype("<f4").tobytes(),
            turns=transcript.turns,
            spans=transcript.spans,
            reward=None if played.outcome is None else played.outcome.reward,
            metrics={} if played.outcome is None else played.outcome.metrics,
            error=played.failure,
            swaps_during=played.sampler.swaps,
            timings=Timings(
                started_at=started_at,
                total_s=self._clock() - started_at,
                sampling_s=played.sampler.sampling_s,
            ),
        )


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


def _checked(outcome: object) -> Outcome:
    """``outcome`` as an event can carry it: in plain numbers (numpy's can't be encoded), finite, named in text."""
    if not isinstance(outcome, Outcome):
        raise EnvironmentFault(f"play returned {type(outcome).__name__}, not an Outcome")
    reward, metrics = float(outcome.reward), {name: float(value) for name, value in outcome.metrics.items()}
    if not all(math.isfinite(value) for value in (reward, *metrics.values())):
        raise EnvironmentFault(f"reward {reward} or a metric of {metrics} is not finite")
    for name in metrics:
        if not (isinstance(name, str) and name.isprintable()):
            raise EnvironmentFault(f"a metric is named {name!r}: names are printable text")
    return Outcome(reward=reward, metrics=metrics)


def _failure(error: Exception, play_timeout_s: float) -> Failure:
    """What the event says of ``error``. Raises it again when it is the engine's."""
    match error:
        case EngineError():
            raise error
        case TooLate():
            return Failure(kind="stale", message="its oldest token could no longer be trained in time")
        case TooLong():
            return Failure(kind="too_long", message=_clean(str(error)))
        case TimeoutError():
            return Failure(
                kind="timeout", message=f"play took longer than generator.play_timeout_s {play_timeout_s:g} s"
            )
    return Failure(kind="environment", message=_clean(f"{type(error).__name__}: {error}"))


def _clean(message: str) -> str:
    """``message`` as an event can carry it: bounded, and without halves of surrogate pairs, which are no UTF-8."""
    return message[:MESSAGE_LIMIT].encode("utf-8", "replace").decode()
