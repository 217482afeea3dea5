"""A process that answers questions: what happens when it hangs, dies or cannot start."""

from __future__ import annotations

from pathlib import Path

import pytest

from environments.worker import NoAnswer, Worker
from schemas import EnvironmentFault

SOURCE = """
import json, os, sys, time
print('"ready"', flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked == "hang": time.sleep(600)
    if asked == "die": os._exit(1)
    if asked == "babble": print("no json", flush=True)
    if asked == "environment": asked = sorted(os.environ)
    if asked == "who": asked = os.getpid()
    print(json.dumps(asked), flush=True)
"""


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    script = tmp_path / "script.py"
    script.write_text(SOURCE)
    return Worker(script)


def test_questions_are_answered_in_order_by_one_process(worker: Worker) -> None:
    assert [worker.ask([n], within_s=10) for n in range(3)] == [[0], [1], [2]]
    assert worker.ask("who", within_s=10) == worker.ask("who", within_s=10)
    assert worker.ask("x" * 1_000_000, within_s=10) == "x" * 1_000_000


@pytest.mark.parametrize(("asked", "within_s"), [("hang", 0.1), ("die", 10.0), ("babble", 10.0)])
def test_after_no_answer_the_next_question_goes_to_a_new_process(asked: str, within_s: float, worker: Worker) -> None:
    first = worker.ask("who", within_s=10)
    with pytest.raises(NoAnswer):
        worker.ask(asked, within_s=within_s)
    assert worker.ask("who", within_s=10) != first
    assert not Path(f"/proc/{first}").exists()


def test_process_gets_no_environment(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_SECRET", "aseedofakey")
    assert "HEADRACE_SECRET" not in worker.ask("environment", within_s=10)
    assert "PYTHONHASHSEED" in worker.ask("environment", within_s=10)


def test_process_ends_with_its_owner(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SOURCE)
    worker = Worker(script)
    pid = worker.ask("who", within_s=10)
    del worker
    assert not Path(f"/proc/{pid}").exists()


def test_script_that_cannot_run_is_a_fault_with_the_remedy(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import nothing_like_this")
    with pytest.raises(
        EnvironmentFault, match=r"script.py cannot be run: try .* pip install 'headrace\[environments\]'"
    ):
        Worker(script).ask(1, within_s=10)
