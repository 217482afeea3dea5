"""Swaps through the gate on real engines: labels, salts and cached prefixes proved at once by log-probabilities.

A log-probability that is wrong by more than rounding means a wrong label, a block of other weights, or both.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest
import pytest_asyncio
import torch
from transformers import Qwen3ForCausalLM

from environments import Sample
from producers import Engine, Gate, GeneratorSettings
from producers.generator import RolloutSampler, SwapReport
from producers.generator.vllm_engine import VllmEngine
from schemas import PolicySettings, Weights
from tests.examples import weights
from tests.stand_in.engine import StandInEngine
from tests.stand_in.tiny import VOCABULARY, make_tiny_model
from tests.waiting import eventually

PLACES, BLOCK = 8, 32
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


class Stage:
    """A gate on an engine, and two models that take turns: version v has the weights of model v % 2."""

    def __init__(self, engine: Engine, folders: list[Path], models: list[Qwen3ForCausalLM]) -> None:
        self.engine, self.folders, self.models = engine, folders, models
        self.random = random.Random(5)
        self.version = -1
        self.began = False

    async def gate(self, prefix: Literal["keep", "refresh"], *, bound: int = 1000) -> Gate:
        """A gate of its own for a test, on the shared engine, with weights that no test has seen before."""
        gate = Gate(self.engine, temperature=1.0, max_off_policy_steps=bound, abort_late=True, prefix_on_swap=prefix)
        if not self.began:
            await gate.start()
            self.began = True
        await self.swap(gate)
        return gate

    async def swap(self, gate: Gate) -> SwapReport:
        self.version += 1
        return await gate.swap(announced(self.version), self.folders[self.version % 2])

    def prompt(self, length: int) -> list[int]:
        return self.random.choices(range(3, VOCABULARY), k=length)

    def truth(self, tokens: list[int], sample: Sample, version: int) -> torch.Tensor:
        """Log-probabilities of the sampled tokens under the weights of ``version``, computed in one go."""
        ids = torch.tensor([tokens + sample.tokens])
        with torch.inference_mode():
            logits = self.models[version % 2](ids).logits[0, len(tokens) - 1 : -1]
        return logits.log_softmax(-1).gather(1, torch.tensor(sample.tokens)[:, None])[:, 0]

    def gap(self, tokens: list[int], sample: Sample, version: int) -> torch.Tensor:
        return (torch.tensor(sample.logprobs) - self.truth(tokens, sample, version)).abs()


def announced(version: int) -> Weights:
    return weights(version=version, sha256=hashlib.sha256(str(version).encode()).hexdigest())


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[
        pytest.param(StandInEngine, id="stand_in"),
        pytest.param(VllmEngine, id="vllm", marks=pytest.mark.engine),
    ],
)
async def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    root = tmp_path_factory.mktemp("models")
    folders = [root / "even", root / "odd"]
    models = [make_tiny_model(folder, seed) for seed, folder in enumerate(folders)]
    settings = GeneratorSettings(concurrency=PLACES, max_model_len=1024, kv_cache_gib=0.25)
    engine: Engine = request.param(folders[0], settings, PolicySettings(), "float32", 7)
    yield Stage(engine, folders, models)
    await engine.stop()


def say(rollout: RolloutSampler, tokens: list[int], max_tokens: int = 6) -> asyncio.Task[Sample]:
    return asyncio.create_task(rollout.sample(tokens, max_tokens=max_tokens, stop_ids=[]))


async def all_places_taken(stage: Stage, gate: Gate) -> list[asyncio.Task[Sample]]:
    """Long rollouts in every place of the engine, each with a token."""
    tasks = [say(gate.sampler(f"long-{i}"), stage.prompt(5), max_tokens=1000) for i in range(PLACES)]

    async def running() -> bool:
        return stage.engine.gauges()["running"] == PLACES

    await eventually(running)
    return tasks


async def test_members_of_a_group_share_their_prompts_blocks(stage: Stage) -> None:
    gate = await stage.gate("keep")
    prompt = stage.prompt(4 * BLOCK + 3)
    first = await say(gate.sampler("0"), prompt)
    others = await asyncio.gather(*[say(gate.sampler(str(i)), prompt) for i in (1, 2, 3)])
    assert [first.cached, *[each.cached for each in others]] == [0, 4 * BLOCK, 4 * BLOCK, 4 * BLOCK]


async def test_a_new_rollout_takes_nothing_from_the_cache_of_older_weights(stage: Stage) -> None:
    gate = await stage.gate("keep")
    prompt = stage.prompt(4 * BLOCK + 3)
    await say(gate.sampler("before"), prompt)
    await stage.swap(gate)
    after = await say(gate.sampler("after"), prompt)
    assert after.cached == 0
    assert stage.gap(prompt, after, stage.version).max() < 1e-3


async def test_neither_does_one_that_waited_or_came_during_the_swap(stage: Stage) -> None:
    gate = await stage.gate("keep")
    prompt = stage.prompt(4 * BLOCK + 3)
    await say(gate.sampler("before"), prompt)
    running = await all_places_taken(stage, gate)
    waiting = say(gate.sampler("waiting"), prompt)

    async def queued() -> bool:
        return stage.engine.gauges()["waiting"] == 1

    await eventually(queued)
    load, during = stage.engine.load, []

    async def load_while_one_comes(folder: Path) -> None:
        during.append(say(gate.sampler("during"), prompt))
        await asyncio.sleep(0)
        await load(folder)

    stage.engine.load = load_while_one_comes  # type: ignore[method-assign]
    try:
        report = await stage.swap(gate)
    finally:
        stage.engine.load = load  # type: ignore[method-assign]
    assert (report.kept, report.resubmitted) == (PLACES, 1)
    samples = [await waiting, await during[0]]
    # One of them computed the prompt anew, and the other shares it.
    assert sorted(sample.cached for sample in samples) in ([0, 0], [0, 4 * BLOCK])
    for sample in samples:
        assert [span.version for span in sample.spans] == [stage.version]
        assert stage.gap(prompt, sample, stage.version).max() < 1e-3
    assert [[span.version for span in (await task).spans] for task in running] == [
        [stage.version - 1, stage.version]
    ] * PLACES


@pytest.mark.parametrize(("prefix", "from_cache"), [("keep", 4 * BLOCK), ("refresh", 0)])
async def test_a_later_turn_after_a_swap_keeps_its_warm_prefix_or_prefills_again(
    stage: Stage, prefix: Literal["keep", "refresh"], from_cache: int
) -> None:
    gate = await stage.gate(prefix)
    rollout = gate.sampler("turns")
    prompt = stage.prompt(4 * BLOCK)
    first = await say(rollout, prompt, max_tokens=8)
    await stage.swap(gate)
    conversation = prompt + first.tokens + stage.prompt(4)
    second = await say(rollout, conversation)
    assert second.cached == from_cache
    assert [span.version for span in second.spans] == [stage.version]
    gap = stage.gap(conversation, second, stage.version).max()
    assert (gap < 1e-3) == (prefix == "refresh"), f"gap {gap:.2g}: kept KV differs, a fresh prefix does not"


@pytest.mark.parametrize("prefix", ["keep", "refresh"])
async def test_log_probabilities_over_many_swaps_are_those_of_the_labelled_weights(
    stage: Stage, prefix: Literal["keep", "refresh"], record_property: pytest.RecordProperty
) -> None:
    """Twenty swaps among sixty rollouts of two turns, most of which wait, with shared prompts of several blocks."""
    gate = await stage.gate(prefix)
    prompts = [stage.prompt(length) for length in (3, 2 * BLOCK + 5, 3 * BLOCK, 4 * BLOCK + 1)]
    turns: list[tuple[list[int], Sample, bool]] = []

    async def play(number: int) -> None:
        rollout, tokens = gate.sampler(f"storm-{number}"), list(prompts[number % len(prompts)])
        for _ in range(2):
            swaps_before, started = rollout.swaps, rollout.started
            sample = await say(rollout, tokens, max_tokens=stage.random.randint(1, 40))
            # With ``keep`` a later turn reads the prefix of its rollout's first weights.
            mixed_prefix = prefix == "keep" and started and (swaps_before > 0 or rollout.swaps > 0)
            turns.append((list(tokens), sample, len(sample.spans) == 1 and not mixed_prefix))
            tokens += sample.tokens + stage.prompt(3)
        rollout.close()

    playing = [asyncio.create_task(play(number)) for number in range(60)]
    done = 0
    for _ in range(20):
        done += 4

        async def enough(wanted: int = done) -> bool:
            return len(turns) >= wanted

        await eventually(enough)
        await stage.swap(gate)
    await asyncio.gather(*playing)
    exact = torch.cat([stage.gap(t, s, s.spans[0].version) for t, s, whole in turns if whole])
    crossing = [stage.gap(t, s, s.spans[-1].version) for t, s, whole in turns if not whole]
    assert len(turns) == 120, "a request was lost"
    assert exact.numel() > 300
    assert exact.mean() <= 1e-3
    assert exact.max() <= 1e-2
    assert crossing, "no request went across a swap: the test shows nothing"
    record_property("gap_of_crossing_requests_mean", float(torch.cat(crossing).mean()))
    print(f"exact: mean {exact.mean():.2g}, max {exact.max():.2g}; across a swap: {torch.cat(crossing).mean():.2g}")
