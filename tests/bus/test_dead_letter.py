"""A message that cannot be used is in DEAD, whole; and where it cannot be put there, that is said, and work goes on."""

from __future__ import annotations

import msgspec
import pytest

from bus import Bus, Denied, EmbeddedServer, Logged, bury
from schemas import DEAD, MAX_PAYLOAD_BYTES, ROLLOUTS, TASKS, Dead
from tests.conftest import ConnectAs
from tests.logs import unreadable
from tests.raw_publisher import publish_raw


async def letters(bus: Bus) -> list[Dead]:
    return [logged.event async for logged in bus.read(DEAD) if isinstance(logged.event, Dead)]


async def stored(server: EmbeddedServer, bus: Bus, payload: bytes, headers: bytes = b"") -> Logged:
    """``payload`` as it is read again from ROLLOUTS."""
    sequence = await publish_raw(server.address("admin"), f"hr.{bus.run}.rollout.reverse", payload, headers)
    async for logged in bus.read(ROLLOUTS, start=sequence):
        return logged
    raise AssertionError("nothing was stored")


async def test_the_letter_has_the_message_whole_and_the_reason(server: EmbeddedServer, connect_as: ConnectAs) -> None:
    trainer = await connect_as("trainer", id="t")
    message = await stored(server, trainer, b"\x00\xff", b"hr-group: 12\r\nx: y\r\n")
    await bury(trainer, message, ROLLOUTS, "it is noise")
    (letter,) = await letters(trainer)
    assert letter == Dead(
        run=trainer.run,
        stream="ROLLOUTS",
        sequence=1,
        subject=f"hr.{trainer.run}.rollout.reverse",
        headers={"hr-group": "12", "x": "y"},
        payload=b"\x00\xff",
        reason="it is noise",
        by="trainer/t",
    )


async def test_a_message_that_is_found_twice_has_one_letter(connect_as: ConnectAs) -> None:
    generator = await connect_as("generator")
    for _ in range(2):
        await bury(generator, unreadable(sequence=4), TASKS, "it is noise")
    assert [letter.sequence for letter in await letters(generator)] == [4]


@pytest.mark.parametrize("value", ["\udcff\ud800", "\ufffd" * 5000], ids=["surrogates", "replaced"])
async def test_headers_that_are_no_utf8_are_made_legible(connect_as: ConnectAs, value: str) -> None:
    trainer = await connect_as("trainer")
    message = msgspec.structs.replace(unreadable(), headers={"hr-group": value})
    await bury(trainer, message, ROLLOUTS, "it is noise")
    (letter,) = await letters(trainer)
    assert set(letter.headers["hr-group"]) <= set("?\ufffd")


async def test_the_largest_message_has_a_letter_also_where_its_headers_are_large(
    server: EmbeddedServer, connect_as: ConnectAs
) -> None:
    trainer = await connect_as("trainer")
    headers = b"x: " + b"\xff" * 60_000 + b"\r\n"
    payload = bytes(MAX_PAYLOAD_BYTES - len(headers) - 64)
    message = await stored(server, trainer, payload, headers)
    await bury(trainer, message, ROLLOUTS, "it is large")
    (letter,) = await letters(trainer)
    assert letter.payload == payload
    assert letter.headers == {}
    assert letter.reason.startswith("it is large (its headers of ")


async def test_a_full_dead_stream_is_told_and_stops_nobody(
    connect_as: ConnectAs, run: str, caplog: pytest.LogCaptureFixture
) -> None:
    admin, trainer = await connect_as("admin"), await connect_as("trainer")
    stream = (await admin.wire.api(f"STREAM.INFO.{run}_DEAD"))["config"]
    await admin.wire.api(f"STREAM.UPDATE.{run}_DEAD", {**stream, "max_bytes": 1500})
    for sequence in (1, 2, 3):
        message = msgspec.structs.replace(unreadable(sequence=sequence), payload=bytes(500))
        await bury(trainer, message, ROLLOUTS, "it is noise")
    assert [letter.sequence for letter in await letters(trainer)] == [1]
    assert f"message 3 of {run}_ROLLOUTS is put into DEAD: it is noise" in caplog.text
    assert f"message 3 of {run}_ROLLOUTS has no dead letter" in caplog.text
    assert "the stream is full (maximum bytes exceeded (10077)): read the letters, then purge it" in caplog.text


async def test_a_role_that_may_not_write_letters_is_told_whose_fault_it_is(connect_as: ConnectAs) -> None:
    reader = await connect_as("reader")
    with pytest.raises(Denied, match=rf"may not publish to 'hr\.{reader.run}\.dead\.ROLLOUTS'"):
        await bury(reader, unreadable(), ROLLOUTS, "it is noise")
