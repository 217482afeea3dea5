"""The gate before the engine: it makes a weight swap safe for requests, labels and cached prefixes.

The order of a swap is the guarantee, and each part was found by an experiment that broke the simpler one:

    stage the weights, while requests go on -> close the gate -> pause, keeping requests and their KV
    -> abort what must start anew or is too late -> load -> label -> resume -> open the gate
    -> the aborted requests come again, under the new salt

A request that would start a rollout and has no token yet when the engine pauses must not keep its salt: it would
read blocks computed under the old weights while its span names the new version. Hence it is aborted during
the pause and submitted again. A rollout with tokens keeps its salt over its turns (``keep``), and so its warm
prefix, or takes the current one with each turn (``refresh``).
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import msgspec

from environments import Sample
from schemas import EngineError, EnvironmentFault, Weights, WeightsError

from .engine import Aborted, Engine, SamplingRequest
from .lateness import too_late

SALT_DIGITS = 32


class TooLate(Exception):
    """The rollout holds tokens that are too old to be trained; it was given up."""


class SwapReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one swap took and did. Times in seconds."""

    version: int
    """Of the new weights."""
    stage_s: float
    """Making them ready for the engine, before the pause."""
    pause_s: float
    """From closing the gate to opening it again: no token was sampled meanwhile."""
    drain_s: float
    """Of which waiting for the step that was running."""
    load_s: float
    """Of which reading the weights into the engine."""
    kept: int
    """Requests that went on with their tokens and KV."""
    resubmitted: int
    """Requests without a token that start anew under the new salt."""
    aborted_stale: int
    """Rollouts given up because they could no longer be in time."""

    def details(self) -> dict[str, float]:
        """All but the version, by name: what the ``swapped`` event tells."""
        fields: dict[str, float] = msgspec.to_builtins(self)
        return {name: value for name, value in fields.items() if name != "version"}


class RolloutSampler:
    """The sampler of one rollout: remembers the salt it started under and its oldest token's version."""

    def __init__(self, gate: Gate, name: str, temperature: float) -> None:
        self._gate = gate
        self.name = name
        self.temperature = temperature
        self.salt: str | None = None
        """Salt of the rollout from its first token on; None before that."""
        self.oldest_version: int | None = None
        """Version of the oldest token sampled or being sampled."""
        self.too_late = False
        self.fault: Exception | None = None
        """What ended the rollout from below, whether the environment passed it on or not."""
        self.swaps = 0
        """Swaps lived through since the rollout started."""
        self.sampling_s = 0.0
        self._closed = False

    @property
    def started(self) -> bool:
        """Whether it has a token."""
        return self.oldest_version is not None

    async def sample(self, tokens: list[int], *, max_tokens: int, stop_ids: list[int]) -> Sample:
        """The reply to ``tokens``. Raises TooLate, or EngineError when the engine is unusable.

        Raises EnvironmentFault after ``close``: a play that goes on after its end gets nothing more.
        """
        if self._closed:
            raise EnvironmentFault("this play has ended: it was cancelled, or has returned before")
        began = time.monotonic()
        try:
            return await self._gate.sample(self, tokens, max_tokens=max_tokens, stop_ids=stop_ids)
        except (TooLate, EngineError) as error:
            self.fault = error
            raise
        finally:
            self.sampling_s += time.monotonic() - began

    def close(self) -> None:
        """The rollout has ended: it is no longer affected by swaps."""
        self._closed = True
        self._gate.forget(self)


class Gate:
    """Admits requests to ``engine`` and swaps its weights. Closed until the first ``swap``."""

    def __init__(
        self,
        engine: Engine,
        *,
        temperature: float,
        max_off_policy_steps: int,
        abort_late: bool,
        prefix_on_swap: Literal["keep", "refresh"],
    ) -> None:
        """``abort_late``: give up rollouts whose oldest token can no longer be in time (``stale = "drop"``)."""
        self._engine = engine
        self._temperature = temperature
        self._bound = max_off_policy_steps
        self._abort_late = abort_late
        self._keep_salt = prefix_on_swap == "keep"
        self._open = asyncio.Event()
        self._swapping = asyncio.Lock()
        self._rollouts: set[RolloutSampler] = set()
        self._requests: dict[str, RolloutSampler] = {}
        self._left = asyncio.Condition()
        self._numbers = itertools.count()
        self._advanced = asyncio.Condition()
        self._stopped = False
        self._busy_s, self._busy_since = 0.0, 0.0
        self.version: int | None = None
        self.salt = ""
        self.sampled_tokens = 0

    async def start(self) -> None:
        """Start the engine. The gate stays closed until weights are in place. Raises EngineError."""
        await self._engine.start()

    async def stop(self) -> None:
        """End the engine; what is in flight raises EngineError."""
        self._stopped = True
        await self._engine.stop()

    def engine_gauges(self) -> dict[str, float]:
        """What ``Engine.gauges`` tells; nothing after the end."""
        return {} if self._stopped else self._engine.gauges()

    def sampler(self, name: str, temperature: float | None = None) -> RolloutSampler:
        """A sampler for one new rollout, at a temperature of its own where one is given."""
        rollout = RolloutSampler(self, name, self._temperature if temperature is None else temperature)
        self._rollouts.add(rollout)
        return rollout

    def forget(self, rollout: RolloutSampler) -> None:
        """``rollout`` has ended."""
        self._rollouts.discard(rollout)

    async def until_version(self, least: int) -> None:
        """Wait until the engine has weights ``least`` or newer."""
        async with self._advanced:
            await self._advanced.wait_for(lambda: self.version is not None and self.version >= least)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[int]:
        """No swap within the block, which gets the version in use: all that is sampled in it is of that version.

        A swap that is asked for meanwhile begins after the block.
        """
        async with self._swapping:
            assert self.version is not None, "weights are held before any are in use"
            yield self.version

    @property
    def in_flight(self) -> int:
        """Requests that are with the engine."""
        return len(self._requests)

    @property
    def busy_s(self) -> float:
        """Seconds so far with at least one request in flight."""
        return self._busy_s + (time.monotonic() - self._busy_since if self._requests else 0.0)

    async def sample(
        self, rollout: RolloutSampler, tokens: list[int], *, max_tokens: int, stop_ids: list[int]
    ) -> Sample:
        """The next reply of ``rollout`` to ``tokens``, all of it so far; waits while the gate is closed.

        Raises TooLate when a swap gave the rollout up, EngineError when the engine is unusable.
        """
        while True:
            while not self._open.is_set():  # It may have closed again between our waking and our turn.
                await self._open.wait()
            if rollout.too_late:
                raise TooLate(rollout.name)
            request = self._request(rollout, tokens, max_tokens, stop_ids)
            # No await between the open gate and the engine's own registration of the request: otherwise a swap
            # could slip between them, and the request would carry the old salt into the new weights.
            self._enter(request.id, rollout)
            try:
                sample = await self._engine.sample(request)
            except Aborted:
                continue
            finally:
                await self._leave(request.id)
            self._record(rollout, request, sample)
            return sample

    def _request(
        self, rollout: RolloutSampler, tokens: list[int], max_tokens: int, stop_ids: list[int]
    ) -> SamplingRequest:
        salt = rollout.salt if rollout.salt is not None and self._keep_salt else self.salt
        return SamplingRequest(
            id=f"{rollout.name}-{next(self._numbers)}",
            tokens=tokens,
            salt=salt,
            max_tokens=max_tokens,
            temperature=rollout.temperature,
            stop_ids=stop_ids,
        )

    def _enter(self, request_id: str, rollout: RolloutSampler) -> None:
        if not self._requests:
            self._busy_since = time.monotonic()
        self._requests[request_id] = rollout

    async def _leave(self, request_id: str) -> None:
        del self._requests[request_id]
        if not self._requests:
            self._busy_s += time.monotonic() - self._busy_since
        async with self._left:
            self._left.notify_all()

    def _record(self, rollout: RolloutSampler, request: SamplingRequest, sample: Sample) -> None:
        self.sampled_tokens += len(sample.tokens)
        if rollout.salt is None:
            rollout.salt = request.salt
        if rollout.oldest_version is None and sample.spans:
            rollout.oldest_version = sample.spans[0].version

    async def swap(self, weights: Weights, folder: Path) -> SwapReport:
        """Put ``weights``, already verified in ``folder``, in place between two decoding steps.

        Raises WeightsError when they cannot be loaded: the engine then goes on with the weights that it has.
        Raises EngineError when the engine failed: it may then hold a mixture of weights and must not be used.
        """
        async with self._swapping:
            if self.version is not None and weights.version <= self.version:
                raise EngineError(f"weights {weights.version} do not follow weights {self.version}")
            staging = time.monotonic()
            await self._engine.stage(folder)
            began = time.monotonic()
            self._open.clear()
            await self._engine.pause()
            drained = time.monotonic()
            late, anew = self._classify(weights.version)
            kept = len(self._requests) - len(late) - len(anew)
            await self._abort(late + anew)
            loading = time.monotonic()
            try:
                await self._engine.load(folder)
            except WeightsError:  # Nothing was written: the old weights are whole, and go on.
                await self._engine.resume()
                self._open.set()
                raise
            await self._engine.label(weights.version)
            loaded = time.monotonic()
            await self._engine.resume()
            aborted_stale = self._advance(weights)
            self._open.set()
            ended = time.monotonic()
        async with self._advanced:
            self._advanced.notify_all()
        return SwapReport(
            version=weights.version,
            stage_s=began - staging,
            pause_s=ended - began,
            drain_s=drained - began,
            load_s=loaded - loading,
            kept=kept,
            resubmitted=len(anew),
            aborted_stale=aborted_stale,
        )

    def _classify(self, version: int) -> tuple[list[str], list[str]]:
        """Requests that are too late under weights ``version``, and those that must start anew."""
        unsampled = self._engine.unsampled()
        late, anew = [], []
        for request_id, rollout in self._requests.items():
            if request_id in unsampled:
                if rollout.salt is None or not self._keep_salt:
                    anew.append(request_id)
                    continue
            elif rollout.oldest_version is None:
                # Its first turn has tokens, all sampled since the last swap or kept over earlier ones.
                rollout.oldest_version = self.version
            if self._is_late(rollout, version):
                late.append(request_id)
        return late, anew

    def _is_late(self, rollout: RolloutSampler, version: int) -> bool:
        return self._abort_late and too_late(rollout.oldest_version, version=version, bound=self._bound)

    async def _abort(self, request_ids: Iterable[str]) -> None:
        """Abort requests, and wait until each has left the engine: loading must not begin before."""
        leaving = set(request_ids)
        if leaving:
            await self._engine.abort(leaving)
            async with self._left:
                await self._left.wait_for(lambda: leaving.isdisjoint(self._requests))

    def _advance(self, weights: Weights) -> int:
        """Take over the new version and salt; mark rollouts that are too late, also those between two turns."""
        self.version, self.salt = weights.version, weights.sha256[:SALT_DIGITS]
        newly_late = 0
        for rollout in self._rollouts:
            if rollout.started:
                rollout.swaps += 1
            if not rollout.too_late and self._is_late(rollout, weights.version):
                rollout.too_late = True
                newly_late += 1
        return newly_late
