"""A run that evaluates: each due version on held-out tasks, whole, by its own tokens alone, and never trained."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bus import Bus, connect
from environments import load_environment
from headrace.folder import RunFolder
from headrace.server import serving
from producers import evaluation_tasks
from producers.held_out import is_held_out
from schemas import EVALUATIONS, EnvironmentSettings, Evaluated
from tests.end_to_end.conftest import ROOT, Start, Up
from tests.end_to_end.logbook import Logbook, check, read_logbook

pytestmark = pytest.mark.timeout(300)
STEPS, EVERY, TASKS, SAMPLES, SHARE = 6, 2, 120, 2, 0.2
SETS = [
    f"run.steps={STEPS}", f"evaluation.every_steps={EVERY}", f"evaluation.tasks={TASKS}", "evaluation.seed=7",
    f"evaluation.samples={SAMPLES}", f"evaluation.held_out={SHARE}", 'evaluation.environments=["reverse"]',
    "weights.keep=1",
]  # fmt: skip
KILLED_AT = 2
"""Version whose evaluation loses its generator."""


class Finished(msgspec.Struct):
    summary: dict[str, Any]
    book: Logbook
    evaluated: list[Evaluated]
    killed_at: float


async def when_evaluated(up: Up, version: int, plays: int, act: Callable[[], Any]) -> None:
    """Call ``act`` as soon as so many plays of ``version`` are published: the others go on meanwhile."""
    with serving(RunFolder(up.folder), "reader") as served:
        bus = await connect(served.address, run="whole", role="reader", id="watcher")
        seen = 0
        async for logged in bus.read(EVALUATIONS, follow=True):
            seen += isinstance(logged.event, Evaluated) and logged.event.version == version
            if seen == plays:
                act()
                break
        await bus.close()


async def all_evaluated(folder: RunFolder) -> list[Evaluated]:
    with serving(folder, "reader") as served:
        bus: Bus = await connect(served.address, run="whole", role="reader", id="reader")
        found = [logged.event async for logged in bus.read(EVALUATIONS)]
        await bus.close()
    assert all(isinstance(event, Evaluated) for event in found)
    return found  # type: ignore[return-value]


@pytest.fixture(scope="module")
def finished(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    up = start(tmp_path_factory.mktemp("run"), sets=SETS)
    up.until("step   1/")
    [generator] = up.running("generate")
    killed_at: list[float] = []

    def kill() -> None:
        generator.kill()
        killed_at.append(time.time())

    asyncio.run(when_evaluated(up, KILLED_AT, 10, kill))
    summary = up.end()
    evaluated = asyncio.run(all_evaluated(RunFolder(up.folder)))
    return Finished(summary, read_logbook(up.folder), evaluated, killed_at[0])


def test_the_run_is_whole_beside_its_evaluations(finished: Finished) -> None:
    check(finished.book)
    assert len(finished.book.steps) == STEPS
    assert finished.summary["restarts"]["generator"] == 1


def test_each_due_version_is_evaluated_whole_and_no_play_twice_although_its_generator_was_killed(
    finished: Finished,
) -> None:
    plays = Counter((event.version, event.task, event.sample) for event in finished.evaluated)
    wanted = {(v, t, s) for v in range(0, STEPS + 1, EVERY) for t in range(TASKS) for s in range(SAMPLES)}
    assert set(plays) == wanted
    assert set(plays.values()) == {1}
    began = [event.timings.started_at for event in finished.evaluated if event.version == KILLED_AT]
    assert min(began) < finished.killed_at < max(began), "it was not killed in the middle: nothing is shown"


def test_an_evaluation_s_tokens_are_all_of_its_version_by_the_spans_and_the_engine_s_own_label(
    finished: Finished,
) -> None:
    for event in finished.evaluated:
        assert [(span.version, span.start, span.end) for span in event.spans] == [
            (event.version, 0, event.sampled_tokens)
        ]
        assert event.error is None


def test_tasks_are_the_same_at_every_version_and_never_trained(finished: Finished) -> None:
    indices: defaultdict[int, set[int]] = defaultdict(set)
    for event in finished.evaluated:
        indices[event.task].add(event.index)
    environment = load_environment(EnvironmentSettings(name="reverse"), seed=7)
    tasks = evaluation_tasks("reverse", environment, TASKS, SHARE)
    assert dict(indices) == {number: {drawn.index} for number, drawn in enumerate(tasks)}
    trained = {task.task.prompt for task in finished.book.tasks if task.env == "reverse"}
    assert trained
    assert trained.isdisjoint(drawn.task.prompt for drawn in tasks)
    assert not [prompt for prompt in trained if is_held_out(prompt, SHARE)]


def test_training_goes_on_during_an_evaluation(finished: Finished) -> None:
    starts = [event.timings.started_at for event in finished.evaluated if event.version == 0]
    during = [
        rollout for rollout in finished.book.rollouts.values() if min(starts) < rollout.timings.started_at < max(starts)
    ]
    assert during


def test_summary_and_status_say_how_each_version_did(finished: Finished) -> None:
    command = [sys.executable, "-m", "headrace", "status", "whole", "--dir", str(finished.book.folder.path.parent)]
    told = subprocess.run([*command, "--json"], cwd=ROOT, capture_output=True, text=True, check=True)
    scores = finished.summary["evaluations"]
    assert json.loads(told.stdout)["evaluations"] == scores
    assert [(each["env"], each["version"]) for each in scores] == [("reverse", v) for v in range(0, STEPS + 1, EVERY)]
    for score in scores:
        rewards = [event.reward for event in finished.evaluated if event.version == score["version"]]
        assert score["reward"]["mean"] == pytest.approx(sum(rewards) / len(rewards), abs=1e-4)  # type: ignore[arg-type]
        assert (score["tasks"], score["tasks_due"], score["errors"]) == (TASKS, TASKS, 0)
        assert list(score["pass_at"]) == ["1", "2"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"reverse v{STEPS}: {TASKS} of {TASKS} tasks, reward" in shown


def test_evaluated_versions_stay_in_the_store(finished: Finished) -> None:
    versions = {path.name for path in (finished.book.folder.path / "weights" / "versions").iterdir()}
    assert versions == {str(version) for version in range(0, STEPS + 1, EVERY)}


def states(up: Up) -> tuple[str, str]:
    """What ``headrace status`` and ``headrace runs`` call it."""

    def printed(command: str, *arguments: str) -> Any:
        line = [sys.executable, "-m", "headrace", command, *arguments, "--dir", str(up.folder.parent), "--json"]
        return json.loads(subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True).stdout)

    return printed("status", up.folder.name)["state"], printed("runs")[0]["state"]


def test_a_run_that_was_stopped_during_its_last_evaluation_goes_on_with_it(start: Start, tmp_path: Path) -> None:
    sets = ["run.steps=1", "evaluation.every_steps=9", "evaluation.tasks=200", 'evaluation.environments=["reverse"]']
    up = start(tmp_path, sets=sets)
    up.until("step   1/")
    [generator] = up.running("generate")
    asyncio.run(when_evaluated(up, 1, 5, generator.suspend))
    assert states(up) == ("evaluating", "evaluating")
    generator.resume()
    up.process.terminate()
    up.process.wait(timeout=30)
    assert states(up) == ("interrupted", "interrupted")
    assert "was stopped before version 1 was evaluated: the same command goes on with it" in up.progress.read_text()
    summary = start(tmp_path, sets=sets).end()
    assert [(each["version"], each["tasks"]) for each in summary["evaluations"]] == [(0, 200), (1, 200)]
    assert states(up) == ("finished", "finished")
    again = start(tmp_path, sets=sets)
    assert again.process.wait(timeout=60) == 1
    assert "is finished: step 1 of 1 is committed" in again.progress.read_text()
