"""What a role instance tells about itself."""

from __future__ import annotations

import pytest

from bus import Telemetry
from schemas import TELEMETRY, Lifecycle, Metric
from tests.conftest import ConnectAs


async def test_lifecycle_and_gauges_are_in_telemetry_in_order(connect_as: ConnectAs) -> None:
    bus = await connect_as("generator", id="gen-0")
    async with Telemetry(bus, lambda: {"running": 3}, interval_s=600) as telemetry:
        telemetry.ready()
        telemetry.swapped(4, {"pause_s": 0.1})
    reader = await connect_as("reader")
    events = [logged.event async for logged in reader.read(TELEMETRY)]
    states = [(event.state, event.version) for event in events if isinstance(event, Lifecycle)]
    assert sorted(states, key=str) == sorted(
        [("started", None), ("ready", None), ("swapped", 4), ("stopped", 4)], key=str
    )
    gauges = [event.gauges for event in events if isinstance(event, Metric)]
    assert gauges
    assert all(each == {"running": 3.0} for each in gauges)
    assert {event.id for event in events if isinstance(event, Lifecycle | Metric)} == {"gen-0"}


async def test_role_that_fails_says_why_it_stopped(connect_as: ConnectAs) -> None:
    bus = await connect_as("generator")
    with pytest.raises(ZeroDivisionError):
        async with Telemetry(bus, dict, interval_s=600):
            _ = 1 / 0
    reader = await connect_as("reader")
    notes = [logged.event.note async for logged in reader.read(TELEMETRY) if isinstance(logged.event, Lifecycle)]
    assert "ZeroDivisionError: division by zero" in notes


async def test_gauge_that_is_no_number_is_dropped_and_the_role_goes_on(connect_as: ConnectAs) -> None:
    bus = await connect_as("generator")
    async with Telemetry(bus, lambda: {"loss": float("nan")}, interval_s=600):
        pass
    reader = await connect_as("reader")
    events = [logged.event async for logged in reader.read(TELEMETRY)]
    assert not [event for event in events if isinstance(event, Metric)]


async def test_gauges_that_fail_do_not_end_the_heartbeat(connect_as: ConnectAs) -> None:
    bus, reader = await connect_as("trainer"), await connect_as("reader")
    heartbeats = reader.read(TELEMETRY, kinds=(Metric,), follow=True)
    answers = iter([RuntimeError("dictionary changed size during iteration")])

    def gauges() -> dict[str, float]:
        if error := next(answers, None):
            raise error
        return {"step": 1.0}

    async with Telemetry(bus, gauges, interval_s=0.01):
        assert (await anext(heartbeats)).event is not None
