"""``generator.prefix_on_swap``: what keeping a rollout's prefix over swaps saves, and what it costs in exactness.

SmolLM2 plays conversations; its weights change in the middle of some turns, by real steps at 1e-5 (bench.delta). Every
sampled token's log-probability is compared with that of its version's weights, computed anew by transformers: kept
keys and values are those of older weights, so later tokens differ from what their version alone would give them.
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from bench.delta.changes import versions
from bench.report import Table
from bench.swap.load import weights
from bench.swap.subjects import SMOLLM2
from producers import Gate, GeneratorSettings
from producers.generator.gate import RolloutSampler
from producers.generator.vllm_engine import VllmEngine
from schemas import PolicySettings

LR = 1e-5
CONVERSATIONS, TURNS, SYSTEM, ASKED, REPLY = 4, 8, 128, 48, 24
SWAP_IN_TURNS = (2, 4, 6)
VOCABULARY = 49_152


class Sampled(NamedTuple):
    turn: int
    prompt: int
    """Tokens before the reply."""
    cached: int
    logprobs: list[float]
    versions: list[int]


class Conversation:
    """One rollout of TURNS turns, and what was sampled in each."""

    def __init__(self, sampler: RolloutSampler, number: int) -> None:
        self._sampler = sampler
        self._words = random.Random(number)
        self.tokens = self._words.choices(range(VOCABULARY), k=SYSTEM)
        self.sampled: list[Sampled] = []

    async def turn(self, number: int) -> None:
        prompt = len(self.tokens)
        sample = await self._sampler.sample(self.tokens, max_tokens=REPLY, stop_ids=[])
        by_token = [span.version for span in sample.spans for _ in range(span.start, span.end)]
        self.sampled.append(Sampled(number, prompt, sample.cached, sample.logprobs, by_token))
        self.tokens = [*self.tokens, *sample.tokens, *self._words.choices(range(VOCABULARY), k=ASKED)]


class Played(NamedTuple):
    conversations: list[Conversation]
    wall_s: float


async def play(engine: VllmEngine, folders: list[Path], mode: Literal["keep", "refresh"]) -> Played:
    """All conversations, with a swap to the next of ``folders`` in the middle of some turns."""
    gate = Gate(engine, temperature=1.0, max_off_policy_steps=10**6, abort_late=False, prefix_on_swap=mode)
    await gate.swap(weights(0, "float32", mode), folders[0])
    conversations = [Conversation(gate.sampler(f"{mode}-{number}"), number) for number in range(CONVERSATIONS)]
    version, began = 0, time.perf_counter()
    for turn in range(TURNS):
        replies = [asyncio.create_task(each.turn(turn)) for each in conversations]
        if turn in SWAP_IN_TURNS:
            version += 1
            while gate.in_flight < CONVERSATIONS or engine.unsampled():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await gate.swap(weights(version, "float32", mode), folders[version])
        await asyncio.gather(*replies)
    return Played(conversations, time.perf_counter() - began)


async def measure(root: Path) -> Table:
    """Trains the versions first, then plays both modes on one engine."""
    folders = []
    for version, payload in enumerate(versions(LR, len(SWAP_IN_TURNS))):
        folders.append(root / str(version))
        folders[-1].mkdir(parents=True)
        (folders[-1] / "model.safetensors").write_bytes(payload)
        (folders[-1] / "config.json").write_bytes((SMOLLM2 / "config.json").read_bytes())
    settings = GeneratorSettings(concurrency=CONVERSATIONS, max_model_len=1024)
    engine = VllmEngine(SMOLLM2, settings, PolicySettings(), "float32", 0)
    await engine.start()
    modes: tuple[Literal["keep", "refresh"], ...] = ("keep", "refresh")
    played = {mode: await play(engine, folders, mode) for mode in modes}
    await engine.stop()
    columns = (
        "prefix_on_swap", "prompt tokens", "from the cache", "in the turn after a swap", "seconds",
        "log-probability gap before a swap, mean", "after it, mean", "after it, greatest",
    )  # fmt: skip
    return Table(columns, [_row(mode, each, _gaps(each.conversations, folders)) for mode, each in played.items()])


def _row(mode: str, played: Played, gaps: dict[bool, list[float]]) -> tuple[str | float, ...]:
    turns = [each for conversation in played.conversations for each in conversation.sampled]
    after = [each for each in turns if each.turn - 1 in SWAP_IN_TURNS]

    def share(chosen: list[Sampled]) -> str:
        return f"{100 * sum(each.cached for each in chosen) / sum(each.prompt for each in chosen):.1f} %"

    return (
        mode, str(sum(each.prompt for each in turns)), share(turns), share(after), played.wall_s,
        float(np.mean(gaps[False])), float(np.mean(gaps[True])), max(gaps[True]),
    )  # fmt: skip


def _gaps(conversations: list[Conversation], folders: list[Path]) -> dict[bool, list[float]]:
    """Absolute differences of log-probabilities, by whether a swap had come before the token was sampled."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()

    gaps: dict[bool, list[float]] = {False: [], True: []}
    tokens = torch.tensor([each.tokens for each in conversations])  # all are equally long
    for version, folder in enumerate(folders):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        with torch.no_grad():
            hidden = model.model(tokens).last_hidden_state
        for number, conversation in enumerate(conversations):
            for each in conversation.sampled:
                with torch.no_grad():
                    reply = slice(each.prompt, each.prompt + len(each.logprobs))
                    logprobs = model.lm_head(hidden[number, reply.start - 1 : reply.stop - 1]).log_softmax(-1)
                    truth = logprobs.gather(-1, tokens[number, reply, None])[:, 0]
                gaps[version > 0] += [
                    abs(float(right) - value)
                    for right, value, sampled_by in zip(truth, each.logprobs, each.versions, strict=True)
                    if sampled_by == version
                ]
    return gaps
