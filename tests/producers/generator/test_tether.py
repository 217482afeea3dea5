"""The tether: no process of an engine outlives its generator."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path

import psutil
import pytest

from producers.generator.tether import FRONT, tie_to_parent
from tests.stand_in.tiny import make_tiny_model

ROOT = Path(__file__).parents[3]
DEADLINE_S = 30.0

GENERATOR_WITH_CHILD = """
    import multiprocessing, os, sys, threading, time
    from producers.generator.tether import FRONT, tie_to_parent

    def child(tie, started):
        if tie:
            tie_to_parent()
        started.set()
        time.sleep(600)

    if __name__ == "__main__":
        os.environ[FRONT] = str(os.getpid())
        context = multiprocessing.get_context("spawn")
        started = context.Event()
        context.Process(target=child, args=(True, started)).start()
        started.wait()
        print("ready", flush=True)
        time.sleep(600)
"""

GENERATOR_WITH_VLLM = """
    import asyncio, sys
    from pathlib import Path
    from producers.generator.engine import SamplingRequest
    from producers.generator.settings import GeneratorSettings
    from producers.generator.vllm_engine import VllmEngine
    from schemas import PolicySettings

    async def main():
        settings = GeneratorSettings(concurrency=4, max_model_len=128, kv_cache_gib=0.05)
        engine = VllmEngine(Path(sys.argv[1]), settings, PolicySettings(), "float32", 0)
        await engine.start()
        print("ready", flush=True)
        await asyncio.sleep(600)

    if __name__ == "__main__":
        asyncio.run(main())
"""


def kill_when_ready(script: Path, *arguments: str) -> dict[psutil.Process, str]:
    """Run a generator until it prints ``ready``, kill it, and return the children that it had then, and their names.

    Python's own resource tracker is one of them: it ends by itself, and then the shared memory is gone too.
    """
    generator = subprocess.Popen([sys.executable, script, *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert generator.stdout is not None
        # A child's own output may come first.
        assert any(line == "ready\n" for line in generator.stdout)
        return {child: child.name() for child in psutil.Process(generator.pid).children(recursive=True)}
    finally:
        generator.kill()
        generator.communicate()


def assert_gone(processes: Iterable[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=DEADLINE_S)
    for process in alive:
        process.kill()
    assert alive == []


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A place for a program, as spawned children read it again."""
    return tmp_path / "generator.py"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_vllm_finds_the_tether_by_its_entry_point() -> None:
    found = [point.value for point in entry_points(group="vllm.general_plugins")]
    assert f"{tie_to_parent.__module__}:{tie_to_parent.__qualname__}" in found


def test_a_child_dies_with_a_killed_generator(script: Path) -> None:
    script.write_text(textwrap.dedent(GENERATOR_WITH_CHILD))
    children = kill_when_ready(script)
    assert children
    assert_gone(children)


@pytest.mark.parametrize("front", [None, str(os.getpid())], ids=["nobody", "itself"])
def test_neither_the_generator_nor_a_foreign_engine_is_tied(front: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: psutil.Process(os.getppid()))
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: pytest.fail("it was tied"))
    monkeypatch.delenv(FRONT, raising=False)
    if front is not None:
        monkeypatch.setenv(FRONT, front)
    tie_to_parent()


def test_a_child_whose_generator_has_gone_ends_at_once() -> None:
    orphan = """
        import multiprocessing, os
        from unittest.mock import Mock
        from producers.generator.tether import tie_to_parent
        multiprocessing.parent_process = lambda: Mock(pid=os.getppid() + 1)
        tie_to_parent()
        print("still here")
    """
    environment = os.environ | {FRONT: "1"}
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(orphan)], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout) == (-9, "")


@pytest.mark.engine
@pytest.mark.timeout(300)
def test_vllm_dies_with_a_killed_generator(script: Path, tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model", seed=0)
    script.write_text(textwrap.dedent(GENERATOR_WITH_VLLM))
    children = kill_when_ready(script, str(tmp_path / "model"))
    assert any(name.startswith("VLLM::") for name in children.values())
    assert_gone(children)
