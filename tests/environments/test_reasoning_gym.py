"""``reasoning_gym``: tasks by name, their own scorers, and levels of their curricula."""

from __future__ import annotations

from typing import Any

import pytest

from environments import CharacterTokenizer, Environment, Outcome, ScriptedPolicy, load_environment
from environments.reasoning_gym_worker import REDRAW, SIZE
from schemas import EnvironmentFault, EnvironmentSettings, Task
from tests.extras import needs

pytestmark = needs("reasoning_gym")

TEN = {
    "basic_arithmetic": {},
    "chain_sum": {"max_terms": 4},
    "countdown": {},
    "gcd": {},
    "isomorphic_strings": {},
    "leg_counting": {},
    "letter_counting": {},
    "prime_factorization": {},
    "spell_backward": {"max_word_len": 6},
    "word_sorting": {},
}
"""Names and parameters; two of them have scorers of their own, and isomorphic_strings depends on the order of sets."""
WRONG = "certainly not"


def made(task: str, seed: int = 0, **args: Any) -> Environment:
    return load_environment(EnvironmentSettings(name="reasoning_gym", args={"task": task, **args}), seed=seed)


async def played(environment: Environment, task: Task, reply: str) -> Outcome:
    return await environment.play(task, ScriptedPolicy(CharacterTokenizer(), [reply]))


@pytest.mark.parametrize("name", TEN)
async def test_task_plays_and_scores_right_and_wrong_answers(name: str) -> None:
    environment = made(name, params=TEN[name])
    task = environment.task(3)
    assert task.prompt
    script = environment.demonstration(task, environment.rng(3))
    assert script is not None
    right = await played(environment, task, f"Let me see. {script('')}")
    wrong = await played(environment, task, f"<answer>{WRONG}</answer>")
    assert (right.reward, right.metrics["right"]) == (1.0, 1.0)
    assert wrong.reward < 0.5
    assert wrong.metrics == {"right": 0.0, "cut": 0.0, "answered": 1.0}


async def test_answer_that_is_right_in_another_way_is_right_by_the_tasks_own_scorer() -> None:
    environment = made("countdown")
    task = environment.task(0)
    assert (await played(environment, task, f"<answer>({task.answer})</answer>")).reward == 1.0


async def test_last_answer_counts_and_none_earns_nothing() -> None:
    environment = made("gcd")
    task = environment.task(0)
    assert (await played(environment, task, f"<answer>0</answer><answer> {task.answer} </answer>")).reward == 1.0
    nothing = await played(environment, task, f"It is {task.answer}.")
    assert (nothing.reward, nothing.metrics["answered"]) == (0.0, 0.0)


async def test_without_tags_the_whole_reply_is_the_answer() -> None:
    environment = made("gcd", tags=False)
    task = environment.task(0)
    policy = ScriptedPolicy(CharacterTokenizer(), [task.answer])
    assert (await environment.play(task, policy)).reward == 1.0
    assert "<answer>" not in CharacterTokenizer().decode(policy.transcript().tokens.tolist())


async def test_reply_that_was_cut_earns_nothing() -> None:
    environment = made("gcd", tags=False, max_tokens=1)
    task = environment.task(0)
    assert (await played(environment, task, task.answer)).metrics["cut"] == 1.0
    assert (await played(environment, task, task.answer)).reward == 0.0


@pytest.mark.parametrize("name", ["chain_sum", "isomorphic_strings", "word_ladder"])
def test_task_is_a_function_of_seed_and_index(name: str) -> None:
    environment = made(name)
    places = (0, 1, SIZE, 5 * SIZE + 7, REDRAW, 3 * REDRAW + 1)
    tasks = [environment.task(place) for place in places]
    assert tasks == [made(name).task(place) for place in places]
    assert len({task.prompt for task in tasks}) == len(tasks)
    assert tasks[0] != made(name, seed=1).task(0)


def test_neighbouring_seeds_share_no_tasks() -> None:
    """Data sets seed task i with their seed plus i, so that seeds in a row would overlap."""
    first, second = ({made("chain_sum", seed, level=3).task(i).prompt for i in range(50)} for seed in (0, 1))
    assert not first & second


def test_level_makes_all_attributes_or_named_ones_harder() -> None:
    def length(level: Any) -> float:
        environment = made("chain_sum", level=level)
        return sum(len(environment.task(i).prompt) for i in range(20))

    assert length(0) < length(2) < length(4)
    assert length(0) < length({"num_terms": 4, "num_digits": 0}) < length(4)


def test_params_hold_beside_a_level() -> None:
    environment = made("chain_sum", level={"num_terms": 0}, params={"allow_negation": True})
    assert environment.task(0) == made("chain_sum", level={"num_terms": 0}, params={"allow_negation": True}).task(0)


@pytest.mark.parametrize(
    ("task", "args", "problem"),
    [
        ("chain_smu", {}, "reasoning-gym has no task 'chain_smu': there are chain_sum"),
        ("chain_sum", {"params": {"nope": 1}}, "chain_sum refuses its parameters (TypeError"),
        ("chain_sum", {"params": {"min_terms": -1}}, "chain_sum refuses its parameters"),
        ("chain_sum", {"params": {"seed": 1}}, "params.seed cannot be set: the run's seed decides"),
        ("chain_sum", {"level": {"nope": 1}}, "no level nope = 1: its levels are num_terms 0 to"),
        ("chain_sum", {"level": {"num_terms": 99}}, "no level num_terms = 99"),
        ("chain_sum", {"level": -1}, "args.level = -1"),
    ],
)
def test_what_does_not_exist_is_named(task: str, args: dict[str, Any], problem: str) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        made(task, **args)
    assert problem in str(caught.value)


def test_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EnvironmentFault, match=r"pip install 'headrace\[environments\]'"):
        made("chain_sum")
