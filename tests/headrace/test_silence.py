from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from headrace.folder import RunFolder
from headrace.silence import Silence, silences, silent_server, words
from headrace.view import RunView
from schemas import Event
from tests import examples
from tests.headrace.conftest import GoingOn
from tests.logs import TIME, logged
from tests.signals import stop

HERE = socket.gethostname()


@pytest.fixture
def stopped() -> Iterator[int]:
    """A process that a signal has stopped; its parent is ours."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
    stop(process.pid)
    yield process.pid
    process.kill()
    process.wait()


def view_of(*events: Event) -> RunView:
    view = RunView("demo", interval_s=1.0)
    for event in events:
        view.apply(logged(event, time=TIME))
    return view


def ready(**fields: object) -> Event:
    return examples.lifecycle(state="ready", details={}, **fields)


def test_words_name_process_last_sign_and_remedy() -> None:
    silence = Silence(who="trainer/t", pid=42, since=1_795_999_822.1, why="its process is gone")
    assert words(silence, 1_795_999_839.0) == (
        "trainer/t (process 42) is silent since 00:50:22 UTC (17 s): its process is gone"
    )


def test_a_role_of_this_machine_is_looked_at(stopped: int) -> None:
    (silence,) = silences(view_of(ready(pid=stopped, host=HERE)), TIME + 60)
    assert (silence.who, silence.pid, silence.since) == ("generator/gen-0", stopped, TIME)
    assert silence.why == f"it was stopped by a signal; kill -CONT {stopped} lets it go on"
    (elsewhere,) = silences(view_of(ready(pid=stopped, host="mill")), TIME + 60)
    assert elsewhere.why == ""


def test_a_role_whose_process_is_gone_is_said_to_be() -> None:
    (silence,) = silences(view_of(ready(pid=2**22 + 1, host=HERE)), TIME + 60)
    assert silence.why == "its process is gone"


def test_an_engine_that_does_not_answer_is_named_with_its_process(stopped: int) -> None:
    beat = examples.metric(gauges={"engine_silent_s": 20.0})
    (silence,) = silences(view_of(ready(pid=os.getpid(), host=HERE), beat), TIME + 1)
    assert (silence.who, silence.pid, silence.since) == ("generator/gen-0 engine", stopped, TIME - 20)
    assert "kill -CONT" in silence.why


def test_an_engine_that_takes_its_time_is_not_silent() -> None:
    assert silences(view_of(ready(), examples.metric(gauges={"engine_silent_s": 2.0})), TIME + 1) == []


def test_a_silent_generator_is_named_once() -> None:
    beat = examples.metric(gauges={"engine_silent_s": 20.0})
    assert [each.who for each in silences(view_of(ready(), beat), TIME + 60)] == ["generator/gen-0"]


def test_server_is_silent_since_it_last_wrote_to_its_store(going_on: GoingOn) -> None:
    silence = silent_server(going_on.folder, time.time())
    assert silence is not None
    assert (silence.who, silence.pid, silence.why) == ("nats-server", going_on.server.pid, "")
    assert 0 <= time.time() - silence.since < 60


def test_run_without_a_server_has_none_that_is_silent(ended: RunFolder) -> None:
    assert silent_server(ended, time.time()) is None
