"""The hot swap: how long no token is sampled, against draining the engine; and decoding while weights are fetched.

python -m bench.swap [SWAPS]: the demo's model on real vLLM, 64 requests in flight.
"""

from __future__ import annotations

import asyncio
import hashlib
import statistics
import tempfile
import time
from pathlib import Path

from bench.report import Reach, arguments, report
from bus import FileWeights
from headrace.models import make_tiny
from producers import Gate, GeneratorSettings
from producers.generator.vllm_engine import VllmEngine
from schemas import PolicySettings, Weights

IN_FLIGHT, TOKENS = 64, 200
FETCHED_BYTES = 270 * 1024 * 1024
"""SmolLM2-135M in bfloat16."""


def weights(version: int) -> Weights:
    digest = hashlib.sha256(str(version).encode()).hexdigest()
    return Weights(
        run="bench", version=version, sha256=digest, size_bytes=0, location=f"file:{digest}", dtype="float32"
    )


class Load:
    """Keeps IN_FLIGHT requests with the gate, each of a rollout of its own."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.admitting = True
        self._tasks = [asyncio.create_task(self._ask(number)) for number in range(IN_FLIGHT)]

    async def _ask(self, number: int) -> None:
        while self.admitting:
            rollout = self._gate.sampler(str(number))
            await rollout.sample([3 + number % 40] * 8, max_tokens=TOKENS, stop_ids=[])
            rollout.close()

    async def drained(self) -> None:
        self.admitting = False
        await asyncio.gather(*self._tasks)


async def tokens_per_s(gate: Gate, seconds: float) -> float:
    """Sampled tokens of finished requests, over a window that is long against one request."""
    before, began = gate.sampled_tokens, time.perf_counter()
    await asyncio.sleep(seconds)
    return (gate.sampled_tokens - before) / (time.perf_counter() - began)


async def measure(model: Path, swaps: int, root: Path) -> None:
    engine = VllmEngine(model, GeneratorSettings(concurrency=IN_FLIGHT), PolicySettings(), "float32", 0)
    gate = Gate(engine, temperature=1.0, max_off_policy_steps=10**6, abort_late=False, prefix_on_swap="keep")
    await gate.start()
    await gate.swap(weights(0), model)
    load = Load(gate)
    await tokens_per_s(gate, 5.0)
    reports = []
    for version in range(1, swaps + 1):
        reports.append(await gate.swap(weights(version), model))
        await asyncio.sleep(0.3)
    decoding = await tokens_per_s(gate, 20.0)
    store = FileWeights(root, 0)
    stored = await store.put(bytes(FETCHED_BYTES), version=1)
    announced = Weights(
        run="bench", version=1, sha256=stored.sha256, size_bytes=stored.size_bytes, location=stored.location,
        dtype="bfloat16",
    )  # fmt: skip
    fetching, fetches = True, 0

    async def fetch_again_and_again() -> None:
        nonlocal fetches
        while fetching:
            await store.fetch(announced)
            fetches += 1

    task = asyncio.create_task(fetch_again_and_again())
    meanwhile = await tokens_per_s(gate, 20.0)
    fetching = False
    await task
    began = time.perf_counter()
    await load.drained()
    last = await gate.swap(weights(swaps + 1), model)
    drain_s = time.perf_counter() - began
    await gate.stop()
    pauses = [each.pause_s for each in reports]
    kept = statistics.mean(each.kept for each in reports)
    report(
        f"{swaps} swaps with {IN_FLIGHT} requests of {TOKENS} tokens in flight",
        [
            ("pause, median and greatest", f"{1e3 * statistics.median(pauses):.0f} and {1e3 * max(pauses):.0f} ms"),
            ("of which draining the running step", f"{1e3 * statistics.median(r.drain_s for r in reports):.0f} ms"),
            ("of which loading", f"{1e3 * statistics.median(r.load_s for r in reports):.0f} ms"),
            ("requests kept with their KV", f"{kept:.0f} of {IN_FLIGHT}"),
            ("draining the engine instead", f"{drain_s:.2f} s ({drain_s / statistics.median(pauses):.0f} x)"),
            ("pause of the swap after draining", f"{1e3 * last.pause_s:.0f} ms"),
            ("decoding", f"{decoding:.0f} tokens/s"),
            (
                f"decoding while {FETCHED_BYTES >> 20} MiB are fetched and verified",
                f"{meanwhile:.0f} tokens/s ({meanwhile / decoding:.2f} x), {fetches} times in 20 s",
            ),
        ],
        [
            Reach("swap pause, median s", 0.25, statistics.median(pauses)),
            Reach("decoding during prefetch, share", 0.3, meanwhile / decoding, "higher"),
        ],
    )


def main() -> None:
    swaps = int(next(iter(arguments()), 20))
    with tempfile.TemporaryDirectory() as root:
        make_tiny(Path(root) / "tiny")
        asyncio.run(measure(Path(root) / "tiny", swaps, Path(root) / "weights"))


if __name__ == "__main__":
    main()
