"""docs/nats-cli.md: a stand-in for the ``nats`` CLI runs each command as it stands there, and prints what is shown.

The run is ``demo``, recorded on a server as ``headrace up`` starts it, and asked with the contexts that it writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from bus import Bus, BusRole, EmbeddedServer, connect
from bus.server import find_binary
from bus.settings import LogSettings, WeightsSettings
from headrace.models.characters import END, character_tokenizer
from schemas import (
    CONTROL,
    ROLLOUTS,
    TASKS,
    Control,
    Event,
    GroupTask,
    Lifecycle,
    Metric,
    Rollout,
    ServerUnreachable,
    Span,
    TrainedGroup,
    Turn,
)
from tests import examples
from tests.stand_in.open_server import open_server
from tests.waiting import DEADLINE_S

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "nats-cli.md"
RUN = "demo"
STEPS, SIZE, IN_STEP = 3, 2, 4
ISSUED, LEASED, PLAYED = 16, 14, 13
"""Groups: 0 to 12 are played, 13 is being played, 14 and 15 wait; 0 to 11 are trained."""
ADDRESS = "nats://127.0.0.1:4222"
"""Of the other server, in the page."""
LIVE = "Subscribing on "
"""What a command says that goes on until it is interrupted."""


class Shown(NamedTuple):
    """A command in the documentation, and the lines below it."""

    command: str
    output: list[str]


def shown() -> list[Shown]:
    """Every ``nats`` command of the page, as its reader is to type it, with what stands below it."""
    blocks = re.findall(r"^```console\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    parts = [part.splitlines() for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [Shown(command, output) for command, *output in parts]


# The run


def rollout(group: int, member: int) -> Rollout:
    ids = character_tokenizer().encode(f"rev:abc=cba{END}").ids
    version = min(group // IN_STEP, STEPS)
    spans = [Span(version - 1, 0, 1), Span(version, 1, 4)] if group == 12 else [Span(version, 0, 4)]
    return examples.rollout(
        group=group, member=member, index=group, generator="ab"[group % 2], tokens=examples.packed_tokens(ids),
        logprobs=examples.packed_logprobs([-0.5] * 4), turns=[Turn(8, 4, 0, "stop")], spans=spans,
        reward=1.0 - 0.5 * member, metrics={"exact": float(member == 0)}, swaps_during=int(group == 12),
    )  # fmt: skip


def trained(group: int) -> TrainedGroup:
    return examples.trained_group(
        group=group,
        sequences=[group * SIZE + 1, group * SIZE + 2],
        rewards=[1.0, 0.5],
        advantages=[1.0, -1.0],
        left_out={},
    )


def ledger() -> list[Event]:
    sha256 = [f"{version}{examples.SHA256[1:]}" for version in range(STEPS + 1)]
    log: list[Event] = [examples.term(committed=0)]
    for version in range(STEPS + 1):
        if version:
            groups = [trained(group) for group in range(IN_STEP * (version - 1), IN_STEP * version)]
            log.append(
                examples.step(
                    number=version, groups=groups, packing=[[[0, 1, 2, 3], [4, 5, 6, 7]]], left_out={},
                    left_out_tokens={}, rollouts_seen=8 * version, low_water=8 * version,
                    weights_before=sha256[version - 1], weights_after=sha256[version],
                )
            )  # fmt: skip
        log.append(examples.weights(version=version, sha256=sha256[version], location=f"file:{sha256[version]}"))
    return log


def telemetry() -> list[Event]:
    log: list[Event] = [
        examples.lifecycle(role="dispatcher", id="mill", state="ready", pid=4241, version=None, details={}),
        examples.lifecycle(role="trainer", id="trainer", state="ready", pid=4242, version=None, details={}),
        examples.metric(role="dispatcher", id="mill", version=None, gauges={"groups_open": 4.0}),
        examples.metric(role="trainer", id="trainer", version=None, gauges={"rollouts_held": 2.0}),
    ]
    for id, pid, sampled in (("a", 4243, 52_000.0), ("b", 4244, 13_000.0)):
        gauges = {"in_play": 1.0, "sampled_tokens": sampled, "ready_s": 40.0, "busy_s": 38.0}
        log += [
            examples.lifecycle(id=id, pid=pid, version=STEPS, details={"pause_s": 0.1}),
            examples.metric(id=id, version=STEPS, gauges=gauges),
        ]
    return log


def live() -> list[Event]:
    """What happens while somebody watches."""
    return [
        rollout(13, 1),
        rollout(12, 2),
        examples.closed(group=12, step=4, rewards=[1.0, 0.5]),
        *(event for event in telemetry() if type(event).__name__ == "Metric"),
    ]


def publisher_of(event: Event) -> tuple[BusRole, str]:
    match event:
        case GroupTask():
            return "dispatcher", "mill"
        case Rollout():
            return "generator", event.generator
        case Lifecycle() | Metric():
            return event.role, event.id
        case _:
            return "trainer", "trainer"


async def publish(server: EmbeddedServer, log: list[Event]) -> None:
    """Each event by who says such things."""
    buses: dict[tuple[BusRole, str], Bus] = {}
    for event in log:
        role, id = who = publisher_of(event)
        if who not in buses:
            buses[who] = await connect(server.address(role), run=RUN, role=role, id=id)
        await buses[who].publish(event)
    for bus in buses.values():
        await bus.close()


async def record(server: EmbeddedServer) -> None:
    bus = await connect(server.address("admin"), run=RUN, role="admin", id="recorder")
    await bus.apply_topology(LogSettings(), WeightsSettings())
    tasks = [examples.task(group=group, index=group, size=SIZE) for group in range(ISSUED)]
    played = [rollout(group, member) for group in range(PLAYED) for member in range(SIZE)]
    await publish(server, [*tasks, *played, *ledger(), *telemetry()])
    await bus.wire.request(f"hr.{RUN}.rollout.reverse", b"not an event", {}, timeout_s=5.0)
    await lease(bus)
    refused = examples.dead(sequence=len(played) + 1, payload=b"not an event", headers={})
    await publish(server, [refused, rollout(13, 0)])
    await bus.close()


async def lease(bus: Bus) -> None:
    """As generators and trainer do: group 13 is in play, and what step 3 trained is settled."""
    generators = await bus.consumer(TASKS, "generators", ack="explicit", ack_wait_s=30)
    for delivery in (await generators.fetch(LEASED, 5.0))[:PLAYED]:
        await delivery.ack()
    trainer = await bus.consumer(ROLLOUTS, "trainer", ack="all", ack_wait_s=3600)
    await (await trainer.fetch(100, 5.0))[STEPS * IN_STEP * SIZE - 1].ack()


class Shell(NamedTuple):
    """A shell in the folder of the page's reader, where ``nats`` and ``headrace`` are found."""

    place: Path
    environment: dict[str, str]

    def start(self, command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-o", "pipefail", "-c", command], cwd=self.place, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def outcome(self, command: str) -> tuple[int, str]:
        """Its exit code, and what it prints."""
        process = self.start(command)
        printed, _ = process.communicate()
        return process.returncode, printed

    def run(self, command: str) -> str:
        """What it prints. Raises AssertionError where it fails."""
        code, printed = self.outcome(command)
        assert code == 0, f"{command}\n{printed}"
        return printed

    def watch(self, command: str, expected: list[str], happens: Callable[[], None]) -> str:
        """What a command prints that goes on: when it has begun, something ``happens``; then it is interrupted.

        It has until DEADLINE_S to print what is ``expected``.
        """
        said, printed = self.place / "said", self.place / "printed"
        said.touch()
        process = self.start(f"exec > {printed} 2> {said}; {command}")
        shell = psutil.Process(process.pid)
        deadline = time.monotonic() + DEADLINE_S
        while LIVE not in said.read_text():
            assert process.poll() is None, said.read_text()
            psutil.wait_procs([shell], timeout=0.05)
        happens()
        while missing(expected, printed.read_text()) and time.monotonic() < deadline:
            psutil.wait_procs([shell], timeout=0.05)
        family = [shell]
        with contextlib.suppress(psutil.NoSuchProcess):
            family += shell.children(recursive=True)
        for each in family:  # the first that ends may end the others
            with contextlib.suppress(psutil.NoSuchProcess):
                if "tests.stand_in.nats_cli" in each.cmdline():
                    each.send_signal(signal.SIGTERM)
        process.communicate()
        return printed.read_text()


@contextmanager
def recorded(place: Path) -> Iterator[EmbeddedServer]:
    """The server of the run in ``place``."""
    server = EmbeddedServer.start(place / "runs" / RUN / "nats", run=RUN)
    try:
        asyncio.run(record(server))
        yield server
    finally:
        server.stop()


def shell_in(place: Path) -> Shell:
    """As the page sets it up."""
    programs = place / "bin"
    programs.mkdir()
    for name, module in (("nats", "tests.stand_in.nats_cli"), ("headrace", "headrace")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m {module} "$@"\n')
        program.chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    return Shell(place, {"PATH": path, "XDG_CONFIG_HOME": str(place / "runs" / RUN / "nats" / "cli")})


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell beside a run in which nothing happens. Change nothing there."""
    place = tmp_path_factory.mktemp("still")
    with recorded(place):
        yield shell_in(place)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with recorded(tmp_path) as server:
        yield server


@pytest.fixture
def shell(tmp_path: Path, server: EmbeddedServer) -> Shell:
    return shell_in(tmp_path)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[str]:
    """Address of an empty server that asks nobody who they are."""
    with open_server(tmp_path / "elsewhere") as url:
        yield url


# What is shown


def masked(line: str) -> str:
    """Without what differs from time to time: clock, durations, digests, widths of tables."""
    line = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00| \+0000 UTC)?", "TIME", line)
    line = re.sub(r"^\d\d:\d\d:\d\d ", "", line)
    line = re.sub(r"\b(?:\d+[hms]){2,}|\b\d+(?:\.\d+)?(?:ms|s)\b|\bnever\b", "TOOK", line)
    line = re.sub(r"\b[0-9a-f]{16}\b", "DIGEST", line)
    line = re.sub(r"\b\d+(?:\.\d)? (?:B|[KM]iB)\b", "SIZE", line)
    return re.sub(r"─+", "─", re.sub(r"\s+", " ", line)).strip()


def missing(expected: list[str], printed: str) -> list[str]:
    """Lines that are shown, and were not printed."""
    found = {masked(line) for line in printed.splitlines()}
    return [line for line in expected if line.strip() not in ("", "...") and masked(line) not in found]


def goes_on(command: str) -> bool:
    return " sub " in command and "--terminate-at-end" not in command


def changes(command: str) -> bool:
    return " pub " in command or " restore " in command


COMMANDS = {each.command: each.output for each in shown()}


@pytest.mark.parametrize("command", [each for each in COMMANDS if not goes_on(each) and not changes(each)])
def test_a_command_prints_what_is_shown(command: str, still: Shell) -> None:
    printed = still.run(command)
    assert COMMANDS[command], "the page shows what it prints"
    assert missing(COMMANDS[command], printed) == [], printed


@pytest.mark.parametrize("command", [each for each in COMMANDS if goes_on(each)])
def test_a_command_that_goes_on_prints_what_is_shown(command: str, shell: Shell, server: EmbeddedServer) -> None:
    printed = shell.watch(command, COMMANDS[command], lambda: asyncio.run(publish(server, live())))
    assert COMMANDS[command], "the page shows what it prints"
    assert missing(COMMANDS[command], printed) == [], printed


@pytest.mark.parametrize("command", re.findall(r"`(nats stream get [^`]+)`", PAGE.read_text("utf-8")))
def test_a_variant_in_the_text_is_a_command_too(command: str, still: Shell) -> None:
    assert still.run(command).startswith("Item: demo_")


def test_a_backup_is_restored_on_another_server_as_shown(shell: Shell, elsewhere: str) -> None:
    [back_up] = [command for command in COMMANDS if " backup demo_" in command]
    [command] = [command for command in COMMANDS if " restore " in command]
    shell.run(back_up)
    printed = shell.run(command.replace(ADDRESS, elsewhere))
    assert missing(COMMANDS[command], printed) == [], printed
    assert 'Stream "demo_LEDGER" already exist' in shell.outcome(command.replace(ADDRESS, elsewhere))[1]


def test_every_nats_command_stands_where_it_is_run() -> None:
    """In a console block, or in the text as a variant of one; a block of another kind is not run."""
    for block in re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        assert not re.search(r"(?:^|[;\s])nats ", block)


def test_a_command_that_is_not_known_is_noticed(still: Shell) -> None:
    code, printed = still.outcome("nats stream purge demo_LEDGER")
    assert code == 2
    assert "invalid choice: 'purge'" in printed


@pytest.mark.parametrize("context", ["reader", "operator"])
def test_who_looks_cannot_change_a_thing(context: str, still: Shell) -> None:
    since = f"nats --context {context} sub --stream demo_ROLLOUTS --since 1m --wait 1s"
    task = f"nats --context {context} pub -J hr.demo.task.reverse '{{}}'"
    for command in (since, task):
        code, printed = still.outcome(command)
        assert code == 1
        assert "permissions violation for publish" in printed


def test_the_run_obeys_what_the_operator_says(shell: Shell, server: EmbeddedServer) -> None:
    [pause] = [command for command in COMMANDS if " pub " in command]

    async def read() -> list[object]:
        bus = await connect(server.address("reader"), run=RUN, role="reader", id="test")
        controls = [logged.event async for logged in bus.read(CONTROL)]
        await bus.close()
        return controls

    assert missing(COMMANDS[pause], shell.run(pause)) == []
    shell.run(pause.replace('"pause"', '"limit","limit":16'))
    assert asyncio.run(read()) == [
        Control(run=RUN, action="pause", by="me"), Control(run=RUN, action="limit", limit=16, by="me")
    ]  # fmt: skip


def test_a_server_on_the_store_of_a_run_that_has_ended_serves_everybody(shell: Shell, server: EmbeddedServer) -> None:
    [line] = [each for each in PAGE.read_text("utf-8").splitlines() if each.startswith("flock ")]
    server.stop()
    shell.environment["PATH"] += f":{find_binary().parent}"
    process = shell.start(f"exec {line}")
    try:
        while EmbeddedServer.find(server.folder) is None or shell.outcome("nats stream ls")[0]:
            assert process.poll() is None
        with pytest.raises(ServerUnreachable, match=r"a server runs on .* already"):
            EmbeddedServer.start(server.folder)
    finally:
        for each in psutil.Process(process.pid).children(recursive=True):
            each.terminate()
        process.communicate()
    assert EmbeddedServer.find(server.folder) is None
