from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from queue import Queue

import msgspec

from headrace.commands.tail import LATEST
from headrace.folder import RunFolder
from tests import examples
from tests.headrace import recorded
from tests.headrace.conftest import GoingOn, Headrace
from tests.waiting import DEADLINE_S


def test_tail_of_an_ended_run_shows_the_last_events_and_ends(ended: RunFolder, headrace: Headrace) -> None:
    told = headrace("tail", "demo", "--dir", ended.path.parent)
    lines = told.out.splitlines()
    assert told.code == 0
    assert len(lines) == LATEST
    assert lines[-1].endswith("stopped, process 11")
    assert any("rollout g1/2 reverse" in line for line in lines)


def test_since_start_shows_all_streams_in_the_order_of_time(ended: RunFolder, headrace: Headrace) -> None:
    told = headrace("tail", "demo", "--dir", ended.path.parent, "--since-start")
    lines = told.out.splitlines()
    assert len(lines) == 4 + len(recorded.events("demo", 3))
    times = [line.split()[0] for line in lines]
    assert times == sorted(times)
    assert "weights v0" in lines[0]


def test_kinds_are_filtered_before_the_last_ones_are_counted(ended: RunFolder, headrace: Headrace) -> None:
    told = headrace("tail", "demo", "--dir", ended.path.parent, "--kind", "step,weights")
    words = [line.split()[2] for line in told.out.splitlines()]
    assert sorted(words) == ["step"] * 3 + ["weights"] * 4


def test_json_has_the_whole_event_and_its_headers(ended: RunFolder, headrace: Headrace) -> None:
    told = headrace("tail", "demo", "--dir", ended.path.parent, "--kind", "rollout", "--json")
    rollouts = [msgspec.json.decode(line) for line in told.out.splitlines()]
    assert [(each["group"], each["member"]) for each in rollouts] == [(g, m) for g in range(2) for m in range(3)]
    assert rollouts[0]["logprobs"] == [-0.5] * 4
    assert rollouts[0]["headers"]["hr-run"] == "demo"


def test_message_that_is_no_event_has_a_line_of_both_kinds(tmp_path: Path, headrace: Headrace) -> None:
    from bus import EmbeddedServer, connect

    folder = recorded.make_run(tmp_path)
    server = EmbeddedServer.start(folder.nats)

    async def disturb() -> None:
        bus = await connect(server.address("admin"), run="demo", role="admin", id="x")
        await bus.wire.request("hr.demo.rollout.reverse", b"not an event", timeout_s=5)
        await bus.close()

    asyncio.run(disturb())
    server.stop()
    told = headrace("tail", "demo", "--dir", tmp_path)
    assert "not an event: not a known event" in told.out.splitlines()[-1]
    told = headrace("tail", "demo", "--dir", tmp_path, "--json")
    assert msgspec.json.decode(told.out.splitlines()[-1])["subject"] == "hr.demo.rollout.reverse"


def test_no_follow_ends_while_the_run_goes_on(going_on: GoingOn, headrace: Headrace) -> None:
    told = headrace("tail", "demo", "--dir", going_on.folder.path.parent, "--no-follow", "--kind", "step")
    assert told.code == 0
    assert len(told.out.splitlines()) == 2


def test_tail_follows_the_run_shows_each_event_once_and_ends_with_it(going_on: GoingOn) -> None:
    command = [sys.executable, "-m", "headrace", "tail", "demo", "--dir", str(going_on.folder.path.parent)]
    process = subprocess.Popen(
        [*command, "--kind", "step,control"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    lines: Queue[str] = Queue()
    assert process.stdout is not None
    stdout = process.stdout

    def read() -> None:
        for line in stdout:
            lines.put(line)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        seen = [lines.get(timeout=DEADLINE_S) for _ in range(2)]
        step = examples.step(run="demo", number=3)
        asyncio.run(recorded.record(going_on.server, "demo", [step]))
        seen.append(lines.get(timeout=DEADLINE_S))
        going_on.server.stop()
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()
        reader.join()
        stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert [line.split()[2:4] for line in seen] == [["step", "1"], ["step", "2"], ["step", "3"]]
    assert lines.empty()
