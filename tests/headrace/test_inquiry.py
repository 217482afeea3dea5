from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus import Bus, EmbeddedServer, Logged
from headrace.folder import RunFolder
from headrace.inquiry import Place, ask, by_time, newest
from headrace.server import PASSWORD, USER
from headrace.silence import ServerSilent
from schemas import LEDGER, ROLLOUTS, RunError, Step, Weights
from tests import examples
from tests.conftest import ConnectAs
from tests.headrace.conftest import GoingOn
from tests.headrace.recorded import events, publish
from tests.logs import logged
from tests.signals import stop


async def _goes_on(bus: Bus, goes_on: bool) -> bool:
    return goes_on


def test_store_of_an_ended_run_is_woken_up_and_put_to_sleep_again(ended: RunFolder) -> None:
    assert ask(Place("demo", ended), _goes_on) is False
    assert EmbeddedServer.find(ended.nats) is None


def test_run_that_goes_on_is_asked_where_it_is(going_on: GoingOn) -> None:
    assert ask(Place("demo", going_on.folder), _goes_on) is True
    assert going_on.server.running


def test_question_is_asked_again_when_the_run_ends_meanwhile(going_on: GoingOn) -> None:
    async def question(bus: Bus, goes_on: bool) -> tuple[bool, int]:
        if goes_on:
            going_on.server.stop()
            async for _ in bus.read(LEDGER, start=10_000, follow=True):
                raise AssertionError("nothing comes from a server that has ended")
        return goes_on, (await bus.state(ROLLOUTS)).messages

    assert ask(Place("demo", going_on.folder), question) == (False, 6)


def test_server_that_is_stopped_is_named_with_its_process_and_the_remedy(going_on: GoingOn) -> None:
    stop(going_on.server.pid)
    with pytest.raises(
        ServerSilent, match=rf"nats-server \(process {going_on.server.pid}\) is silent since .* kill -CONT"
    ):
        ask(Place("demo", going_on.folder), _goes_on)


def test_server_that_is_stopped_during_a_question_ends_it(going_on: GoingOn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.inquiry.SILENT_S", 1.0)
    monkeypatch.setattr("headrace.pulse.ANSWER_S", 0.5)

    async def question(bus: Bus, goes_on: bool) -> int:
        stop(going_on.server.pid)
        return (await bus.state(ROLLOUTS)).messages

    with pytest.raises(ServerSilent) as raised:
        ask(Place("demo", going_on.folder), question)
    assert raised.value.silence.pid == going_on.server.pid


def test_patient_question_waits_for_a_server_that_is_stopped(
    going_on: GoingOn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.inquiry.SILENT_S", 0.1)
    monkeypatch.setattr("headrace.pulse.ANSWER_S", 0.1)

    async def question(bus: Bus, goes_on: bool) -> int:
        stop(going_on.server.pid)
        assert not await bus.answers(1.0)
        going_on.server.wake()
        return (await bus.state(ROLLOUTS)).messages

    assert ask(Place("demo", going_on.folder), question, patient=True) == 6


def test_error_in_a_question_comes_out_and_leaves_no_server(ended: RunFolder) -> None:
    async def question(bus: Bus, goes_on: bool) -> None:
        raise RunError("no")

    with pytest.raises(RunError, match="no"):
        ask(Place("demo", ended), question)
    assert EmbeddedServer.find(ended.nats) is None


def test_run_that_a_named_server_does_not_have_is_an_error_with_its_name(
    server: EmbeddedServer, ended: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = server.address("reader")
    monkeypatch.setenv(USER, str(address.user))
    monkeypatch.setenv(PASSWORD, str(address.password))

    async def question(bus: Bus, goes_on: bool) -> int:
        return (await bus.state(LEDGER)).messages

    with pytest.raises(RunError, match=r"there is no run 'nowhere' on nats://127\.0\.0\.1"):
        ask(Place("nowhere", ended, server.url), question)


async def test_newest_finds_rare_kinds_among_many_others(run: str, connect_as: ConnectAs) -> None:
    admin = await connect_as("admin")
    await publish(admin, *events(run, 3), *(examples.closed(run=run, group=group) for group in range(40)))
    steps = [each.event.number for each in await newest(admin, LEDGER, 2, (Step,)) if isinstance(each.event, Step)]
    assert steps == [2, 3]
    assert [each.sequence for each in await newest(admin, LEDGER, 2)] == [42, 43]
    assert await newest(admin, LEDGER, 5, (Weights,)) == []
    assert len(await newest(admin, ROLLOUTS, 100)) == 6


@given(st.lists(st.lists(st.integers(0, 20)), max_size=5))
def test_streams_are_merged_by_time_and_each_keeps_its_order(times: list[list[int]]) -> None:
    """Each stream's own times never fall, as a server records them."""

    async def stream(number: int, of: list[int]) -> AsyncIterator[Logged]:
        for sequence, time in enumerate(sorted(of), start=1):
            yield logged(examples.control(by=str(number)), sequence=sequence, time=float(time))

    async def merged() -> list[Logged]:
        return [each async for each in by_time([stream(i, of) for i, of in enumerate(times)])]

    found = asyncio.run(merged())
    assert [each.time for each in found] == sorted(float(time) for of in times for time in of)
    for number in range(len(times)):
        mine = [each.sequence for each in found if each.event == examples.control(by=str(number))]
        assert mine == list(range(1, len(times[number]) + 1))
