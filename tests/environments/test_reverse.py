"""``reverse``: what a reply earns."""

from __future__ import annotations

import random

import pytest

from environments import ScriptedPolicy, load_environment
from schemas import EnvironmentSettings, Task
from tests.environments.characters import Characters

TASK = Task(prompt="rev:abcde=", answer="edcba")


async def outcome(*replies: str) -> tuple[float, float]:
    environment = load_environment(EnvironmentSettings(name="reverse"), seed=0)
    result = await environment.play(TASK, ScriptedPolicy(Characters(), list(replies)))
    return result.reward, result.metrics["exact"]


@pytest.mark.parametrize(
    ("reply", "reward", "exact"),
    [
        ("edcba", 1.0, 1.0),
        ("edcbb", 0.4, 0.0),
        ("abcde", 0.1, 0.0),
        ("jjjjj", 0.0, 0.0),
        ("edc", 0.24, 0.0),
        ("edcbaa", 0.4, 0.0),  # the right word and one letter more
        ("edcbaaa", 0.4, 0.0),  # it doesn't end
        ("", 0.0, 0.0),
    ],
)
async def test_reward_is_half_for_positions_and_half_for_all_of_them(reply: str, reward: float, exact: float) -> None:
    assert await outcome(reply) == (pytest.approx(reward), exact)


def test_arguments_make_the_words() -> None:
    settings = EnvironmentSettings(name="reverse", args={"length": 3, "letters": "xy"})
    tasks = [load_environment(settings, seed=1).task(index) for index in range(20)]
    assert all(len(task.answer) == 3 and set(task.answer) <= set("xy") for task in tasks)
    assert all(task.prompt == f"rev:{task.answer[::-1]}=" for task in tasks)


async def test_demonstration_earns_everything() -> None:
    environment = load_environment(EnvironmentSettings(name="reverse"), seed=3)
    task = environment.task(0)
    demonstrator = environment.demonstration(task, random.Random(0))
    assert demonstrator is not None
    result = await environment.play(task, ScriptedPolicy(Characters(), demonstrator))
    assert result.reward == 1.0
