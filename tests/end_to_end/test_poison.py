"""A hostile publisher with every permission, while a run trains: the run finishes, and says what it was given."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from bus import Address, EmbeddedServer, connect
from bus.stream import event_in
from headrace.folder import RunFolder
from headrace.server import serving
from schemas import (
    CONTROL,
    DEAD,
    MAX_PAYLOAD_BYTES,
    ROLLOUTS,
    TASKS,
    TELEMETRY,
    Dead,
    Event,
    GroupTask,
    Rollout,
    StreamSpec,
    encode,
)
from tests import examples
from tests.end_to_end.conftest import ROOT, Start, Up
from tests.end_to_end.logbook import Logbook, check, read_logbook
from tests.examples import packed_logprobs, packed_tokens
from tests.raw_publisher import publish_raw

pytestmark = pytest.mark.timeout(400)
RUN = "whole"
FORGED_GROUP = 10**6
LIES = (
    b"Status: 404\r\nDescription: No Messages\r\nNats-Sequence: 7\r\nce-type: headrace.term.v1\r\nhr-run: other\r\n"
    b"hr-group: 99999\r\nhr-member: 99999\r\nhr-version-max: 99999\r\nhr-reward: nan\r\nhr-note: \xff\xfe\r\n"
)


class Poison(msgspec.Struct, frozen=True):
    """One message, and what must come of it."""

    spec: StreamSpec
    payload: bytes
    reason: str | None
    """Words of its dead letter, or of the logs where its stream has no letters; None where it is a valid event."""
    subject: bytes
    """After ``hr.<run>.``."""
    headers: bytes = b""


def packed(event: Event, **fields: Any) -> bytes:
    """``event`` with other fields, however wrong."""
    return msgspec.msgpack.encode(msgspec.to_builtins(event, builtin_types=(bytes,)) | fields)


def poisoned_rollouts(good: Rollout) -> Iterator[Poison]:
    """``good`` is one that the run has: what is wrong with each is one thing alone."""

    def poison(reason: str | None, payload: bytes, **more: Any) -> Poison:
        return Poison(ROLLOUTS, payload, reason, **({"subject": f"rollout.{good.env}".encode()} | more))

    n_tokens, n_sampled = len(good.tokens) // 4, good.sampled_tokens
    yield poison("not a known event", b"\x00\xff random bytes \x93")
    yield poison("not a known event: Input data was truncated", b"")
    yield poison("not a known event: Input data was truncated", encode(good)[:-7])
    yield poison("not a known event", b'{"type": "rollout.v1", "run": "whole", "group": ')
    yield poison("Expected `bytes`, got `array`", msgspec.json.encode(_listed(good)))
    yield poison("Invalid value 'rollout.v9'", encode(good).replace(b"rollout.v1", b"rollout.v9"))
    yield poison("Invalid value 'rumour.v1'", packed(good, type="rumour.v1"))
    yield poison("of run 'other', which belongs to", packed(good, run="other"))
    yield poison("it is a term.v1 of run 'whole'", encode(examples.term(run=RUN)))
    yield poison("which belongs to subject", encode(good), subject=b"rollout.elsewhere")
    yield poison("which belongs to subject", encode(good), subject=b"rollout.\xff\xfe")
    yield poison("logprobs for", packed(good, logprobs=good.logprobs[:-4]))
    yield poison("not a whole number of int32", packed(good, tokens=good.tokens[:-1]))
    yield poison("turns cover", packed(good, tokens=good.tokens + b"\0\0\0\0"))
    yield poison("is not finite", packed(good, reward=float("nan")))
    yield poison("is not finite", packed(good, reward=float("-inf")))
    yield poison("is beyond 1e+06", packed(good, reward=1e300))
    yield poison("beyond 1e+12", packed(good, metrics={"win": 1e308}))
    yield poison("a logprob is not finite", packed(good, logprobs=packed_logprobs([np.nan] * n_sampled)))
    yield poison("a logprob is above 0", packed(good, logprobs=packed_logprobs([0.5] * n_sampled)))
    yield poison("a logprob is below", packed(good, logprobs=packed_logprobs([-1e38] * n_sampled)))
    yield poison("spans cover", packed(good, spans=[]))
    yield poison("expected 1", packed(good, spans=[[0, 0, 1], [1, 0, n_sampled]]))
    yield poison("a token id is negative", packed(good, tokens=packed_tokens([-1] * n_tokens)))
    yield poison("it has token id 9999, and the model has", packed(good, tokens=packed_tokens([9999] * n_tokens)))
    yield poison("it claims weights 5000, but the newest are", packed(good, spans=[[5000, 0, n_sampled]]))
    yield poison("member 4 of a group, and a group has 4", packed(good, member=4))
    yield poison("member 5000 is not below 4096", packed(good, member=5000))
    yield poison("was never issued", packed(good, group=FORGED_GROUP))
    yield poison("group 9007199254740993 exceeds", packed(good, group=2**53 + 1))
    nothing = {"tokens": b"", "logprobs": b"", "turns": [], "spans": []}
    yield poison("a rollout with a reward has no sampled token", packed(good, **nothing))
    yield poison("exactly one of reward and error is needed", packed(good, reward=None))
    yield poison("not a known event", bytes(MAX_PAYLOAD_BYTES - 64 * 1024))
    yield poison("not a known event", b"noise", headers=LIES)
    yield poison(None, packed(good, reward=1.0), headers=LIES)  # another play of a member: a duplicate
    yield poison(None, encode(good))


def _listed(rollout: Rollout) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(rollout)
    return fields | {"tokens": rollout.token_ids().tolist()}


def poisoned_tasks(good: GroupTask) -> Iterator[Poison]:
    def poison(reason: str, payload: bytes, **more: Any) -> Poison:
        return Poison(TASKS, payload, reason, **({"subject": f"task.{good.env}".encode()} | more))

    forged = msgspec.structs.replace(good, group=FORGED_GROUP)
    yield poison("not a known event", b"\x93random")
    yield poison("not a known event", encode(good)[:-3], headers=LIES)
    yield poison("Invalid value 'task.v9'", encode(good).replace(b"task.v1", b"task.v9"))
    yield poison("of run 'other', which belongs to", packed(good, run="other"))
    yield poison("it is a step.v1 of run 'whole'", encode(examples.step(run=RUN)))
    yield poison("size 5000 exceeds 4096", packed(good, size=5000))
    yield poison("it asks for 3 members, and trainer.group_size is 4", encode(msgspec.structs.replace(forged, size=3)))
    late, unknown = {"group": FORGED_GROUP + 1, "least_version": 10**6}, {"group": FORGED_GROUP + 2, "env": "chess"}
    yield poison("it asks for weights 1000000, and the run ends", packed(forged, **late))
    yield poison("environment 'chess' is not in", packed(forged, **unknown), subject=b"task.chess")


def poisoned_others() -> Iterator[Poison]:
    """Streams without letters: what they hold is passed over, and said in the logs of who reads it."""
    stop = encode(examples.control(run="other", action="stop", limit=None))
    yield Poison(CONTROL, b"garbage", "not a known event", b"control")
    dance = stop.replace(b'"other"', b'"whole"').replace(b'"stop"', b'"dance"')
    yield Poison(CONTROL, dance, "Invalid enum value 'dance'", b"control")
    yield Poison(CONTROL, stop, "it is a control.v1 of run 'other'", b"control", LIES)
    yield Poison(TELEMETRY, b"garbage", None, b"metric.generator.0", LIES)
    yield Poison(TELEMETRY, encode(examples.metric(run=RUN, role="trainer", id="x")), None, b"metric.generator.0")
    yield Poison(DEAD, b"garbage", None, b"dead.ROLLOUTS", LIES)


class Published(msgspec.Struct, frozen=True):
    poison: Poison
    sequence: int


async def give(address: Address) -> list[Published]:
    """Publish all of it, made of what the run has said."""
    bus = await connect(address, run=RUN, role="admin", id="hostile")
    task = await anext(bus.read(TASKS))
    assert isinstance(task.event, GroupTask)
    rollouts = [logged.event async for logged in bus.read(ROLLOUTS) if isinstance(logged.event, Rollout)]
    good = next(each for each in rollouts if each.reward is not None and each.sampled_tokens > 1)
    published = []
    for poison in (*poisoned_rollouts(good), *poisoned_tasks(task.event), *poisoned_others()):
        subject = f"hr.{RUN}.".encode() + poison.subject
        published.append(Published(poison, await publish_raw(address, subject, poison.payload, poison.headers)))
    with pytest.raises(AssertionError, match="message size exceeds maximum allowed"):
        await publish_raw(address, f"hr.{RUN}.rollout.{good.env}", bytes(MAX_PAYLOAD_BYTES + 1))
    await bus.close()
    return published


class Aftermath(msgspec.Struct):
    """A run that has finished by itself, and what it was given meanwhile."""

    summary: dict[str, Any]
    book: Logbook
    published: list[Published]
    letters: list[Dead]

    def given(self, spec: StreamSpec) -> list[Published]:
        return [each for each in self.published if each.poison.spec is spec]

    def letters_of(self, spec: StreamSpec, sequence: int) -> list[Dead]:
        return [each for each in self.letters if (each.stream, each.sequence) == (spec.kind, sequence)]


def admin_of(up: Up) -> Address:
    addresses = EmbeddedServer.find(up.folder / "nats")
    assert addresses is not None
    return addresses["admin"]


@pytest.fixture(scope="module")
def aftermath(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Aftermath:
    up = start(tmp_path_factory.mktemp("poison"))
    up.until("step   3/24")
    published = asyncio.run(give(admin_of(up)))
    summary = up.end()
    book = read_logbook(up.folder)
    book.tasks = [task for task in book.tasks if task.group < FORGED_GROUP]
    return Aftermath(summary, book, published, asyncio.run(read_letters(RunFolder(up.folder))))


async def read_letters(folder: RunFolder) -> list[Dead]:
    with serving(folder, "reader") as served:
        bus = await connect(served.address, run=RUN, role="reader", id="letters")
        letters = [logged.event async for logged in bus.read(DEAD) if isinstance(logged.event, Dead)]
        await bus.close()
    return letters


def test_the_run_finished_and_its_log_holds_what_every_log_must(aftermath: Aftermath) -> None:
    assert aftermath.summary["steps"] == 24
    assert sum(aftermath.summary["restarts"].values()) == 0, "something died of it"
    read = [each for each in aftermath.published if each.poison.spec in (TASKS, ROLLOUTS, TELEMETRY)]
    check(aftermath.book, strange=sum(not is_event(each) for each in read))


def is_event(published: Published) -> bool:
    """Whether it is an event, and where it belongs."""
    subject = f"hr.{RUN}.".encode() + published.poison.subject
    return event_in(published.poison.payload, subject.decode("utf-8", "replace"))[0] is not None


def test_each_is_in_dead_whole_with_its_reason(aftermath: Aftermath) -> None:
    for spec in (ROLLOUTS, TASKS):
        for each in aftermath.given(spec):
            letters = aftermath.letters_of(spec, each.sequence)
            if each.poison.reason is None:
                assert not letters
                continue
            (letter,) = letters
            assert letter.payload == each.poison.payload
            assert each.poison.reason in letter.reason
            assert letter.subject.startswith(f"hr.{RUN}.{spec.kind.lower()[:-1]}.")
            assert letter.by == ("trainer/trainer" if spec is ROLLOUTS else "generator/0")
            assert ("ce-type" in letter.headers) == (each.poison.headers == LIES)


def test_nothing_else_is_in_dead_but_the_failed_members_of_forged_groups(aftermath: Aftermath) -> None:
    given = {(each.poison.spec.kind, each.sequence) for each in aftermath.published}
    for letter in aftermath.letters:
        if (letter.stream, letter.sequence) not in given:
            assert letter.stream == "ROLLOUTS"
            rollout = aftermath.book.rollouts[letter.sequence]
            assert rollout.group >= FORGED_GROUP
            assert rollout.error is not None
            assert rollout.error.kind == "refused"
            assert "was never issued" in letter.reason


def test_the_low_water_mark_passed_all_of_it_and_none_was_trained(aftermath: Aftermath) -> None:
    sequences = {each.sequence for each in aftermath.given(ROLLOUTS)}
    assert aftermath.book.steps[-1].low_water > max(sequences)
    for step in aftermath.book.steps:
        for group in step.groups:
            assert sequences.isdisjoint(group.sequences), f"step {step.number} took poison"
            assert group.group < FORGED_GROUP
    assert all(closed.group < FORGED_GROUP for closed in aftermath.book.closed)


def test_the_poisoned_run_can_be_trained_again(aftermath: Aftermath) -> None:
    folder = aftermath.book.folder
    command = [sys.executable, "-m", "headrace", "replay", "train", folder.name, "--dir", str(folder.path.parent)]
    told = subprocess.run([*command, "--json"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout.splitlines()[-1])["identical"] is True


def test_what_has_no_letter_is_in_the_logs_of_who_reads_it(aftermath: Aftermath) -> None:
    for role in ("dispatcher", "generator-0", "trainer"):
        words = (aftermath.book.folder.logs / f"{role}.log").read_text()
        for each in aftermath.given(CONTROL):
            assert f"message {each.sequence} of {RUN}_CONTROL is passed over" in words
            assert each.poison.reason is not None
            assert each.poison.reason in words


@pytest.mark.parametrize(
    "command",
    [["tail", RUN, "--since-start", "--no-follow"], ["status", RUN], ["runs"], ["show", RUN, "24"]],
    ids="".join,
)
def test_people_can_look_at_a_poisoned_run(aftermath: Aftermath, command: list[str]) -> None:
    folder = str(aftermath.book.folder.path.parent)
    told = subprocess.run(
        [sys.executable, "-m", "headrace", *command, "--dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert "Traceback" not in told.stdout + told.stderr


def test_a_poisoned_ledger_ends_the_run_and_the_next_start_says_why(start: Start, tmp_path: Path) -> None:
    up = start(tmp_path)
    up.until("step   2/24")
    forged = encode(examples.step(run=RUN)).replace(b"step.v1", b"step.v9")
    sequence = asyncio.run(publish_raw(admin_of(up), f"hr.{RUN}.step", forged))
    up.process.communicate(timeout=60)
    words = up.progress.read_text()
    assert up.process.returncode == 1
    assert re.search(r"(step|weights|group) \d+ could not be .*: another writer owns the ledger", words), words
    assert f"message {sequence} is of unknown (writer unknown)" in words
    again = start(tmp_path)
    again.process.communicate(timeout=60)
    assert again.process.returncode == 1
    words = again.progress.read_text()
    assert f"message {sequence} of LEDGER (subject hr.{RUN}.step, source unknown) was written by no trainer" in words
    assert "Invalid value 'step.v9'" in words
