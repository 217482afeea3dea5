"""``sums``: prompts and exact match."""

from __future__ import annotations

import pytest

from environments import ScriptedPolicy, load_environment
from environments.sums import Sums
from schemas import EnvironmentSettings, Task
from tests.environments.characters import Characters

TASK = Task(prompt="1+2=3\n4+4=8\n7+5=", answer="12")


@pytest.mark.parametrize(
    ("reply", "exact"), [("12", 1.0), ("1", 0.0), (" 12", 0.0), ("12 +", 0.0), ("120", 0.0), ("", 0.0)]
)
async def test_only_the_exact_sum_earns(reply: str, exact: float) -> None:
    result = await Sums(seed=0).play(TASK, ScriptedPolicy(Characters(), [reply]))
    assert (result.reward, result.metrics) == (exact, {"exact": exact})


async def test_reply_ends_with_the_newline() -> None:
    policy = ScriptedPolicy(Characters(), ["12"])
    await Sums(seed=0).play(TASK, policy)
    assert Characters().decode(policy.transcript().tokens.tolist()).endswith("7+5=12\n")


def test_largest_bounds_the_numbers() -> None:
    environment = load_environment(EnvironmentSettings(name="sums", args={"largest": 2}), seed=0)
    tasks = [environment.task(index) for index in range(100)]
    assert {task.answer for task in tasks} == {"0", "1", "2", "3", "4"}
    assert all(task.prompt.startswith("1+2=3\n4+4=8\n") for task in tasks)
