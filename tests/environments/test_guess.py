"""``guess``: hints, turns and rewards."""

from __future__ import annotations

import random

import pytest

from environments import ScriptedPolicy, load_environment
from environments.guess import Guess
from schemas import EnvironmentSettings, Task
from tests.environments.characters import Characters

TASK = Task(prompt="guess:", answer="6")


@pytest.mark.parametrize(
    ("replies", "reward", "metrics"),
    [
        ("6", 1.0, {"win": 1.0, "turns": 1.0}),
        ("46", 0.92, {"win": 1.0, "turns": 2.0}),
        ("4786", 0.76, {"win": 1.0, "turns": 4.0}),
        ("4785", 0.0, {"win": 0.0, "turns": 4.0}),
    ],
)
async def test_each_further_turn_costs(replies: str, reward: float, metrics: dict[str, float]) -> None:
    result = await Guess(seed=0).play(TASK, ScriptedPolicy(Characters(), list(replies)))
    assert (result.reward, result.metrics) == (pytest.approx(reward), metrics)


@pytest.mark.parametrize("malformed", ["", "x", "66", "6 "])
async def test_malformed_guess_ends_the_play(malformed: str) -> None:
    result = await Guess(seed=0).play(TASK, ScriptedPolicy(Characters(), ["4", malformed]))
    assert (result.reward, result.metrics) == (-0.2, {"win": 0.0, "turns": 2.0})


async def test_hints_point_to_the_secret() -> None:
    policy = ScriptedPolicy(Characters(), ["4", "7", "6"])
    await Guess(seed=0).play(TASK, policy)
    assert Characters().decode(policy.transcript().tokens.tolist()) == "guess:4!>7!<6!"


async def test_turns_is_the_number_of_guesses() -> None:
    environment = load_environment(EnvironmentSettings(name="guess", args={"turns": 2}), seed=0)
    result = await environment.play(TASK, ScriptedPolicy(Characters(), ["1", "2"]))
    assert result.metrics == {"win": 0.0, "turns": 2.0}


async def test_demonstrations_win_now_and_then() -> None:
    environment, rng = Guess(seed=0), random.Random(0)
    wins = 0.0
    for index in range(400):
        task = environment.task(index)
        policy = ScriptedPolicy(Characters(), environment.demonstration(task, rng))
        wins += (await environment.play(task, policy)).metrics["win"]
    assert 0.5 < wins / 400 < 0.7


def test_secrets_are_spread_over_the_digits() -> None:
    assert {Guess(seed=0).task(index).answer for index in range(200)} == set("0123456789")
