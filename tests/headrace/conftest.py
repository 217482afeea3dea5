"""Runs as folders: ``ended`` for tests that only read it, ``make`` for tests that need one of their own.

``going_on``    a run whose embedded server is up, as during ``headrace up``
``headrace``    calls the command line; gives exit code, standard output and standard error
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from bus import EmbeddedServer
from headrace.cli import main
from headrace.folder import RunFolder
from tests.headrace import recorded


class Told(msgspec.Struct, frozen=True):
    """What a command did."""

    code: int
    out: str
    err: str


Headrace = Callable[..., Told]


@pytest.fixture(scope="session")
def ended(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished run ``demo`` beside an interrupted one, ``other``. Publish nothing into it."""
    parent = tmp_path_factory.mktemp("runs")
    recorded.make_run(parent, "other", steps=10, committed=2)
    return recorded.make_run(parent, "demo")


class GoingOn(msgspec.Struct, frozen=True):
    """A run and the server that a test may end."""

    folder: RunFolder
    server: EmbeddedServer


@pytest.fixture
def going_on(tmp_path: Path) -> Iterator[GoingOn]:
    """A run ``demo`` of 10 steps that has committed 2, with its server up."""
    folder = recorded.prepare(tmp_path / "runs", "demo", steps=10)
    server = EmbeddedServer.start(folder.nats)
    log = [*recorded.weights_of(folder, 2), *recorded.events("demo", 2)]
    asyncio.run(recorded.record(server, "demo", log))
    yield GoingOn(folder, server)
    server.stop()


@pytest.fixture
def headrace(capsys: pytest.CaptureFixture[str]) -> Headrace:
    def call(*argv: str | Path) -> Told:
        code = main([str(each) for each in argv])
        out, err = capsys.readouterr()
        return Told(code, out, err)

    return call
