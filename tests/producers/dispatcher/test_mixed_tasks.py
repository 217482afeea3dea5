"""A mix of environments: each group's environment is drawn by weight, the same for everyone who asks."""

from __future__ import annotations

import pytest

from producers.dispatcher.tasks import TaskSource
from schemas import EnvironmentSettings

MIX = [
    EnvironmentSettings(name="often", kind="reverse", weight=3.0),
    EnvironmentSettings(name="seldom", kind="reverse", weight=0.5, args={"length": 3}),
    EnvironmentSettings(name="game", kind="guess", weight=1.5),
]


def drawn(seed: int, numbers: range) -> list[str]:
    source = TaskSource(MIX, run="demo", seed=seed, group_size=2)
    return [source.group(number, least_version=0).env for number in numbers]


def test_shares_are_those_of_the_weights() -> None:
    names = drawn(0, range(4000))
    shares = {name: names.count(name) / len(names) for name in set(names)}
    # Three standard deviations of the largest share, sqrt(0.6 * 0.4 / 4000), are 0.023.
    assert shares == pytest.approx({"often": 0.6, "seldom": 0.1, "game": 0.3}, abs=0.023)


def test_no_stretch_of_a_run_lacks_an_environment() -> None:
    names = drawn(0, range(2000))
    assert all(len(set(names[begin : begin + 100])) == 3 for begin in range(0, 2000, 100))


def test_draw_is_a_function_of_seed_and_number() -> None:
    assert drawn(0, range(50, 100)) == drawn(0, range(100))[50:]
    assert drawn(0, range(100)) != drawn(1, range(100))


def test_task_is_that_of_the_drawn_environment() -> None:
    source = TaskSource(MIX, run="demo", seed=0, group_size=2)
    for number in range(40):
        group = source.group(number, least_version=0)
        length = {"often": 5, "seldom": 3}.get(group.env)
        assert group.task.prompt == "guess:" if length is None else len(group.task.answer) == length
