"""What tests of swaps ask the stand-in: under which weights were the cached blocks computed that a request read?"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from producers.generator.engine import SamplingRequest
from producers.generator.settings import GeneratorSettings
from schemas import EngineError, PolicySettings
from tests.stand_in.engine import StandInEngine
from tests.stand_in.tiny import make_tiny_model

PROMPT = list(range(3, 43))


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[StandInEngine]:
    make_tiny_model(tmp_path, seed=0)
    engine = StandInEngine(tmp_path, GeneratorSettings(), PolicySettings(), "float32", 0)
    await engine.start()
    await engine.label(0)
    yield engine
    await engine.stop()


def request(id: str, salt: str) -> SamplingRequest:
    return SamplingRequest(id=id, tokens=PROMPT, salt=salt, max_tokens=4, temperature=1.0, stop_ids=[])


async def test_reads_name_the_versions_of_their_blocks(engine: StandInEngine) -> None:
    await engine.sample(request("first", "old"))
    await engine.label(1)
    await engine.sample(request("stale", "old"))
    await engine.sample(request("fresh", "new"))
    assert [(read.request, read.version, read.block_versions) for read in engine.reads] == [
        ("first", 0, ()),
        ("stale", 1, (frozenset({0}),)),
        ("fresh", 1, ()),
    ]


async def test_a_dead_stand_in_fails_like_a_dead_engine(engine: StandInEngine) -> None:
    engine.die("its core was killed")
    with pytest.raises(EngineError, match="its core was killed"):
        await engine.sample(request("late", "old"))
    with pytest.raises(EngineError, match="its core was killed"):
        await engine.pause()
