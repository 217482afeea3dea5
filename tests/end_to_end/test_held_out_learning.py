"""A real language model does better on tasks that it was never trained on. Slow: `make test-real`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bus import connect
from environments import load_environment
from headrace.folder import RunFolder
from headrace.server import serving
from producers import evaluation_tasks
from schemas import EVALUATIONS, EnvironmentSettings, Evaluated
from tests.end_to_end.logbook import check, read_logbook
from tests.end_to_end.test_learning import headrace_up

pytestmark = [pytest.mark.real, pytest.mark.timeout(3000)]
TASKS, LONGEST_S, LEAST_RISE = 300, 40 * 60, 0.15


async def read_evaluated(folder: RunFolder) -> list[Evaluated]:
    with serving(folder, "reader") as served:
        bus = await connect(served.address, run=folder.name, role="reader", id="reader")
        found = [logged.event async for logged in bus.read(EVALUATIONS)]
        await bus.close()
    return [event for event in found if isinstance(event, Evaluated)]


def test_smollm2_learns_pairs_that_it_was_never_trained_on(tmp_path: Path) -> None:
    summary = headrace_up("larger", tmp_path)
    assert summary["wall_s"] <= LONGEST_S
    scores = {score["version"]: score for score in summary["evaluations"]}
    first, last = scores[0], scores[summary["steps"]]
    assert [(each["tasks"], each["errors"]) for each in (first, last)] == [(TASKS, 0)] * 2
    before, after = first["metrics"]["exact"], last["metrics"]["exact"]
    assert after["mean"] >= before["mean"] + LEAST_RISE
    assert before["high"] < after["low"], "the intervals overlap"

    book = read_logbook(tmp_path / "larger")
    check(book)
    settings = EnvironmentSettings(name="larger")
    tasks = evaluation_tasks("larger", load_environment(settings, seed=0), TASKS, 0.1)
    trained = {task.task.prompt for task in book.tasks}
    assert trained.isdisjoint(drawn.task.prompt for drawn in tasks)
    evaluated = asyncio.run(read_evaluated(RunFolder(tmp_path / "larger")))
    assert {(event.task, event.index) for event in evaluated} == {(n, drawn.index) for n, drawn in enumerate(tasks)}
    assert all({span.version for span in event.spans} == {event.version} for event in evaluated)
