"""Runs as folders: ``ended`` for tests that only read it, ``make`` for tests that need one of their own.

``whole``       a run that was really trained; only its engine is a stand-in
``going_on``    a run whose embedded server is up, as during ``headrace up``
``headrace``    calls the command line; gives exit code, standard output and standard error
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from bus import EmbeddedServer
from headrace.cli import main
from headrace.folder import RunFolder
from headrace.models import make_tiny
from tests.end_to_end.conftest import CONFIG, ROOT, STAND_IN
from tests.headrace import recorded

STEPS = 6
"""Of the run ``whole``."""


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


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished run ``whole`` of 6 steps, with checkpoints 0, 4 and 6. Publish nothing into it."""
    parent = tmp_path_factory.mktemp("replay")
    make_tiny(parent / "tiny")
    config = parent / "config.toml"
    config.write_text(CONFIG.format(model=parent / "tiny", engine=STAND_IN, generators=1))
    sets = [f"--set={each}" for each in (f"run.steps={STEPS}", "trainer.checkpoint_every=2")]
    command = [sys.executable, "-m", "headrace", "up", str(config), "--dir", str(parent), *sets]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return RunFolder(parent / "whole")


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
