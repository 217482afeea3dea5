"""The trainer gives what vLLM sampled the log-probabilities that vLLM gave it, from a directory and after a swap."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from consumers.trainer import TrainerSettings
from consumers.trainer.micro_batch import MicroBatch
from consumers.trainer.packing import Document, build_micro_batches
from environments import Sample
from headrace.models import fetch
from producers.generator.engine import SamplingRequest
from producers.generator.settings import GeneratorSettings
from producers.generator.vllm_engine import VllmEngine
from schemas import PolicySettings
from tests.consumers.trainer.tiny_models import VOCABULARY, make_model, sharded

pytestmark = pytest.mark.timeout(600)
TEMPERATURE = 0.9
PROMPTS = (1, 7, 33, 60)
"""Lengths."""


def batch_of(prompts: Sequence[list[int]], samples: Sequence[Sample]) -> MicroBatch:
    """All of them in one row for each, as a step packs what it trains."""
    documents = []
    for prompt, sample in zip(prompts, samples, strict=True):
        tokens = np.array([*prompt, *sample.tokens], np.int32)
        documents.append(
            Document(
                tokens=tokens, trained=[slice(len(prompt), len(tokens))], exact=True,
                logprobs=np.array(sample.logprobs, np.float32), advantage=1.0,
            )
        )  # fmt: skip
    (batch,) = build_micro_batches([[[number] for number in range(len(documents))]], documents)
    return batch


async def sampled(engine: VllmEngine, prompts: Sequence[list[int]], tag: str) -> list[Sample]:
    requests = [
        SamplingRequest(
            id=f"{tag}-{number}", tokens=prompt, salt=f"{tag}-{number}", max_tokens=60, temperature=TEMPERATURE,
            stop_ids=[],
        )
        for number, prompt in enumerate(prompts)
    ]  # fmt: skip
    return await asyncio.gather(*map(engine.sample, requests))


async def staged_folder(engine: VllmEngine) -> str | None:
    """What a load would take over from the engine's worker, instead of reading it."""
    [folder] = await engine._alive().collective_rpc("staged_folder")
    return folder


async def gaps(model: Path, folder: Path, vocabulary: int, *, staged: bool = True) -> list[float]:
    """Mean absolute gap under the directory's weights, and under those that two steps made of them.

    ``staged``: whether the engine can make those ready before they are loaded.
    """
    engine = VllmEngine(
        model, GeneratorSettings(concurrency=8, max_model_len=256, kv_cache_gib=0.25), PolicySettings(), "float32", 0
    )
    prompts = [random.Random(n).choices(range(vocabulary), k=n) for n in PROMPTS]
    await engine.start()
    try:
        await engine.label(0)
        first = batch_of(prompts, await sampled(engine, prompts, "first"))
        from consumers.trainer.titan import Learner

        learner = Learner(
            model, TrainerSettings(row_tokens=256, micro_batch_tokens=1024, lr=1e-3), temperature=TEMPERATURE,
            dtype="float32", seed=0, steps=2, checkpoints=folder / "checkpoints",
        )  # fmt: skip
        before = [gap(learner.logprobs(first), first)]
        learner.step([first])
        learner.step([first])
        (folder / "weights").mkdir()
        (folder / "weights" / "model.safetensors").write_bytes(learner.export())
        await engine.stage(folder / "weights")
        assert await staged_folder(engine) == (str(folder / "weights") if staged else None)
        await engine.pause()
        await engine.load(folder / "weights")
        await engine.label(1)
        await engine.resume()
        second = batch_of(prompts, await sampled(engine, prompts, "second"))
        assert gap(learner.logprobs(first), first) > 1e-2, "the weights are others now"
        return [*before, gap(learner.logprobs(second), second)]
    finally:
        await engine.stop()


def gap(logprobs: np.ndarray, batch: MicroBatch) -> float:
    assert batch.trained_RL.sum() >= 128
    return float(np.abs(logprobs - batch.logprobs_RL)[batch.trained_RL].mean())


@pytest.mark.engine
@pytest.mark.parametrize("name", ["qwen3", "qwen3-moe", "llama-scaled"])
async def test_trainer_and_generator_agree_on_a_sharded_directory_and_after_a_swap(name: str, tmp_path: Path) -> None:
    model = sharded(make_model(tmp_path, name), tmp_path / "sharded", 3)
    assert max(await gaps(model, tmp_path, VOCABULARY, staged=name != "qwen3-moe")) < 1e-4


@pytest.mark.real  # fetches 98 MB
async def test_trainer_and_generator_agree_on_smollm2(tmp_path: Path) -> None:
    summary = await asyncio.to_thread(fetch, "smollm2-135m", tmp_path / "model")
    found = await gaps(tmp_path / "model", tmp_path, summary.vocabulary)
    print(f"mean gaps: {found}")
    assert max(found) < 1e-3
