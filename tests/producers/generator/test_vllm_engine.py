"""What only vLLM has: processes that die, a start that fails, preemptions. The rest is in test_engine.py."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from producers.generator.engine import SamplingRequest
from producers.generator.settings import GeneratorSettings
from producers.generator.vllm_engine import VllmEngine, _environment
from schemas import EngineError, ModelError, PolicySettings
from tests.stand_in.tiny import make_tiny_model
from tests.waiting import eventually

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]


def engine_of(model: Path, kv_cache_gib: float = 0.05) -> VllmEngine:
    settings = GeneratorSettings(concurrency=8, max_model_len=1024, kv_cache_gib=kv_cache_gib)
    return VllmEngine(model, settings, PolicySettings(), "float32", 0)


def request(number: int, max_tokens: int) -> SamplingRequest:
    return SamplingRequest(
        id=f"request-{number}", tokens=[number + 3, 5], salt="s", max_tokens=max_tokens, temperature=1.0, stop_ids=[]
    )


def core_of_the_engine() -> psutil.Process:
    """The engine core of the only engine that runs."""
    [core] = [child for child in psutil.Process().children() if child.name().startswith("VLLM::")]
    return core


async def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json does not exist"):
        await engine_of(tmp_path).start()
    make_tiny_model(tmp_path, seed=0)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"max_position_embeddings": 2048', '"max_position_embeddings": 512'))
    engine = engine_of(tmp_path)
    with pytest.raises(EngineError, match="max_model_len"):
        await engine.start()
    await engine.stop()


async def test_preemptions_are_counted_and_a_dead_core_fails_every_call(tmp_path: Path) -> None:
    """One start for both."""
    make_tiny_model(tmp_path, seed=0)
    engine = engine_of(tmp_path, kv_cache_gib=0.003)  # room for two of the requests below
    await engine.start()
    await engine.label(0)
    samples = await asyncio.gather(*[engine.sample(request(number, 900)) for number in range(4)])
    assert [len(sample.tokens) for sample in samples] == [900] * 4
    assert engine.gauges()["preemptions"] >= 1

    pending = asyncio.create_task(engine.sample(request(9, 1000)))

    async def running() -> bool:
        return engine.gauges()["running"] == 1

    await eventually(running)
    core = core_of_the_engine()
    core.suspend()  # so that the call below is under way when it dies
    pause = asyncio.create_task(engine.pause())
    await asyncio.sleep(0)
    core.kill()
    for call in (pending, pause, engine.load(tmp_path), engine.sample(request(10, 1))):
        with pytest.raises(EngineError, match="start the generator again"):
            await call
    await engine.stop()


async def test_a_core_that_was_stopped_goes_on_and_one_that_is_stopped_ends_in_time(tmp_path: Path) -> None:
    """One start for both."""
    make_tiny_model(tmp_path, seed=0)
    engine = engine_of(tmp_path)
    await engine.start()
    await engine.label(0)
    pending = asyncio.create_task(engine.sample(request(1, 1000)))

    async def running() -> bool:
        return engine.gauges()["running"] == 1

    await eventually(running)
    core = core_of_the_engine()
    core.suspend()
    pause = asyncio.create_task(engine.pause())

    async def silent() -> bool:
        return engine.gauges()["silent_s"] > 2.0

    await eventually(silent)
    assert not pending.done()
    assert not pause.done()
    core.resume()
    await pause
    await engine.resume()
    assert len((await pending).tokens) == 1000

    async def answers() -> bool:
        return engine.gauges()["silent_s"] == 0.0

    await eventually(answers)
    pending = asyncio.create_task(engine.sample(request(2, 1000)))
    await eventually(running)
    core.suspend()
    async with asyncio.timeout(10.0):
        await engine.stop()
    with pytest.raises(EngineError):
        await pending
    _, alive = psutil.wait_procs([core], timeout=10)
    assert not alive


def test_an_engine_listens_on_this_machine_alone_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    variables = _environment(GeneratorSettings(), on_cpu=True)
    assert (variables["GLOO_SOCKET_IFNAME"], variables["NCCL_SOCKET_IFNAME"]) == ("eth7", "lo")
