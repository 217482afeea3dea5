"""The documentation is true: links lead somewhere, and each command, option, key and target in it exists."""

from __future__ import annotations

import argparse
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headrace import cli
from headrace import config as configuration
from headrace.commands import env
from headrace.config import RunConfig
from headrace.keys import check_keys, override
from schemas import ConfigError

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
TABLES = RunConfig.__struct_fields__
OF_A_CONFIG = ("up", "dispatch", "generate", "train", "sink", "topology", "doctor")
"""Commands whose ``--set`` is a key of the configuration."""
NOT_OURS = {"--translate", "--headers-only", "--context"}
"""Options of the nats CLI."""
NO_KEY = re.compile(r"\.(?:safetensors|json|log|toml|py|v\d+)$")
"""How files' names and events' tags end, which may look like keys."""


class Block(NamedTuple):
    """A fenced block."""

    language: str
    text: str


def fenced(page: Path) -> list[Block]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [Block(*each) for each in found]


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def spans(page: Path) -> list[str]:
    """What stands between backticks."""
    return re.findall(r"`([^`\n]+)`", prose(page))


def shell_lines(page: Path) -> Iterator[str]:
    """Lines that a reader is to type: all of ``sh`` blocks, those after a ``$`` of ``console`` blocks."""
    for block in fenced(page):
        lines = block.text.replace("\\\n", " ").splitlines()
        if block.language == "sh":
            yield from lines
        elif block.language == "console":
            yield from (line.removeprefix("$ ") for line in lines if line.startswith("$ "))


def of_headrace(line: str) -> list[str] | None:
    """The arguments of ``headrace`` in a line; None where it calls something else."""
    words = shlex.split(line.partition(" | ")[0], comments=True)
    return words[1:] if words and words[0] == "headrace" else None


def commands() -> list[tuple[str, str]]:
    """Page and line of every ``headrace`` command line that is shown in a block."""
    return [(page.name, line) for page in PAGES for line in shell_lines(page) if of_headrace(line) is not None]


@cache
def options_of(command: str) -> frozenset[str]:
    """All options of a command and of what stands below it."""
    parser, _ = cli._parser([command])
    return frozenset(_options(_below(parser)[command]))


def _below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
    for below in _below(parser).values():
        yield from _options(below)


def fault_in(command_line: str) -> str:
    """Why what is called like this between backticks does not exist; empty where it does."""
    words = command_line.split()[1:]
    if not words or words[0] == "COMMAND":
        return ""
    if words[0] not in cli.COMMANDS:
        return f"there is no command {words[0]}"
    below = _below(_below(cli._parser(words)[0])[words[0]])
    if below and len(words) > 1 and not words[1].startswith("-") and words[1] not in below:
        return f"headrace {words[0]} has no {words[1]}"
    return next(
        (f"it has no {word}" for word in words if word.startswith("--") and word not in options_of(words[0])), ""
    )


def heading_anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in heading_anchors(linked), f"{page.name} links to {target}"


@pytest.mark.parametrize(("page", "line"), commands())
def test_every_command_line_is_understood(page: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = of_headrace(line)
    assert words is not None
    try:
        cli._parser(words)[0].parse_args(words)
    except SystemExit:
        pytest.fail(f"{page}: {line}\n{capsys.readouterr().err}")


@pytest.mark.parametrize(("page", "line"), [each for each in commands() if "--set" in each[1]])
def test_every_key_that_is_set_exists(page: str, line: str) -> None:
    words = of_headrace(line)
    assert words is not None
    arguments = cli._parser(words)[0].parse_args(words)
    if arguments.command not in OF_A_CONFIG:
        return
    path = ROOT / getattr(arguments, "config", "")
    if not path.is_file():
        path = ROOT / "configs" / "demo.toml"
    shown_as_wrong = any(f"$ {line}\nheadrace {words[0]}: --set" in block.text for block in fenced_of(page))
    if shown_as_wrong:
        with pytest.raises(ConfigError):
            configuration.load(path, arguments.overrides)
    else:
        configuration.load(path, arguments.overrides)


def fenced_of(name: str) -> list[Block]:
    return next(fenced(page) for page in PAGES if page.name == name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_option_named_in_the_text_exists(page: Path) -> None:
    every = frozenset[str]().union(*(options_of(command) for command in cli.COMMANDS)) | NOT_OURS
    for span in spans(page):
        if span == "headrace" or span.startswith("headrace "):
            assert not fault_in(span), f"{page.name}: `{span}`: {fault_in(span)}"
        elif re.match(r"--[a-z]", span):
            assert span.split()[0] in every, f"{page.name}: `{span}` is no option"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_key_named_in_the_text_exists(page: Path) -> None:
    for span in spans(page):
        match = re.match(rf"(?:--set )?((?:{'|'.join(TABLES)})\.[a-z][\w.]*)", span)
        if match and not NO_KEY.search(match[1]):
            key = match[1].replace("environments.", "environments.0.", 1) if ".0." not in match[1] else match[1]
            data: dict[str, Any] = {"environments": [{}]}
            override(RunConfig, data, f"{key}=1")
            try:
                check_keys(RunConfig, data)
            except ConfigError as error:
                pytest.fail(f"{page.name}: `{span}`: {error}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_configuration_that_is_shown_loads(page: Path, tmp_path: Path) -> None:
    for block in fenced(page):
        data = tomllib.loads(block.text) if block.language == "toml" else {}
        if "project" not in data:
            check_keys(RunConfig, data)
        if "run" in data:
            file = tmp_path / "shown.toml"
            file.write_text(block.text, encoding="utf-8")
            configuration.load(file)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_whole_environment_that_is_shown_plays_its_demonstration(page: Path) -> None:
    for block in fenced(page):
        if block.language != "python" or "import" not in block.text:
            continue
        module: dict[str, Any] = {"__name__": "shown"}
        exec(compile(block.text, page.name, "exec"), module)
        shown = [each for each in module.values() if isinstance(each, type) and each.__module__ == "shown"]
        assert shown
        for kind in shown:
            played = [env.play(kind(seed=0), kind.__name__, index, env._tokenizer(None)) for index in range(5)]
            assert all(each.turns for each in played)
            assert any(each.reward > 0 for each in played)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    modules = [*(ROOT / "bench").glob("*.py"), *(ROOT / "bench").glob("*/__main__.py")]
    targets |= {f"bench-{path.parent.name if path.stem == '__main__' else path.stem}" for path in modules}
    called = [line.split() for line in [*shell_lines(page), *spans(page)] if re.match(r"make [a-z]", line)]
    for words in called:
        assert words[1] in targets, f"{page.name}: {' '.join(words)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_named_in_the_text_exists(page: Path) -> None:
    for span in spans(page):
        if re.fullmatch(
            r"(?:configs|docs|tests|producers|consumers|bus|schemas|environments|headrace|bench)/[\w./-]*", span
        ):
            assert (ROOT / span).exists(), f"{page.name}: `{span}`"


def test_a_command_that_does_not_exist_is_noticed() -> None:
    assert fault_in("headrace fly") == "there is no command fly"
    assert fault_in("headrace model fly") == "headrace model has no fly"
    assert fault_in("headrace status demo --fly") == "it has no --fly"
    assert (
        fault_in("headrace up")
        == fault_in("headrace model tiny")
        == fault_in("headrace up CONFIG --set KEY=VALUE")
        == ""
    )
