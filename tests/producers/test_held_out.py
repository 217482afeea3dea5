"""Which tasks are held out, and how training and evaluation draw around that."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments import Environment, Outcome, Policy
from producers import TaskSource
from producers.held_out import STRIDE, evaluation_tasks, is_held_out, training_task
from schemas import EnvironmentFault, EnvironmentSettings, Task


class Numbers(Environment):
    """Prompts 0 to ``space`` - 1, at random by index."""

    def __init__(self, *, seed: int = 0, space: int = 10**9) -> None:
        super().__init__(seed=seed)
        self.space = space
        self.made = 0

    def task(self, index: int) -> Task:
        self.made += 1
        return Task(prompt=str(self.rng(index).randrange(self.space)))

    async def play(self, task: Task, policy: Policy) -> Outcome:
        raise NotImplementedError


class Rows(Numbers):
    """As from a file: the row is the index modulo their number."""

    def task(self, index: int) -> Task:
        self.made += 1
        return Task(prompt=f"row {index % self.space}")


class Messages(Numbers):
    def task(self, index: int) -> Task:
        return Task(prompt=[{"role": "user", "content": "x"}])  # type: ignore[arg-type]


def test_a_prompt_that_is_no_text_is_the_environment_s_fault() -> None:
    with pytest.raises(EnvironmentFault, match="cannot make task 0: its prompt is a list, not text"):
        training_task("n", Messages(), 0, 0.1)


shares = st.floats(0.05, 0.9)
seeds = st.integers(0, 2**32 - 1)


@given(seeds, seeds, shares)
@settings(deadline=None)
def test_training_and_evaluation_share_no_prompt_whatever_their_seeds(run: int, own: int, share: float) -> None:
    evaluated = {drawn.task.prompt for drawn in evaluation_tasks("n", Numbers(seed=own, space=400), 10, share)}
    environment = Numbers(seed=run, space=400)
    trained = {training_task("n", environment, number, share).task.prompt for number in range(50)}
    assert evaluated.isdisjoint(trained)
    assert all(is_held_out(prompt, share) for prompt in evaluated)
    assert not any(is_held_out(prompt, share) for prompt in trained)


@given(seeds, st.integers(1, 20), shares)
@settings(deadline=None)
def test_tasks_are_a_pure_function_of_seed_and_number_and_all_different(seed: int, count: int, share: float) -> None:
    drawn = evaluation_tasks("n", Numbers(seed=seed), count, share)
    assert drawn == evaluation_tasks("n", Numbers(seed=seed), count, share)
    assert drawn == evaluation_tasks("n", Numbers(seed=seed), count + 3, share)[:count]
    assert len({each.task.prompt for each in drawn}) == count
    for number, each in enumerate(drawn):
        assert each.index % STRIDE == number
        assert each.task == Numbers(seed=seed).task(each.index)
    assert training_task("n", Numbers(seed=seed), 5, share) == training_task("n", Numbers(seed=seed), 5, share)


@given(st.lists(st.text(), min_size=200, max_size=200, unique=True), shares)
@settings(deadline=None, max_examples=20)
def test_a_larger_share_holds_out_what_a_smaller_one_does(prompts: list[str], share: float) -> None:
    less = {prompt for prompt in prompts if is_held_out(prompt, share / 2)}
    assert less <= {prompt for prompt in prompts if is_held_out(prompt, share)}


def test_the_share_is_that_of_the_prompts() -> None:
    held = sum(is_held_out(f"prompt {number}", 0.1) for number in range(20_000))
    assert 0.09 < held / 20_000 < 0.11


def test_a_task_that_may_be_trained_keeps_its_index() -> None:
    environment = Numbers()
    kept = [number for number in range(100) if training_task("n", environment, number, 0.1).index == number]
    assert kept == [number for number in range(100) if not is_held_out(environment.task(number).prompt, 0.1)]
    assert 80 < len(kept) < 100


@pytest.mark.parametrize("rows", [2, 3, 64, 100, 256])
def test_rows_are_walked_through_whole_whatever_their_number(rows: int) -> None:
    """With a stride of 2**40 half of these would meet their own row again and again."""
    free = [row for row in range(rows) if not is_held_out(f"row {row}", 0.5)]
    held = rows - len(free)
    assert {training_task("r", Rows(space=rows), number, 0.5).task.prompt for number in range(rows)} <= {
        f"row {row}" for row in free
    }
    assert len(evaluation_tasks("r", Rows(space=rows), min(held, 60), 0.5)) == min(held, 60)


def test_a_space_that_is_too_small_is_an_error_after_bounded_tries() -> None:
    environment = Numbers(space=30)
    with pytest.raises(EnvironmentFault, match=r"'n' has \d different held-out prompts, evaluation.tasks asks for 20"):
        evaluation_tasks("n", environment, 20, 0.1)
    assert environment.made < 10 * 640
    all_held = Rows(space=1)
    share = 0.9
    assert is_held_out("row 0", share)
    with pytest.raises(EnvironmentFault, match="no task for number 3 that may be trained"):
        training_task("r", all_held, 3, share)
    assert all_held.made <= 641


def test_without_evaluation_tasks_are_those_of_before() -> None:
    names = [EnvironmentSettings(name="reverse"), EnvironmentSettings(name="guess", weight=2)]
    source = TaskSource(names, run="r", seed=3, group_size=2)
    for number in range(50):
        issued = source.group(number, least_version=0)
        assert issued.index == number
        (name,) = random.Random(f"3:{number}").choices(["reverse", "guess"], weights=[1, 2])
        assert issued.env == name


def test_only_evaluated_environments_hold_tasks_out() -> None:
    """``guess`` has one prompt: held out or not, it could be evaluated or trained, never both."""
    names = [EnvironmentSettings(name="reverse"), EnvironmentSettings(name="guess")]
    source = TaskSource(names, run="r", seed=3, group_size=2, held_out={"reverse": 0.9})
    issued = [source.group(number, least_version=0) for number in range(60)]
    reverse = [each for each in issued if each.env == "reverse"]
    assert not [each for each in reverse if is_held_out(each.task.prompt, 0.9)]
    assert any(each.index != each.group for each in reverse)
    assert [each.index for each in issued if each.env == "guess"] == [
        each.group for each in issued if each.env == "guess"
    ]
