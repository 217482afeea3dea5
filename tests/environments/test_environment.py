"""What holds for every environment that ships, and for the one that the documentation writes."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments import Environment, Outcome, ScriptedPolicy, environment_kinds, load_environment, load_tokenizer
from schemas import EnvironmentSettings, Task
from tests.environments.byte_level import save_tokenizer
from tests.environments.characters import ALPHABET, Characters

KINDS = ["guess", "larger", "reverse", "sums"]
WITH_TESTS_OF_THEIR_OWN = ["jsonl", "long_tail", "reasoning_gym", "tools", "verifiers"]
"""They need arguments, a chat template or a program."""
DOCUMENT = Path(__file__).parents[2] / "docs" / "environments.md"


def load(kind: str, seed: int = 0) -> Environment:
    return load_environment(EnvironmentSettings(name=kind), seed=seed)


def test_kinds_here_are_all_that_ship() -> None:
    assert {*KINDS, *WITH_TESTS_OF_THEIR_OWN} == set(environment_kinds())


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_are_a_function_of_seed_and_index_in_every_process(kind: str) -> None:
    program = (
        "import msgspec, sys; from environments import load_environment; from schemas import EnvironmentSettings; "
        f"environment = load_environment(EnvironmentSettings(name={kind!r}), seed=7); "
        "sys.stdout.buffer.write(msgspec.json.encode([environment.task(i) for i in (5, 0, 3)]))"
    )
    there = json.loads(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)
    here = load(kind, seed=7)
    assert there == [msgspec.to_builtins(here.task(index)) for index in (5, 0, 3)]


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_gives_other_tasks(kind: str) -> None:
    one, other = ([load(kind, seed=seed).task(index) for index in range(20)] for seed in (0, 1))
    assert one != other


@pytest.mark.parametrize("kind", KINDS)
async def test_demonstrations_play_to_an_end(kind: str) -> None:
    environment = load(kind)
    for index in range(20):
        task = environment.task(index)
        demonstrator = environment.demonstration(task, random.Random(index))
        assert demonstrator is not None
        policy = ScriptedPolicy(Characters(), demonstrator)
        outcome = await environment.play(task, policy)
        assert -1 <= outcome.reward <= 1
        assert policy.transcript().turns


@pytest.mark.parametrize("kind", KINDS)
@given(replies=st.lists(st.text(ALPHABET, max_size=12), min_size=4, max_size=4))
async def test_any_reply_gets_a_bounded_reward(kind: str, replies: list[str]) -> None:
    environment = load(kind)
    outcome = await environment.play(environment.task(0), ScriptedPolicy(Characters(), replies))
    assert -1 <= outcome.reward <= 1
    assert all(isinstance(value, float) for value in outcome.metrics.values())


async def test_documented_environment_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```(\w+)\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    source, *_, test = (text for language, text in blocks if language == "python")
    package, configuration, *_ = (tomllib.loads(text) for language, text in blocks if language == "toml")
    info = tmp_path / "headrace_vowels-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: headrace-vowels\nVersion: 0.1.0\n", encoding="utf-8")
    points = package["project"]["entry-points"]["headrace.environments"]
    lines = [f"{name} = {value}" for name, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[headrace.environments]", *lines, ""]), encoding="utf-8")
    (tmp_path / "vowels.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)

    settings = msgspec.convert(configuration["environments"][0], EnvironmentSettings)
    environment = load_environment(settings, seed=0)
    task = environment.task(0)
    assert len(task.prompt) == len("vowels:") + 4 + len("=")
    outcome = await environment.play(task, ScriptedPolicy(Characters(), [task.answer]))
    assert outcome.reward == 1.0

    # The documented test is statements with an await in them: run them as the body of a function.
    names = {"ScriptedPolicy": ScriptedPolicy, "load_tokenizer": lambda path: Characters(), "Task": Task}
    names["Vowels"] = type(environment)
    body = "".join(f"    {line}\n" for line in test.splitlines())
    exec(f"async def documented():\n{body}", names)
    await names["documented"]()  # type: ignore[operator]


async def test_documented_conversation_works(tmp_path: Path) -> None:
    found = re.search(r"```python\n(async def play.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {"Task": Task, "Policy": ScriptedPolicy, "Outcome": Outcome}
    exec(found[1], names)
    save_tokenizer(tmp_path)
    policy = ScriptedPolicy(load_tokenizer(tmp_path), ["1", " 54"])
    outcome = await names["play"](None, Task(prompt="Write 45 backwards.", answer="54"), policy)
    assert (outcome.reward, outcome.metrics) == (0.5, {"turns": 2.0})
    assert policy.transcript().starts == []
