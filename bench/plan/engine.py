"""An engine that decodes at a set pace and computes nothing, so that many share a machine and none slows another.

A decoding step of b requests takes TOKEN_S + b * REQUEST_S and gives each of them a token. Lengths are log-normal, up
to what was asked for. It promises of the Engine protocol what swaps need; nothing can be learned from what it says.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Iterable
from pathlib import Path

from environments import Sample
from producers import Aborted, GeneratorSettings, SamplingRequest
from schemas import EngineError, PolicySettings, Span

TOKEN_S, REQUEST_S = 0.008, 0.0002
LOAD_S = 0.05
MEDIAN_TOKENS, SIGMA = 24.0, 0.5
FIRST, LAST = 3, 40
"""Token ids that it says: characters of the tiny model."""


class _Running:
    """A request with the engine."""

    def __init__(self, request: SamplingRequest, tokens: int, done: asyncio.Future[Sample]) -> None:
        self.request, self.tokens, self.done = request, tokens, done
        self.versions: list[int] = []


class PacedEngine:
    """See ``producers.Engine``."""

    token_s, request_s = TOKEN_S, REQUEST_S

    def __init__(self, model: Path, settings: GeneratorSettings, policy: PolicySettings, dtype: str, seed: int) -> None:
        self._random = random.Random(seed)
        self._running: dict[str, _Running] = {}
        self._work, self._open = asyncio.Event(), asyncio.Event()
        self._stepping = asyncio.Lock()
        self._loop: asyncio.Task[None] | None = None
        self._version = 0

    async def start(self) -> None:
        self._open.set()
        self._loop = asyncio.create_task(self._run())

    async def sample(self, request: SamplingRequest) -> Sample:
        drawn = round(MEDIAN_TOKENS * math.exp(SIGMA * self._random.gauss(0.0, 1.0)))
        tokens = max(1, min(request.max_tokens, drawn))
        running = _Running(request, tokens, asyncio.get_running_loop().create_future())
        self._running[request.id] = running
        self._work.set()
        try:
            return await running.done
        finally:
            self._running.pop(request.id, None)

    async def pause(self) -> None:
        self._open.clear()
        async with self._stepping:
            pass

    def unsampled(self) -> set[str]:
        return {id for id, running in self._running.items() if not running.versions}

    async def abort(self, ids: Iterable[str]) -> None:
        for id in set(ids):
            running = self._running.pop(id, None)
            if running is not None and not running.done.done():
                running.done.set_exception(Aborted(id))

    async def stage(self, folder: Path) -> None:
        """Nothing to prepare."""

    async def load(self, folder: Path) -> None:
        await asyncio.sleep(LOAD_S)

    async def label(self, version: int) -> None:
        self._version = version

    async def resume(self) -> None:
        self._open.set()

    async def stop(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait({self._loop})
        for running in self._running.values():
            if not running.done.done():
                running.done.set_exception(EngineError("the engine was stopped"))

    def gauges(self) -> dict[str, float]:
        return {"running": float(len(self._running)), "waiting": 0.0, "preemptions": 0.0, "silent_s": 0.0}

    async def _run(self) -> None:
        due = time.monotonic()
        while True:
            if not (self._open.is_set() and self._running):
                await self._open.wait()
                if not self._running:
                    self._work.clear()
                    await self._work.wait()
                due = time.monotonic()
                continue
            async with self._stepping:
                due += self.token_s + self.request_s * len(self._running)
                # What a busy machine is late with is made up for; more than a second of it is not.
                due = max(due, time.monotonic() - 1.0)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                self._step()

    def _step(self) -> None:
        for running in list(self._running.values()):
            running.versions.append(self._version)
            if len(running.versions) == running.tokens and not running.done.done():
                running.done.set_result(self._sample(running))

    def _sample(self, running: _Running) -> Sample:
        stops = running.tokens < running.request.max_tokens and bool(running.request.stop_ids)
        tokens = [self._random.randint(FIRST, LAST) for _ in range(running.tokens)]
        if stops:
            tokens[-1] = running.request.stop_ids[0]
        versions = running.versions[: running.tokens]
        starts = [i for i, version in enumerate(versions) if i == 0 or version != versions[i - 1]]
        ends = [*starts[1:], len(versions)]
        return Sample(
            tokens=tokens,
            logprobs=[-3.6] * running.tokens,
            spans=[Span(versions[start], start, end) for start, end in zip(starts, ends, strict=True)],
            finish="stop" if stops else "length",
            cached=0,
        )
