"""An engine that starts at once: small models, plain torch, the same promises as vLLM.

``generator.engine = "tests.stand_in.engine:StandInEngine"``. It batches continuously, samples truly, queues what finds
no place, and keeps a prefix cache that can be stale. tests/producers/generator/test_engine.py tests it and vLLM alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import torch

from environments import Sample
from producers.generator.checkpoint import check_shapes, tensor_shapes
from producers.generator.engine import Aborted, SamplingRequest, check_request
from producers.generator.settings import GeneratorSettings
from schemas import EngineError, PolicySettings, Span

from .model import Cache, Model
from .prefix_cache import BLOCK_TOKENS, Block, PrefixCache, Read

GIB = 1024**3


class _Running:
    """A request with the engine, from submission to its end."""

    def __init__(self, request: SamplingRequest, done: asyncio.Future[Sample]) -> None:
        self.request = request
        self.done = done
        self.tokens = list(request.tokens)
        """Prompt and what was sampled; all but the last of them are in the cache once it runs."""
        self.kv_versions: list[int] = []
        """Version under which each cached token's keys and values were computed; the oldest of a shared block's."""
        self.cache: Cache | None = None
        self.cached = 0
        self.logprobs: list[float] = []
        self.versions: list[int] = []

    @property
    def sampled(self) -> list[int]:
        return self.tokens[len(self.request.tokens) :]


class StandInEngine:
    """See ``producers.generator.engine.Engine``."""

    def __init__(self, model: Path, settings: GeneratorSettings, policy: PolicySettings, dtype: str, seed: int) -> None:
        self._folder, self._settings, self._dtype = model, settings, dtype
        self._random = torch.Generator().manual_seed(seed)
        self._waiting: list[_Running] = []
        self._running: list[_Running] = []
        self._work = asyncio.Event()
        self._open = asyncio.Event()
        self._stepping = asyncio.Lock()
        self._loop: asyncio.Task[None] | None = None
        self._dead: EngineError | None = EngineError("the stand-in was not started")
        self._version: int | None = None
        self.reads: list[Read] = []
        """What each request took from the prefix cache, in the order in which they began."""

    async def start(self) -> None:
        torch.set_num_threads(self._settings.threads)
        self._shapes = await asyncio.to_thread(tensor_shapes, self._folder)
        self._model = await asyncio.to_thread(Model, self._folder, self._dtype, self._settings.max_model_len)
        token_bytes = self._model.layers * 2 * self._model.kv_heads * self._model.head_dim * self._model.dtype.itemsize
        self._prefixes = PrefixCache(max(1, int(self._settings.kv_cache_gib * GIB) // (token_bytes * BLOCK_TOKENS)))
        self._dead = None
        self._open.set()
        self._loop = asyncio.create_task(self._run())

    async def sample(self, request: SamplingRequest) -> Sample:
        self._check_alive()
        if self._version is None:
            raise EngineError("the engine has no version label: call label() before the first request")
        check_request(request, self._settings.max_model_len)
        running = _Running(request, asyncio.get_running_loop().create_future())
        self._waiting.append(running)
        self._work.set()
        try:
            return await running.done
        finally:
            self._forget(running)

    async def pause(self) -> None:
        self._check_alive()
        self._open.clear()
        async with self._stepping:
            pass

    def unsampled(self) -> set[str]:
        return {running.request.id for running in self._unfinished() if not running.versions}

    async def abort(self, ids: Iterable[str]) -> None:
        wanted = set(ids)
        for running in [running for running in self._unfinished() if running.request.id in wanted]:
            self._forget(running)
            running.done.set_exception(Aborted(running.request.id))

    async def stage(self, folder: Path) -> None:
        self._check_alive()
        check_shapes(folder, self._shapes)

    async def load(self, folder: Path) -> None:
        self._check_alive()
        check_shapes(folder, self._shapes)
        await asyncio.to_thread(self._model.load, folder)

    async def label(self, version: int) -> None:
        self._check_alive()
        self._version = version

    async def resume(self) -> None:
        self._check_alive()
        self._open.set()

    async def stop(self) -> None:
        self.die("the stand-in was stopped")
        if self._loop is not None:
            await asyncio.wait({self._loop})

    def gauges(self) -> dict[str, float]:
        counts = {"running": float(len(self._running)), "waiting": float(len(self._waiting))}
        return counts | {"preemptions": 0.0, "silent_s": 0.0}  # It is this process: it cannot be silent alone.

    def die(self, reason: str = "the stand-in was told to die") -> None:
        """Fail like an engine whose process ended: now, and for good."""
        self._dead = EngineError(f"{reason}: start the generator again")
        for running in self._unfinished():
            running.done.set_exception(self._dead)
        self._waiting, self._running = [], []
        if self._loop is not None:
            self._loop.cancel()

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise self._dead

    def _unfinished(self) -> list[_Running]:
        return [running for running in self._waiting + self._running if not running.done.done()]

    def _forget(self, running: _Running) -> None:
        for requests in (self._waiting, self._running):
            if running in requests:
                requests.remove(running)

    async def _run(self) -> None:
        try:
            while True:
                await self._open.wait()
                await self._work.wait()
                async with self._stepping:
                    if self._open.is_set():
                        await self._step()
                if not self._waiting and not self._running:
                    self._work.clear()
        except Exception as error:
            self.die(f"the stand-in failed: {type(error).__name__}: {error}")

    async def _step(self) -> None:
        """One token for every running request, and a first one for those that find a place."""
        assert self._version is not None
        decoding = list(self._running)
        free = self._settings.concurrency - len(decoding)
        admitted, self._waiting = self._waiting[:free], self._waiting[free:]
        self._running += admitted
        batches = [[running] for running in admitted] + ([decoding] if decoding else [])
        for batch in batches:
            picks = await asyncio.to_thread(self._compute, batch, self._version)
            for running, (token, logprob) in zip(batch, picks, strict=True):
                self._take(running, token, logprob, self._version)

    def _compute(self, batch: list[_Running], version: int) -> list[tuple[int, float]]:
        """Token and its log-probability for each request of the batch; fills caches."""
        for running in batch:
            if running.cache is None:
                self._begin(running, version)
        caches = [running.cache for running in batch if running.cache is not None]
        new = [running.tokens[cache.length :] for running, cache in zip(batch, caches, strict=True)]
        logits_BV = self._model.forward(new, caches)
        for running, tokens in zip(batch, new, strict=True):
            self._keep_blocks(running, len(tokens), version)
        temperatures_B1 = torch.tensor([[running.request.temperature] for running in batch])
        logprobs_BV = (logits_BV / temperatures_B1).log_softmax(-1)
        picked_B1 = torch.multinomial(logprobs_BV.exp(), 1, generator=self._random)
        values = logprobs_BV.gather(1, picked_B1)[:, 0].tolist()
        return list(zip(picked_B1[:, 0].tolist(), values, strict=True))

    def _begin(self, running: _Running, version: int) -> None:
        request = running.request
        running.cache = cache = Cache(self._model, self._settings.max_model_len)
        blocks = list(self._prefixes.find(request.salt, request.tokens))
        for block in blocks:
            cache.kv_L2CKD[:, :, cache.length : cache.length + BLOCK_TOKENS] = block.kv
            cache.length += BLOCK_TOKENS
            running.kv_versions += [min(block.versions)] * BLOCK_TOKENS
        running.cached = cache.length
        self.reads.append(Read(request.id, request.salt, version, tuple(block.versions for block in blocks)))

    def _keep_blocks(self, running: _Running, new: int, version: int) -> None:
        """Offer the blocks that the last ``new`` tokens completed."""
        assert running.cache is not None
        before = len(running.kv_versions)
        running.kv_versions += [version] * new
        for end in range((before // BLOCK_TOKENS + 1) * BLOCK_TOKENS, before + new + 1, BLOCK_TOKENS):
            versions = frozenset(running.kv_versions[end - BLOCK_TOKENS : end])
            kv = running.cache.kv_L2CKD[:, :, end - BLOCK_TOKENS : end].clone()
            self._prefixes.keep(running.request.salt, running.tokens[:end], Block(versions, kv))

    def _take(self, running: _Running, token: int, logprob: float, version: int) -> None:
        running.tokens.append(token)
        running.logprobs.append(logprob)
        running.versions.append(version)
        if running.done.done():  # aborted or cancelled while the step ran
            return
        stopped = token in running.request.stop_ids
        if stopped or len(running.sampled) == running.request.max_tokens:
            self._forget(running)
            running.done.set_result(
                Sample(
                    tokens=running.sampled,
                    logprobs=running.logprobs,
                    spans=_spans(running.versions),
                    finish="stop" if stopped else "length",
                    cached=running.cached,
                )
            )


def _spans(versions: list[int]) -> list[Span]:
    starts = [i for i, version in enumerate(versions) if i == 0 or version != versions[i - 1]]
    return [Span(versions[start], start, end) for start, end in zip(starts, [*starts[1:], len(versions)], strict=True)]
