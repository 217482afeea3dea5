"""A conversation on an engine: tokens that no text encodes are kept, and its cached prefix outlives a swap."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest

from environments import Policy, load_tokenizer
from producers.generator.gate import Gate
from producers.generator.settings import GeneratorSettings
from schemas import PolicySettings, Span
from tests import examples
from tests.environments.byte_level import save_model
from tests.stand_in.engine import StandInEngine
from tests.stand_in.prefix_cache import BLOCK_TOKENS


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[StandInEngine]:
    save_model(tmp_path)
    engine = StandInEngine(tmp_path, GeneratorSettings(threads=1, max_model_len=1024), PolicySettings(), "float32", 0)
    yield engine
    await engine.stop()


@pytest.mark.parametrize("prefix", ["keep", "refresh"])
async def test_each_turn_reads_the_conversation_so_far_from_the_cache(
    engine: StandInEngine, tmp_path: Path, prefix: Literal["keep", "refresh"]
) -> None:
    gate = Gate(engine, temperature=1.0, max_off_policy_steps=9, abort_late=False, prefix_on_swap=prefix)
    await gate.start()
    await gate.swap(examples.weights(version=0, sha256="0" * 64), tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    policy = Policy(gate.sampler("1-0"), tokenizer, 1024)
    messages: list[dict[str, Any]] = []
    for turn in range(4):
        if turn == 2:
            await gate.swap(examples.weights(version=1, sha256="1" * 64), tmp_path)
        messages.append({"role": "user", "content": f"turn {turn} has some more text to read"})
        messages.append((await policy.chat(messages, max_tokens=40)).message)
    transcript = policy.transcript()
    assert transcript.starts == []
    sampled = sum(turn.sampled for turn in transcript.turns)
    assert transcript.spans == [Span(0, 0, sum(t.sampled for t in transcript.turns[:2])),
                                Span(1, sum(t.sampled for t in transcript.turns[:2]), sampled)]  # fmt: skip
    # The random model says bytes that are no text: encoding what was read of them would give other tokens.
    assert "\ufffd" in messages[1]["content"]
    before = 0
    for number, turn in enumerate(transcript.turns):
        # All blocks that were full when the turn before ended; its last token has not been computed yet.
        full = (before - 1) // BLOCK_TOKENS * BLOCK_TOKENS if number else 0
        assert turn.cached == (0 if prefix == "refresh" and number == 2 else full)
        before += turn.context + turn.sampled
