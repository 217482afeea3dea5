"""One suite for the stand-in and for vLLM: what a generator may expect of its engine.

Each engine starts once; tests share it and swap to the weights they need. Log-probabilities are compared with those
of transformers over the same weights, also where a request's keys and values were computed by several.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from transformers import DynamicCache, Qwen3ForCausalLM

from environments import Sample
from producers.generator.engine import Aborted, Engine, SamplingRequest
from producers.generator.settings import GeneratorSettings
from producers.generator.vllm_engine import VllmEngine
from schemas import EngineError, PolicySettings, Span, WeightsError
from tests.stand_in.engine import StandInEngine
from tests.stand_in.tiny import VOCABULARY, make_tiny_model
from tests.waiting import eventually

PLACES = 4
BLOCK = 32
LONG = 1900
"""Tokens of a request that is still running when a test wants it to be."""
TOLERANCE = 1e-3
"""Of a log-probability: kernels add up in different orders."""
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


class Bench:
    """An engine with the models it may be given, and the version that it has reached."""

    def __init__(self, engine: Engine, root: Path) -> None:
        self.engine = engine
        self.folders = [root / "first", root / "second"]
        self.models = [make_tiny_model(folder, seed) for seed, folder in enumerate(self.folders)]
        self.version = 0
        self.refusal: Exception | None = None
        self.at = 0
        """Which of the models it has."""
        self.tasks: list[asyncio.Task[Sample]] = []
        """Whatever a test submitted."""
        self._numbers = itertools.count()
        self._random = random.Random(1)

    @property
    def model(self) -> Qwen3ForCausalLM:
        return self.models[self.at]

    def prompt(self, length: int) -> list[int]:
        return self._random.choices(range(3, VOCABULARY), k=length)

    def request(
        self,
        tokens: list[int],
        *,
        max_tokens: int = 8,
        salt: str | None = None,
        temperature: float = 1.0,
        stop_ids: Sequence[int] = (),
    ) -> SamplingRequest:
        """A request that shares no prefix with another, unless a salt is given."""
        number = next(self._numbers)
        return SamplingRequest(
            id=f"request-{number}",
            tokens=tokens,
            salt=salt or f"salt-{number}",
            max_tokens=max_tokens,
            temperature=temperature,
            stop_ids=list(stop_ids),
        )

    async def running(self, count: int, max_tokens: int = LONG) -> list[tuple[str, asyncio.Task[Sample]]]:
        """Long requests, each with a token at least."""
        started = [self.submit(self.request(self.prompt(5), max_tokens=max_tokens)) for _ in range(count)]
        await self.until(running=count)
        return started

    def submit(self, request: SamplingRequest) -> tuple[str, asyncio.Task[Sample]]:
        task = asyncio.create_task(self.engine.sample(request))
        self.tasks.append(task)
        return request.id, task

    async def until(self, **gauges: float) -> None:
        async def reached() -> bool:
            return gauges.items() <= self.engine.gauges().items()

        await eventually(reached)

    async def load(self, which: int) -> None:
        """What a paused engine is given: weights and their version."""
        await self.engine.load(self.folders[which])
        self.at, self.version = which, self.version + 1
        await self.engine.label(self.version)

    async def swap(self, which: int, *, staged: int | None = None) -> None:
        """``staged``: whose weights are made ready before; by default those that come."""
        await self.engine.stage(self.folders[which if staged is None else staged])
        await self.engine.pause()
        await self.load(which)
        await self.engine.resume()


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[
        pytest.param(StandInEngine, id="stand_in"),
        pytest.param(VllmEngine, id="vllm", marks=pytest.mark.engine),
    ],
)
async def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    root = tmp_path_factory.mktemp("models")
    settings = GeneratorSettings(concurrency=PLACES, max_model_len=2048, kv_cache_gib=0.25)
    engine = request.param(root / "first", settings, PolicySettings(), "float32", 7)
    bench = Bench(engine, root)
    await engine.start()
    try:
        await engine.sample(bench.request([5, 6]))
    except EngineError as refusal:
        bench.refusal = refusal
    await engine.label(0)
    yield bench
    await engine.stop()


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def nothing_left_over(bench: Bench) -> AsyncIterator[None]:
    yield
    for task in bench.tasks:
        task.cancel()
    await asyncio.gather(*bench.tasks, return_exceptions=True)
    bench.tasks.clear()
    with contextlib.suppress(EngineError):  # of the last test's engine
        await bench.engine.resume()
        await bench.until(running=0.0, waiting=0.0)


def expected(
    tokens: list[int], sample: Sample, parts: Sequence[tuple[Qwen3ForCausalLM, int]], temperature: float = 1.0
) -> torch.Tensor:
    """Log-probabilities of the sampled tokens when each model computed the steps up to its number of *fed* tokens.

    The step that samples a token feeds the one before it, so a swap before sampled token ``s`` changes the model
    from fed token ``len(tokens) + s - 1`` on.
    """
    ids = torch.tensor([tokens + sample.tokens])
    cache, start, logits = DynamicCache(), 0, []
    with torch.inference_mode():
        for model, end in parts:
            logits.append(model(ids[:, start:end], past_key_values=cache).logits[0])
            start = end
    logprobs = (torch.cat(logits) / temperature).log_softmax(-1)
    first = len(tokens) - 1
    picked = torch.tensor(sample.tokens)
    return logprobs[first : first + len(picked)].gather(1, picked[:, None])[:, 0]


def assert_sampled_by(
    model: Qwen3ForCausalLM, request: SamplingRequest, sample: Sample, *, temperature: float = 1.0
) -> None:
    fed = len(request.tokens) + len(sample.tokens) - 1
    truth = expected(request.tokens, sample, [(model, fed)], temperature)
    torch.testing.assert_close(torch.tensor(sample.logprobs), truth, atol=TOLERANCE, rtol=0)


async def test_a_request_before_the_first_label_is_refused(bench: Bench) -> None:
    assert "label" in str(bench.refusal)


async def test_log_probabilities_are_those_of_the_weights(bench: Bench) -> None:
    requests = [bench.request(bench.prompt(length), max_tokens=40) for length in (1, 7, 31, 32, 33, 100)]
    samples = await asyncio.gather(*map(bench.engine.sample, requests))
    for request, sample in zip(requests, samples, strict=True):
        assert sample.spans == [Span(bench.version, 0, 40)]
        assert_sampled_by(bench.model, request, sample)


@pytest.mark.parametrize("temperature", [0.3, 1.7])
async def test_temperature_is_applied_before_log_probabilities_are_taken(bench: Bench, temperature: float) -> None:
    request = bench.request(bench.prompt(10), max_tokens=60, temperature=temperature)
    sample = await bench.engine.sample(request)
    assert_sampled_by(bench.model, request, sample, temperature=temperature)


async def test_tokens_are_sampled_as_often_as_they_are_probable(bench: Bench) -> None:
    request, count = bench.request(bench.prompt(10), max_tokens=1, temperature=1.3), 1000
    again = [bench.request(request.tokens, max_tokens=1, temperature=1.3) for _ in range(count)]
    samples = await asyncio.gather(*map(bench.engine.sample, again))
    with torch.inference_mode():
        logprobs = (bench.model(torch.tensor([request.tokens])).logits[0, -1] / 1.3).log_softmax(-1)
    mean = (logprobs.exp() * logprobs).sum()
    deviation = ((logprobs.exp() * (logprobs - mean) ** 2).sum() / count).sqrt()
    assert abs(torch.tensor([sample.logprobs[0] for sample in samples]).mean() - mean) < 6 * deviation


async def test_a_stop_id_ends_the_sample_and_belongs_to_it(bench: Bench) -> None:
    stop_ids = list(range(0, VOCABULARY, 8))
    requests = [bench.request(bench.prompt(6), max_tokens=500, stop_ids=stop_ids) for _ in range(8)]
    for request, sample in zip(requests, await asyncio.gather(*map(bench.engine.sample, requests)), strict=True):
        assert sample.finish == "stop"
        assert [token in stop_ids for token in sample.tokens] == [False] * (len(sample.tokens) - 1) + [True]
        assert_sampled_by(bench.model, request, sample)


async def test_max_tokens_end_the_sample_and_the_models_own_end_token_does_not(bench: Bench) -> None:
    requests = [bench.request(bench.prompt(6), max_tokens=400, temperature=2.0) for _ in range(PLACES)]
    samples = await asyncio.gather(*map(bench.engine.sample, requests))
    for sample in samples:
        assert (sample.finish, len(sample.tokens), len(sample.logprobs)) == ("length", 400, 400)
    end_token = bench.model.config.eos_token_id
    assert any(end_token in sample.tokens[:-1] for sample in samples)


async def test_spans_name_the_weights_of_each_token_over_two_swaps(bench: Bench) -> None:
    await bench.swap(0)
    first = bench.version
    request = bench.request(bench.prompt(40), max_tokens=1500)
    _, task = bench.submit(request)
    await bench.until(running=1)
    for which in (1, 0):
        # The short request ends after steps that gave the long one tokens too.
        await bench.engine.sample(bench.request(bench.prompt(3), max_tokens=5))
        await bench.swap(which)
    sample = await task
    assert [span.version for span in sample.spans] == [first, first + 1, first + 2]
    assert [span.start for span in sample.spans] == [0, *[span.end for span in sample.spans[:-1]]]
    assert sample.spans[-1].end == len(sample.tokens) == 1500
    fed = [len(request.tokens) + span.end - 1 for span in sample.spans]
    truth = expected(request.tokens, sample, list(zip([bench.models[i] for i in (0, 1, 0)], fed, strict=True)))
    torch.testing.assert_close(torch.tensor(sample.logprobs), truth, atol=TOLERANCE, rtol=0)


async def test_loaded_weights_decide_from_then_on(bench: Bench) -> None:
    for which in (1, 0):
        await bench.swap(which)
        request = bench.request(bench.prompt(20), max_tokens=30)
        sample = await bench.engine.sample(request)
        assert sample.spans == [Span(bench.version, 0, 30)]
        assert_sampled_by(bench.models[which], request, sample)


async def test_weights_are_staged_while_requests_go_on_and_change_nothing_before_they_are_loaded(bench: Bench) -> None:
    await bench.swap(0)
    [(_, running)] = await bench.running(1)
    request = bench.request(bench.prompt(20), max_tokens=30)
    await bench.engine.stage(bench.folders[1])
    assert_sampled_by(bench.models[0], request, await bench.engine.sample(request))
    await bench.engine.pause()
    await bench.load(1)
    await bench.engine.resume()
    request = bench.request(bench.prompt(20), max_tokens=30)
    assert_sampled_by(bench.models[1], request, await bench.engine.sample(request))
    assert not running.done()


async def test_weights_load_the_same_staged_or_not_and_in_any_order(bench: Bench) -> None:
    await bench.swap(1)
    for which, staged in ((0, 0), (1, 0), (0, 1), (1, 1), (0, 0)):
        await bench.swap(which, staged=staged)
        request = bench.request(bench.prompt(20), max_tokens=30)
        assert_sampled_by(bench.models[which], request, await bench.engine.sample(request))
    await bench.engine.pause()
    await bench.load(1)
    await bench.engine.resume()
    request = bench.request(bench.prompt(20), max_tokens=30)
    assert_sampled_by(bench.models[1], request, await bench.engine.sample(request))


async def test_a_paused_engine_samples_nothing_and_serves_later_what_came_meanwhile(bench: Bench) -> None:
    [(_, kept)] = await bench.running(1)
    await bench.engine.pause()
    name, waiting = bench.submit(bench.request(bench.prompt(4), max_tokens=1))
    await bench.until(running=1, waiting=1)
    for _ in range(20):  # each goes to the engine and back: a step would have had its chance
        await bench.engine.label(bench.version)
    assert not waiting.done()
    assert bench.engine.unsampled() == {name}
    await bench.engine.label(bench.version + 1)
    bench.version += 1
    await bench.engine.resume()
    assert [span.version for span in (await waiting).spans] == [bench.version]
    assert [span.version for span in (await kept).spans] == [bench.version - 1, bench.version]


async def test_unsampled_are_the_requests_that_wait_for_a_place(bench: Bench) -> None:
    running = await bench.running(PLACES)
    waiting = [bench.submit(bench.request(bench.prompt(4))) for _ in range(3)]
    await bench.until(running=PLACES, waiting=3)
    await bench.engine.pause()
    assert bench.engine.unsampled() == {name for name, _ in waiting}
    await bench.engine.resume()
    await bench.engine.abort(name for name, _ in running)
    assert [len((await task).tokens) for _, task in waiting] == [8, 8, 8]
    assert bench.engine.unsampled() == set()


async def test_abort_raises_aborted_and_frees_the_place(bench: Bench) -> None:
    running = await bench.running(PLACES)
    waiting = [bench.submit(bench.request(bench.prompt(4))) for _ in range(2)]
    await bench.until(waiting=2)
    await bench.engine.abort([running[0][0], waiting[0][0], "unknown"])
    for name, task in (running[0], waiting[0]):
        with pytest.raises(Aborted) as caught:
            await task
        assert caught.value.request == name
    assert len((await waiting[1][1]).tokens) == 8
    await bench.engine.abort(name for name, _ in running)
    outcomes = await asyncio.gather(*[task for _, task in running[1:]], return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Aborted] * (PLACES - 1)


async def test_what_a_pause_aborts_may_come_again_under_its_id_with_a_new_salt(bench: Bench) -> None:
    await bench.swap(0)
    tokens = bench.prompt(3 * BLOCK + 1)
    await bench.engine.sample(bench.request(tokens, salt="old"))
    running = await bench.running(PLACES)
    request = bench.request(tokens, salt="old")
    name, task = bench.submit(request)
    await bench.until(waiting=1)
    await bench.engine.pause()
    assert bench.engine.unsampled() == {name}
    await bench.engine.abort([name])
    with pytest.raises(Aborted):
        await task
    await bench.load(1)
    await bench.engine.resume()
    await bench.engine.abort(name for name, _ in running)
    request = SamplingRequest(
        **{field: getattr(request, field) for field in request.__struct_fields__} | {"salt": "new"}
    )
    sample = await bench.engine.sample(request)
    assert sample.cached == 0
    assert_sampled_by(bench.models[1], request, sample)


async def test_what_ended_before_an_abort_keeps_its_sample(bench: Bench) -> None:
    request = bench.request(bench.prompt(4))
    sample = await bench.engine.sample(request)
    await bench.engine.abort([request.id])
    assert len(sample.tokens) == 8


async def test_a_cancelled_sample_frees_its_place(bench: Bench) -> None:
    running = await bench.running(PLACES)
    _, waiting = bench.submit(bench.request(bench.prompt(4)))
    running[0][1].cancel()
    assert len((await waiting).tokens) == 8


async def test_requests_of_one_salt_share_whole_blocks(bench: Bench) -> None:
    tokens = bench.prompt(3 * BLOCK + 5)
    members = [bench.request(tokens, salt="group") for _ in range(PLACES)]
    samples = await asyncio.gather(*map(bench.engine.sample, members))
    assert sorted(sample.cached for sample in samples) == [0] + [3 * BLOCK] * (PLACES - 1)
    for request, sample in zip(members, samples, strict=True):
        assert_sampled_by(bench.model, request, sample)
    at_least_one_is_computed = await bench.engine.sample(bench.request(tokens[: 3 * BLOCK], salt="group"))
    assert at_least_one_is_computed.cached == 2 * BLOCK


async def test_the_next_turn_finds_the_blocks_of_the_reply(bench: Bench) -> None:
    first = await bench.engine.sample(bench.request(tokens := bench.prompt(10), salt="turns", max_tokens=2 * BLOCK))
    turn = bench.request(tokens + first.tokens + bench.prompt(10), salt="turns")
    second = await bench.engine.sample(turn)
    assert second.cached == 2 * BLOCK
    assert_sampled_by(bench.model, turn, second)


async def test_another_salt_shares_nothing(bench: Bench) -> None:
    tokens = bench.prompt(3 * BLOCK + 5)
    samples = [await bench.engine.sample(bench.request(tokens, salt=salt)) for salt in ("one", "other")]
    assert [sample.cached for sample in samples] == [0, 0]


async def test_a_kept_salt_reads_what_the_old_weights_computed(bench: Bench) -> None:
    """Why salts change with the weights; a double that did not do this would prove nothing about them."""
    await bench.swap(0)
    tokens = bench.prompt(3 * BLOCK + 5)
    await bench.engine.sample(bench.request(tokens, salt="kept"))
    await bench.swap(1)
    sample = await bench.engine.sample(bench.request(tokens, salt="kept", max_tokens=20))
    assert sample.cached == 3 * BLOCK
    parts = [(bench.models[0], 3 * BLOCK), (bench.models[1], len(tokens) + 19)]
    stale, right = expected(tokens, sample, parts), expected(tokens, sample, [(bench.models[1], len(tokens) + 19)])
    torch.testing.assert_close(torch.tensor(sample.logprobs), stale, atol=TOLERANCE, rtol=0)
    assert (stale - right).abs().max() > 100 * TOLERANCE


async def test_weights_of_another_model_are_refused_before_the_first_write(bench: Bench, tmp_path: Path) -> None:
    header = b'{"model.norm.weight":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    with pytest.raises(WeightsError, match=r"lacks the tensor .* take config.json and weights from the same model"):
        await bench.engine.stage(tmp_path)
    await bench.engine.pause()
    with pytest.raises(WeightsError, match=r"lacks the tensor .* take config.json and weights from the same model"):
        await bench.engine.load(tmp_path)
    await bench.engine.resume()
    request = bench.request(bench.prompt(10))
    assert_sampled_by(bench.model, request, await bench.engine.sample(request))


@pytest.mark.parametrize(("prompt", "max_tokens"), [(0, 1), (1, 0), (2024, 25)])
async def test_a_request_that_cannot_be_served_whole_is_refused(bench: Bench, prompt: int, max_tokens: int) -> None:
    with pytest.raises(ValueError, match="max_model_len 2048"):
        await bench.engine.sample(bench.request(bench.prompt(prompt), max_tokens=max_tokens))


async def test_stopping_ends_unfinished_requests_with_an_error(bench: Bench) -> None:
    """Last of the suite: the engine is not used after it."""
    [(_, task)] = await bench.running(1)
    await bench.engine.stop()
    with pytest.raises(EngineError, match="stopped"):
        await task
    with pytest.raises(EngineError):
        await bench.engine.sample(bench.request([5, 6]))
    with pytest.raises(EngineError):
        await bench.engine.pause()
