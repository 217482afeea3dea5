from __future__ import annotations

import asyncio

import msgspec
import numpy as np
import pytest

from environments import Environment, Outcome, Policy
from headrace.commands.env import _tokenizer, play
from schemas import EnvironmentFault, Task
from tests.headrace.conftest import Headrace
from tests.headrace.recorded import make_model


def test_task_is_shown_turn_by_turn(headrace: Headrace) -> None:
    told = headrace("env", "try", "reverse")
    assert told.code == 0
    assert "turn 1: context 10, reply 6 tokens, ended by itself" in told.out
    assert "  context │ rev:" in told.out
    assert "reward " in told.out.splitlines()[-1]


def test_json_has_turns_tokens_reward_and_metrics(headrace: Headrace) -> None:
    told = headrace("env", "try", "guess", "--index", "3", "--set", "turns=1", "--json")
    played = msgspec.json.decode(told.out)
    assert (played["environment"], played["index"], len(played["turns"])) == ("guess", 3, 1)
    assert played["turns"][0]["context"] == "guess:"
    assert played["tokens"] == 8
    assert "win" in played["metrics"]


def test_same_index_and_seed_are_the_same_play(headrace: Headrace) -> None:
    words = ("env", "try", "guess", "--index", "5", "--json")
    assert headrace(*words).out == headrace(*words).out
    assert headrace(*words).out != headrace(*words, "--seed", "1").out


def test_tokens_are_those_of_a_given_model(headrace: Headrace, tmp_path_factory: pytest.TempPathFactory) -> None:
    model = make_model(tmp_path_factory.mktemp("models") / "tiny")
    assert headrace("env", "try", "reverse", "--model", model).code == 0
    told = headrace("env", "try", "reverse", "--model", model / "none")
    assert told.code == 1
    assert "tokenizer.json does not exist" in told.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("revrse",), "did you mean 'reverse'?"),
        (("reverse", "--set", "nope=1"), "has no argument 'nope'"),
        (("reverse", "--set", "length"), "--set 'length' is not ARG=VALUE: write for example --set turns=2"),
        (("reverse", "--set", "=3"), "--set '=3' is not ARG=VALUE"),
        (("reverse", "--index", "-1"), "tasks are numbered 0, 1, 2"),
    ],
)
def test_mistakes_are_one_line(words: tuple[str, ...], message: str, headrace: Headrace) -> None:
    told = headrace("env", "try", *words)
    assert told.code == 1
    assert message in told.err
    assert len(told.err.splitlines()) == 1


class Silent(Environment):
    def task(self, index: int) -> Task:
        return Task(prompt="a")

    async def play(self, task: Task, policy: Policy) -> Outcome:
        await asyncio.sleep(0)
        return Outcome(reward=1 / 0)


class Wrong(Silent):
    """Returns what a generator cannot use."""

    outcome: object = None
    speaks = True

    def demonstration(self, task: Task, rng: object) -> object:  # type: ignore[override]
        return lambda context: "a"

    async def play(self, task: Task, policy: Policy) -> Outcome:
        print("hello")
        if self.speaks:
            await policy.say("a")
        return self.outcome  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (None, "play returned NoneType, not an Outcome"),
        (Outcome(reward=float("nan")), "not finite"),
        (Outcome(reward="1.0"), "reward is a str, not a number"),  # type: ignore[arg-type]
    ],
)
def test_what_a_generator_cannot_use_is_told(outcome: object, words: str) -> None:
    environment = Wrong(seed=0)
    environment.outcome = outcome
    with pytest.raises(EnvironmentFault, match=words):
        play(environment, "wrong", 0, _tokenizer(None))


def test_numbers_of_a_library_are_plain_ones() -> None:
    environment = Wrong(seed=0)
    environment.outcome = Outcome(reward=np.float32(0.5), metrics={"win": np.int64(1)})  # type: ignore[arg-type]
    played = play(environment, "wrong", 0, _tokenizer(None))
    assert (played.reward, played.metrics) == (0.5, {"win": 1.0})
    msgspec.json.encode(played)


def test_an_environment_that_never_speaks_is_told() -> None:
    environment = Wrong(seed=0)
    environment.outcome, environment.speaks = Outcome(reward=1.0), False
    with pytest.raises(EnvironmentFault, match="returned without a reply"):
        play(environment, "wrong", 0, _tokenizer(None))


class Quitting(Wrong):
    def task(self, index: int) -> Task:
        raise SystemExit(0)


class Untold(Wrong):
    def task(self, index: int) -> Task:
        return Task(prompt=[{"role": "user"}])  # type: ignore[arg-type]


def test_an_environment_that_ends_the_process_or_makes_no_task_is_told() -> None:
    with pytest.raises(EnvironmentFault, match="raised SystemExit"):
        play(Quitting(seed=0), "quitting", 0, _tokenizer(None))
    with pytest.raises(EnvironmentFault, match="is not a Task whose prompt is text"):
        play(Untold(seed=0), "untold", 0, _tokenizer(None))


def test_what_an_environment_prints_is_not_in_the_json(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = Wrong(seed=0)
    environment.outcome = Outcome(reward=1.0)
    monkeypatch.setattr("headrace.commands.env.load_environment", lambda settings, seed: environment)
    told = headrace("env", "try", "wrong", "--json")
    assert msgspec.json.decode(told.out)["reward"] == 1.0
    assert "hello" in told.err


class Broken(Silent):
    def demonstration(self, task: Task, rng: object) -> object:  # type: ignore[override]
        return lambda context: "a"


def test_environment_without_a_demonstrator_is_told() -> None:
    with pytest.raises(EnvironmentFault, match="has no demonstrator"):
        play(Silent(seed=0), "silent", 0, _tokenizer(None))


def test_environment_that_raises_is_told_with_the_line() -> None:
    with pytest.raises(EnvironmentFault, match=r"raised ZeroDivisionError: .*test_env_command\.py, line \d+"):
        play(Broken(seed=0), "broken", 0, _tokenizer(None))
