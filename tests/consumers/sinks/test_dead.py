from __future__ import annotations

import asyncio
import logging

import pytest

from bus import Bus, EmbeddedServer
from consumers.sinks import run_dead
from consumers.sinks.dead import dead_letter_line
from tests import examples
from tests.raw_publisher import publish_raw


def test_line_says_where_and_why() -> None:
    assert dead_letter_line(examples.dead()) == (
        "dead letter: ROLLOUTS 41, subject hr.demo.rollout.reverse, 15 bytes, by trainer/trainer: "
        "not a known event: Input data was truncated"
    )


def test_letter_is_one_line_whatever_its_reason() -> None:
    line = dead_letter_line(examples.dead(reason="first\n  second\r\nthird", sequence=0))
    assert line.splitlines() == [line]
    assert line.endswith("by trainer/trainer: first second third")
    assert "ROLLOUTS (never stored)" in line
    assert dead_letter_line(examples.dead(reason="")).endswith(": no reason given")


async def test_each_dead_letter_of_the_run_is_logged(writer: Bus, sink: Bus, caplog: pytest.LogCaptureFixture) -> None:
    for sequence in (41, 42):
        await writer.publish(examples.dead(run=writer.run, sequence=sequence))
    stop = asyncio.Event()
    stop.set()
    with caplog.at_level(logging.WARNING, logger="headrace.dead"):
        await run_dead(sink, stop)
    lines = [record.getMessage() for record in caplog.records if record.name == "headrace.dead"]
    assert [line.partition(",")[0] for line in lines] == ["dead letter: ROLLOUTS 41", "dead letter: ROLLOUTS 42"]


async def test_poison_among_the_letters_is_told_and_stops_nobody(
    server: EmbeddedServer, writer: Bus, sink: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    await publish_raw(server.address("admin"), f"hr.{writer.run}.dead.ROLLOUTS", b"noise", b"Status: 404\r\n")
    await writer.publish(examples.dead(run=writer.run))
    stop = asyncio.Event()
    stop.set()
    with caplog.at_level(logging.WARNING, logger="headrace.dead"):
        await run_dead(sink, stop)
    first, second = [record.getMessage() for record in caplog.records if record.name == "headrace.dead"]
    assert first.startswith("dead letter 1 is itself no valid event: not a known event")
    assert second.startswith("dead letter: ROLLOUTS 41")
