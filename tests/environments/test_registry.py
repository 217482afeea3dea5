"""Environments by name, and what is said of ones that cannot be used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from environments import environment_kinds, load_environment
from environments.guess import Guess
from schemas import EnvironmentFault, EnvironmentSettings

Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a package on the path: module ``foreign`` with the given source, and the entry point ``name = value``."""

    def install(source: str, entry_point: str) -> None:
        (tmp_path / "foreign.py").write_text(source, encoding="utf-8")
        info = tmp_path / "foreign-0.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 0.1\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[headrace.environments]\n{entry_point}\n", encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "foreign", raising=False)

    return install


def fault_of(name: str, **args: Any) -> str:
    with pytest.raises(EnvironmentFault) as caught:
        load_environment(EnvironmentSettings(name=name, args=args), seed=0)
    return str(caught.value)


def test_three_come_with_headrace() -> None:
    assert {"guess", "reverse", "sums"} <= set(environment_kinds())


def test_kind_is_the_entry_point_of_another_name() -> None:
    assert isinstance(load_environment(EnvironmentSettings(name="game", kind="guess"), seed=0), Guess)


def test_unknown_environment_names_the_nearest() -> None:
    assert "no environment 'revers' is installed (did you mean 'reverse'?)" in fault_of("revers")
    assert f"one of {', '.join(environment_kinds())}, or install" in fault_of("nothing-like-it")


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({"lenght": 5}, "no argument 'lenght' (did you mean 'length'?): it takes length, letters"),
        ({"length": "5"}, "args.length = '5': Expected `int`, got `str`"),
        ({"length": 0}, "args.length = 0: Expected `int` >= 1"),
        ({"length": 65}, "args.length = 65: Expected `int` <= 64"),
        ({"letters": ""}, "args.letters = ''"),
        ({"letters": "ABC"}, "args.letters = 'ABC'"),
        ({"seed": 1}, "it comes from run.seed"),
    ],
)
def test_argument_that_does_not_fit_is_named(args: dict[str, Any], problem: str) -> None:
    assert problem in fault_of("reverse", **args)


def test_foreign_package_brings_an_environment(install: Install) -> None:
    source = """
from environments import Environment, Outcome
from schemas import Task
class Foreign(Environment):
    def __init__(self, *, seed: int, size: int) -> None:
        super().__init__(seed=seed)
        self.size = size
        if size == 13: raise ValueError("unlucky")
    def task(self, index): return Task(prompt="x" * self.size)
    async def play(self, task, policy): return Outcome(reward=0.0)
"""
    install(source, "foreign = foreign:Foreign")
    settings = EnvironmentSettings(name="foreign", args={"size": 3})
    assert load_environment(settings, seed=0).task(0).prompt == "xxx"
    assert "needs the argument 'size'" in fault_of("foreign")
    assert "cannot be built: ValueError: unlucky" in fault_of("foreign", size=13)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import nothing_like_this", "cannot be imported from foreign:Foreign: ModuleNotFoundError"),
        ("Foreign = 3", "not an environments.Environment"),
        ("class Foreign: pass", "not an environments.Environment"),
        (
            "from environments import Environment\nclass Foreign(Environment):\n    def task(self, index): ...",
            "does not define play",
        ),
    ],
)
def test_foreign_package_that_cannot_be_used_is_named(install: Install, source: str, problem: str) -> None:
    install(source, "foreign = foreign:Foreign")
    assert problem in fault_of("foreign")


@pytest.mark.parametrize(
    ("annotation", "problem"),
    [
        ("Path", "annotations of Foreign.__init__ cannot be read (NameError: name 'Path' is not defined)"),
        ("'str | pathlib.Path'", "its parameter where is annotated in a way that no value can be checked against"),
    ],
)
def test_an_annotation_that_cannot_be_used_is_named(install: Install, annotation: str, problem: str) -> None:
    source = f"""
from __future__ import annotations
import pathlib, typing
from environments import Environment, Outcome
from schemas import Task
if typing.TYPE_CHECKING:
    from pathlib import Path
class Foreign(Environment):
    def __init__(self, *, seed: int, where: {annotation}) -> None:
        super().__init__(seed=seed)
    def task(self, index): return Task(prompt="x")
    async def play(self, task, policy): return Outcome(reward=0.0)
"""
    install(source, "foreign = foreign:Foreign")
    assert problem in fault_of("foreign", where="here")


def test_two_packages_with_one_name_are_refused(install: Install) -> None:
    install("", "reverse = foreign:Foreign")
    assert "is brought by environments.reverse:Reverse and foreign:Foreign" in fault_of("reverse")
