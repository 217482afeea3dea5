"""The order of a swap, and what it does to requests: with an engine that does nothing by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from environments import Sample
from producers import Aborted, Gate, SamplingRequest
from producers.generator import RolloutSampler, TooLate
from schemas import EngineError, Span, WeightsError
from tests.examples import weights

FOLDER = Path("weights")


class PuppetEngine:
    """Records what is asked of it, in order; requests end when the test says so."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.requests: dict[str, SamplingRequest] = {}
        self.ends: dict[str, asyncio.Future[Sample]] = {}
        self.sampled: set[str] = set()
        self.submitted = asyncio.Event()

    async def start(self) -> None:
        self.calls.append("start")

    async def sample(self, request: SamplingRequest) -> Sample:
        self.calls.append(f"sample {request.salt[:2]}")
        self.requests[request.id] = request
        self.ends[request.id] = asyncio.get_running_loop().create_future()
        self.submitted.set()
        return await self.ends[request.id]

    async def pause(self) -> None:
        self.calls.append("pause")

    def unsampled(self) -> set[str]:
        return {id for id, end in self.ends.items() if not end.done() and id not in self.sampled}

    async def abort(self, ids: Iterable[str]) -> None:
        for id in sorted(ids):
            self.calls.append("abort")
            self.ends[id].set_exception(Aborted(id))

    async def stage(self, folder: Path) -> None:
        self.calls.append("stage")

    async def load(self, folder: Path) -> None:
        self.calls.append("load")

    async def label(self, version: int) -> None:
        self.calls.append(f"label {version}")

    async def resume(self) -> None:
        self.calls.append("resume")

    async def stop(self) -> None:
        self.calls.append("stop")

    def gauges(self) -> dict[str, float]:
        return {}

    def finish(self, id: str, *spans: Span) -> None:
        n = spans[-1].end
        self.ends[id].set_result(
            Sample(tokens=[1] * n, logprobs=[-1.0] * n, spans=list(spans), finish="stop", cached=0)
        )

    async def next_request(self) -> SamplingRequest:
        """The newest request; waits for one if none came since the last call."""
        await self.submitted.wait()
        self.submitted.clear()
        return list(self.requests.values())[-1]


@pytest.fixture
def engine() -> PuppetEngine:
    return PuppetEngine()


def gate_on(engine: PuppetEngine, *, bound: int = 2, abort_late: bool = True, prefix: str = "keep") -> Gate:
    return Gate(
        engine,
        temperature=1.0,
        max_off_policy_steps=bound,
        abort_late=abort_late,
        prefix_on_swap=prefix,  # type: ignore[arg-type]
    )


def version(number: int) -> object:
    return weights(version=number, sha256=f"{number:02d}" * 32)


async def swap(gate: Gate, number: int) -> object:
    return await gate.swap(version(number), FOLDER)  # type: ignore[arg-type]


def turn(rollout: RolloutSampler) -> asyncio.Task[Sample]:
    return asyncio.create_task(rollout.sample([1, 2], max_tokens=4, stop_ids=[0]))


async def test_no_request_passes_before_weights_are_labelled(engine: PuppetEngine) -> None:
    gate = gate_on(engine)
    asking = turn(gate.sampler("a"))
    await swap(gate, 0)
    request = await engine.next_request()
    assert engine.calls == ["stage", "pause", "load", "label 0", "resume", "sample 00"]
    assert request.salt == "00" * 16
    engine.finish(request.id, Span(0, 0, 1))
    await asking


async def test_a_waiting_request_that_would_start_a_rollout_comes_again_under_the_new_salt(
    engine: PuppetEngine,
) -> None:
    gate = gate_on(engine)
    await swap(gate, 0)
    asking = turn(gate.sampler("a"))
    await engine.next_request()
    engine.calls.clear()
    report = await swap(gate, 1)
    again = await engine.next_request()
    assert engine.calls == ["stage", "pause", "abort", "load", "label 1", "resume", "sample 01"]
    assert report.resubmitted == 1  # type: ignore[attr-defined]
    engine.finish(again.id, Span(1, 0, 2))
    assert (await asking).spans == [Span(1, 0, 2)]


async def test_a_request_submitted_during_a_swap_waits_for_the_new_salt(engine: PuppetEngine) -> None:
    gate = gate_on(engine)
    await swap(gate, 0)
    loading = asyncio.Event()
    go_on = asyncio.Event()

    async def slow_load(folder: Path) -> None:
        loading.set()
        await go_on.wait()

    engine.load = slow_load  # type: ignore[method-assign]
    swapping = asyncio.create_task(swap(gate, 1))
    await loading.wait()
    asking = turn(gate.sampler("late"))
    go_on.set()
    await swapping
    request = await engine.next_request()
    assert request.salt == "01" * 16
    engine.finish(request.id, Span(1, 0, 1))
    await asking


async def test_a_running_rollout_keeps_its_request_and_its_salt_over_its_turns(engine: PuppetEngine) -> None:
    gate = gate_on(engine)
    await swap(gate, 0)
    rollout = gate.sampler("a")
    asking = turn(rollout)
    request = await engine.next_request()
    engine.sampled.add(request.id)
    report = await swap(gate, 1)
    assert report.kept == 1  # type: ignore[attr-defined]
    engine.finish(request.id, Span(0, 0, 1), Span(1, 1, 2))
    await asking
    asking = turn(rollout)
    second = await engine.next_request()
    assert second.salt == "00" * 16
    assert rollout.swaps == 1
    engine.finish(second.id, Span(1, 0, 1))
    await asking


async def test_refresh_takes_the_current_salt_with_each_turn(engine: PuppetEngine) -> None:
    gate = gate_on(engine, prefix="refresh")
    await swap(gate, 0)
    rollout = gate.sampler("a")
    asking = turn(rollout)
    engine.finish((await engine.next_request()).id, Span(0, 0, 1))
    await asking
    waiting = turn(rollout)
    await engine.next_request()
    await swap(gate, 1)
    again = await engine.next_request()
    assert again.salt == "01" * 16
    engine.finish(again.id, Span(1, 0, 1))
    await waiting


async def test_keep_lets_a_later_turn_wait_through_a_swap_under_its_salt(engine: PuppetEngine) -> None:
    gate = gate_on(engine)
    await swap(gate, 0)
    rollout = gate.sampler("a")
    asking = turn(rollout)
    engine.finish((await engine.next_request()).id, Span(0, 0, 1))
    await asking
    waiting = turn(rollout)
    request = await engine.next_request()
    report = await swap(gate, 1)
    assert (report.kept, report.resubmitted) == (1, 0)  # type: ignore[attr-defined]
    engine.finish(request.id, Span(1, 0, 1))
    await waiting


async def test_a_rollout_that_can_no_longer_be_in_time_is_aborted(engine: PuppetEngine) -> None:
    gate = gate_on(engine, bound=1)
    await swap(gate, 0)
    asking = turn(gate.sampler("a"))
    engine.sampled.add((await engine.next_request()).id)
    assert (await swap(gate, 1)).aborted_stale == 0  # type: ignore[attr-defined]
    assert (await swap(gate, 2)).aborted_stale == 1  # type: ignore[attr-defined]
    with pytest.raises(TooLate):
        await asking


async def test_a_rollout_between_two_turns_is_given_up_at_its_next_one(engine: PuppetEngine) -> None:
    gate = gate_on(engine, bound=0)
    await swap(gate, 0)
    rollout = gate.sampler("a")
    asking = turn(rollout)
    engine.finish((await engine.next_request()).id, Span(0, 0, 1))
    await asking
    assert (await swap(gate, 1)).aborted_stale == 1  # type: ignore[attr-defined]
    with pytest.raises(TooLate):
        await turn(rollout)


async def test_a_rollout_that_has_ended_is_not_counted_as_too_late(engine: PuppetEngine) -> None:
    gate = gate_on(engine, bound=0)
    await swap(gate, 0)
    rollout = gate.sampler("a")
    asking = turn(rollout)
    engine.finish((await engine.next_request()).id, Span(0, 0, 1))
    await asking
    rollout.close()
    assert (await swap(gate, 1)).aborted_stale == 0  # type: ignore[attr-defined]


async def test_masking_aborts_nothing(engine: PuppetEngine) -> None:
    gate = gate_on(engine, bound=0, abort_late=False)
    await swap(gate, 0)
    asking = turn(gate.sampler("a"))
    request = await engine.next_request()
    engine.sampled.add(request.id)
    assert (await swap(gate, 1)).aborted_stale == 0  # type: ignore[attr-defined]
    engine.finish(request.id, Span(0, 0, 1), Span(1, 1, 2))
    await asking


async def test_weights_never_go_back(engine: PuppetEngine) -> None:
    gate = gate_on(engine)
    await swap(gate, 3)
    with pytest.raises(EngineError, match="weights 3 do not follow weights 3"):
        await swap(gate, 3)


async def test_an_engine_below_the_least_version_waits(engine: PuppetEngine) -> None:
    gate = gate_on(engine)
    waiting = asyncio.create_task(gate.until_version(1))
    await swap(gate, 0)
    assert not waiting.done()
    await swap(gate, 1)
    await waiting


async def test_a_gate_that_closes_again_at_once_lets_nobody_pass_between(engine: PuppetEngine) -> None:
    async def slow_load(folder: Path) -> None:
        engine.calls.append("load")
        await asyncio.sleep(0)

    engine.load = slow_load  # type: ignore[method-assign]
    gate = gate_on(engine)
    asking = turn(gate.sampler("a"))
    await asyncio.sleep(0)
    await swap(gate, 0)
    await swap(gate, 1)
    request = await engine.next_request()
    assert engine.calls[-2:] == ["resume", "sample 01"]
    engine.finish(request.id, Span(1, 0, 1))
    await asking


async def test_weights_that_cannot_be_loaded_leave_the_gate_open_on_the_old_ones(engine: PuppetEngine) -> None:
    async def refuse(folder: Path) -> None:
        raise WeightsError("they were pruned")

    gate = gate_on(engine)
    await swap(gate, 0)
    asking = turn(gate.sampler("a"))
    await engine.next_request()
    engine.load = refuse  # type: ignore[method-assign]
    with pytest.raises(WeightsError):
        await swap(gate, 1)
    again = await engine.next_request()
    assert (gate.version, again.salt, engine.calls[-2:]) == (0, "00" * 16, ["resume", "sample 00"])
    engine.finish(again.id, Span(0, 0, 1))
    await asking


async def test_a_swap_begins_only_after_the_weights_are_no_longer_held(engine: PuppetEngine) -> None:
    gate = gate_on(engine)
    await swap(gate, 0)
    before = len(engine.calls)
    async with gate.held() as held:
        assert held == 0
        swapping = asyncio.create_task(swap(gate, 1))
        asking = turn(gate.sampler("a", temperature=0.25))
        request = await engine.next_request()
        assert request.temperature == 0.25
        assert engine.calls[before:] == ["sample 00"], "a swap went on while the weights were held"
        engine.finish(request.id, Span(0, 0, 2))
        await asking
        assert gate.version == 0
    await swapping
    assert gate.version == 1
    assert engine.calls[before + 1 :] == ["stage", "pause", "load", "label 1", "resume"]
