"""``long_tail``: delays of a known distribution, which change nothing that is earned."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from environments import CharacterTokenizer, Environment, ScriptedPolicy, load_environment
from environments.long_tail import LongTail
from environments.reverse import Reverse
from schemas import EnvironmentFault, EnvironmentSettings


def made(seed: int = 0, **args: Any) -> LongTail:
    environment = load_environment(EnvironmentSettings(name="long_tail", args=args), seed=seed)
    assert isinstance(environment, LongTail)
    return environment


def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that plays wait, of which none pass."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        if isinstance(seconds, float):  # else it is a turn for others
            waits.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return waits


async def played(environment: Environment, index: int) -> float:
    task = environment.task(index)
    return (await environment.play(task, ScriptedPolicy(CharacterTokenizer(), [task.answer]))).reward


def test_median_and_99th_percentile_are_as_asked() -> None:
    environment = made(median_s=0.5, tail=20.0)
    delays = sorted(environment.delay_s(index, play) for index in range(2500) for play in range(8))
    assert delays[10_000] == pytest.approx(0.5, rel=0.05)
    assert delays[19_800] == pytest.approx(10.0, rel=0.15)
    assert max(delays) <= 60.0


def test_no_delay_is_longer_than_the_most() -> None:
    environment = made(median_s=1.0, most_s=2.0)
    assert max(environment.delay_s(index, 0) for index in range(500)) == 2.0


def test_tail_of_one_is_no_tail() -> None:
    environment = made(median_s=0.5, tail=1.0)
    assert {environment.delay_s(index, 0) for index in range(9)} == {0.5}


def test_delay_is_a_function_of_seed_task_and_play() -> None:
    places = [(index, play) for index in range(10) for play in range(10)]
    first, same, other = made(), made(), made(seed=1)
    delays = [first.delay_s(*place) for place in places]
    assert delays == [same.delay_s(*place) for place in places]
    assert len(set(delays)) == len(delays)
    assert delays != [other.delay_s(*place) for place in places]


async def test_members_of_a_group_wait_differently_and_each_as_often_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = slept(monkeypatch)
    environment = made()
    for _ in range(3):
        await played(environment, 7)
    assert waits == [environment.delay_s(7, play) for play in range(3)]


async def test_listed_delays_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = slept(monkeypatch)
    environment = made(delays_s=[0.0, 3.0])
    for index in range(40):
        await played(environment, index)
    assert set(waits) == {0.0, 3.0}


async def test_reward_is_the_played_environments_own(monkeypatch: pytest.MonkeyPatch) -> None:
    slept(monkeypatch)
    environment, reverse = made(kind="reverse", args={"length": 3}), Reverse(seed=0, length=3)
    assert environment.task(4).prompt == reverse.task(4).prompt
    assert await played(environment, 4) == await played(reverse, 4) == 1.0
    task = environment.task(0)
    assert environment.demonstration(task, environment.rng(0))("") == task.answer  # type: ignore[misc]


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({"kind": "long_tail"}, "would play itself"),
        ({"kind": "revrse"}, "did you mean 'reverse'?"),
        ({"args": {"lenght": 3}}, "did you mean 'length'?"),
        ({"tail": 0.5}, "args.tail = 0.5"),
        ({"delays_s": []}, "args.delays_s = []"),
        ({"delays_s": [-1.0]}, "args.delays_s = [-1.0]"),
    ],
)
def test_argument_that_cannot_be_used_is_named(args: dict[str, Any], problem: str) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        made(**args)
    assert problem in str(caught.value)
