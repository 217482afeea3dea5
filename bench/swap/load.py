"""Requests that are always in flight, and a count of the tokens that they got."""

from __future__ import annotations

import asyncio
import hashlib
import random
from pathlib import Path

from producers import Gate
from producers.generator.vllm_engine import VllmEngine
from schemas import Weights


def weights(version: int, dtype: str, series: str = "") -> Weights:
    """What announces ``version``. Salts come of its digest: versions of different ``series`` share no cached prefix."""
    digest = hashlib.sha256(f"{series} {version}".encode()).hexdigest()
    return Weights(run="bench", version=version, sha256=digest, size_bytes=0, location=f"file:{digest}", dtype=dtype)


class BenchEngine(VllmEngine):
    """vLLM, that can also be given weights for which nothing was prepared."""

    prepares = True

    async def stage(self, folder: Path) -> None:
        if self.prepares:
            await super().stage(folder)

    def running_tokens(self) -> int:
        """Sampled so far by requests that run."""
        states = self._alive().output_processor.request_states.values()
        return sum(state.detokenizer.num_output_tokens() for state in states if state.detokenizer is not None)


class RestartingGate(Gate):
    """A gate that can also swap as an engine does that keeps nothing: all requests are aborted and begin again."""

    def __init__(self, engine: BenchEngine) -> None:
        super().__init__(engine, temperature=1.0, max_off_policy_steps=10**6, abort_late=False, prefix_on_swap="keep")
        self.engine = engine
        self.restarts = False
        self.lost = 0
        """Tokens that restarts threw away."""

    def tokens(self) -> int:
        """Sampled so far, by finished and by running requests; what was thrown away does not count."""
        return self.sampled_tokens + self.engine.running_tokens()

    def _classify(self, version: int) -> tuple[list[str], list[str]]:
        if not self.restarts:
            return super()._classify(version)
        self.lost += self.engine.running_tokens()
        return [], list(self._requests)


class Load:
    """Keeps ``in_flight`` requests with the gate, each of a rollout of its own."""

    def __init__(self, gate: Gate, in_flight: int, tokens: int) -> None:
        self._gate = gate
        self._tokens = tokens
        self._ended = False
        self._admits = asyncio.Event()
        self._admits.set()
        self._tasks = [asyncio.create_task(self._ask(number)) for number in range(in_flight)]

    async def _ask(self, number: int) -> None:
        lengths = random.Random(number)
        while not self._ended:
            await self._admits.wait()
            rollout = self._gate.sampler(str(number))
            length = lengths.randint(self._tokens // 2, self._tokens * 3 // 2)
            await rollout.sample([3 + number % 40] * 8, max_tokens=length, stop_ids=[])
            rollout.close()

    async def hold(self) -> None:
        """Start no more requests, and wait for those that run."""
        self._admits.clear()
        while self._gate.in_flight:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    def go_on(self) -> None:
        self._admits.set()

    async def end(self) -> None:
        self._ended = True
        self._admits.set()
        await asyncio.gather(*self._tasks)
