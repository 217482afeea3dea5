"""A generator among messages that it cannot use: each goes to DEAD with its reason, and the next task is played."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from bus import Bus, EmbeddedServer
from environments import Sample
from schemas import DEAD, ROLLOUTS, Dead, EngineError, Span, WeightsError, decode, encode
from tests.examples import rollout, task, weights
from tests.producers.generator.test_generator import SIZE, LabelledEngine, Mill, Turn
from tests.raw_publisher import publish_raw

GOLDEN = Path(__file__).parents[2] / "schemas" / "golden" / "task.v1"
DAMAGED = {path.stem: path for path in GOLDEN.glob("*.json") if path.with_suffix(".error").exists()}
UNREADABLE = {
    name: (path.read_bytes(), path.with_suffix(".error").read_text().strip()) for name, path in DAMAGED.items()
}


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        *UNREADABLE.values(),
        (b"\x00\xff\xfe", "not a known event: Expected `object`, got `int`"),
        (b"", "not a known event: Input data was truncated"),
        (encode(task()).replace(b"task.v1", b"task.v9"), "not a known event: Invalid value 'task.v9' - at `$.type`"),
        (encode(task(run="other")), "it is a task.v1 of run 'other', which belongs to subject hr.other.task.reverse"),
        (encode(rollout()), "it is a rollout.v1 of run 'demo', which belongs to subject hr.demo.rollout.reverse"),
    ],
    ids=[*UNREADABLE, "noise", "empty", "another version", "another run's", "another event"],
)
async def test_a_message_that_is_no_task_goes_to_dead_and_the_next_is_played(
    mill: Mill, server: EmbeddedServer, connect_as: Any, payload: bytes, reason: str
) -> None:
    await mill.announce(0)
    reader: Bus = await connect_as("reader")
    await publish_raw(server.address("admin"), f"hr.{reader.run}.task.reverse", payload, b"hr-group: 1\r\n")
    await mill.issue(1)
    async with mill.generator(Turn()):
        assert {each.group for each in await mill.rollouts(SIZE)} == {1}
        await mill.settled(2)
    (letter,) = await letters(reader)
    assert (letter.stream, letter.sequence, letter.payload, letter.headers) == ("TASKS", 1, payload, {"hr-group": "1"})
    assert letter.reason == reason


@pytest.mark.parametrize(
    ("fields", "members", "reason"),
    [
        ({"size": 1}, 2, "it asks for 1 members, and trainer.group_size is 2 here"),
        ({"size": 5}, 5, "it asks for 5 members, and trainer.group_size is 2 here"),
        ({"env": "chess"}, 2, "environment 'chess' is not in this generator's configuration"),
        ({"least_version": 99}, 2, "it asks for weights 99, and the run ends with step 99"),
        ({"least_version": 2**31 - 1}, 2, "it asks for weights 2147483647, and the run ends with step 99"),
    ],
)
async def test_a_task_that_cannot_be_played_goes_to_dead_and_its_group_ends_with_failed_members(
    mill: Mill, connect_as: Any, fields: dict[str, Any], members: int, reason: str
) -> None:
    """Without them it would be open for ever, and hold a place among the groups that may be."""
    await mill.announce(0)
    dispatcher, reader = await connect_as("dispatcher"), await connect_as("reader")
    await dispatcher.publish(task(**{"run": dispatcher.run, "group": 0, "size": SIZE, "least_version": 0} | fields))
    await mill.issue(1)
    async with mill.generator(Turn()):
        rollouts = await mill.rollouts(members + SIZE)
        await mill.settled(2)
    refused = [each for each in rollouts if each.group == 0]
    assert sorted(each.member for each in refused) == list(range(members))
    assert {(each.error.kind, each.reward) for each in refused if each.error} == {("refused", None)}
    assert all(reason in each.error.message for each in refused if each.error)
    assert {each.group for each in rollouts if each.error is None} == {1}
    (letter,) = await letters(reader)
    assert reason in letter.reason
    assert decode(letter.payload).group == 0  # type: ignore[union-attr]


async def test_what_is_no_announcement_of_weights_is_passed_over_and_said(
    mill: Mill, server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The trainer is fenced by it; the generator goes on with the weights that it has."""
    await mill.announce(0)
    run, announced = mill.trainer.run, encode(weights(version=1))
    for payload in (b"noise", announced.replace(b"float32", b"float16"), announced):
        await publish_raw(server.address("admin"), f"hr.{run}.weights", payload)
    await mill.issue(0)
    async with mill.generator(Turn()):
        rollouts = await mill.rollouts(SIZE)
    assert {each.least_version for each in rollouts} == {0}
    for words in ("not a known event", "Invalid enum value 'float16'", "it is a weights.v1 of run 'demo'"):
        assert words in caplog.text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"sha256": "0" * 64}, "the location names"),
        ({"size_bytes": 1}, r"has 9 bytes, weights 0 were announced with 1"),
        ({"location": "file:../../etc"}, "is not of this store: expected file:<sha256>"),
        ({"location": "http://elsewhere/x"}, "is not of this store"),
        ({"sha256": "0" * 64, "location": f"file:{'0' * 64}"}, "weights 0 are not in"),
    ],
)
async def test_weights_that_are_not_what_was_announced_end_the_generator_with_their_fault(
    mill: Mill, fields: dict[str, Any], words: str
) -> None:
    await mill.announce(0, **fields)
    async with mill.generator(Turn()) as running:
        with pytest.raises(WeightsError, match=words):
            await running


async def test_weights_that_are_no_numbers_are_an_engine_s_fault_and_never_a_rollout(mill: Mill) -> None:
    class Ruined(LabelledEngine):
        async def sample(self, request: object) -> Sample:  # type: ignore[override]
            return Sample(tokens=[0], logprobs=[math.nan], spans=[Span(0, 0, 1)], finish="stop", cached=0)

    await mill.announce(0)
    await mill.issue(0)
    async with mill.generator(Turn(), engine=Ruined()) as running:
        with pytest.raises(BaseExceptionGroup) as caught:
            await running
    told, others = caught.value.split(EngineError)
    assert others is None
    assert "log-probability nan (are its weights still numbers?)" in str(_first(told))
    assert (await mill.trainer.state(ROLLOUTS)).messages == 0


def _first(group: BaseExceptionGroup[Any] | None) -> BaseException:
    assert group is not None
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


async def letters(bus: Bus) -> list[Dead]:
    return [logged.event async for logged in bus.read(DEAD) if isinstance(logged.event, Dead)]


@pytest.fixture
def mill(connect_as: Any, tmp_path: Path) -> Mill:
    return Mill(connect_as, tmp_path)
