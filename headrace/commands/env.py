"""``headrace env try``: play one task of an environment with its demonstrator, and show it turn by turn."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from environments import (
    CharacterTokenizer,
    Environment,
    Outcome,
    ScriptedPolicy,
    Tokenizer,
    Transcript,
    checked_outcome,
    load_environment,
    load_tokenizer,
)
from headrace.keys import override
from headrace.readable import number, printable
from schemas import ConfigError, EnvironmentFault, EnvironmentSettings, HeadraceError, Task

from . import options, output

HELP = {"env": "play one task of an environment and show it turn by turn"}


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """One turn, in text."""

    context: str
    context_tokens: int
    reply: str
    """With its end token."""
    reply_tokens: int
    finish: str
    anew: bool
    """Whether a new training sequence starts with it, because the conversation's text no longer begins as before."""


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """One play of one task."""

    environment: str
    seed: int
    index: int
    task: Task
    turns: list[Said]
    tokens: int
    reward: float
    metrics: dict[str, float]


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    lines = ("headrace env try reverse", "headrace env try guess --index 3 --set turns=2 --json")
    options.example(parser, *lines)
    actions = parser.add_subparsers(dest="action", required=True, metavar="try")
    subparser = actions.add_parser("try", help="play one task with the environment's own demonstrator")
    options.example(subparser, *lines)
    subparser.add_argument("name", metavar="NAME", help="entry point of group headrace.environments")
    subparser.add_argument("--index", type=int, default=0, metavar="I", help="of the task (default: 0)")
    subparser.add_argument("--seed", type=int, default=0, help="of tasks and of the demonstrator (default: 0)")
    subparser.add_argument(
        "--set", action="append", default=[], metavar="ARG=VALUE", dest="overrides",
        help="argument of the environment; may be repeated",
    )  # fmt: skip
    subparser.add_argument(
        "--model", type=Path, metavar="DIR", help="count its tokens (default: one token for each character)"
    )
    options.add_json(subparser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.index < 0:
        raise HeadraceError(f"--index {arguments.index}: tasks are numbered 0, 1, 2, ...")
    args: dict[str, Any] = {"name": arguments.name, "args": {}}
    for text in arguments.overrides:
        key, equals, _ = text.partition("=")
        if not equals or not all(key.strip().split(".")):
            raise ConfigError(f"--set {text!r} is not ARG=VALUE: write for example --set turns=2")
        override(EnvironmentSettings, args, f"args.{text.lstrip()}")
    with contextlib.redirect_stdout(sys.stderr):  # What an environment prints is not what a program reads.
        environment = load_environment(EnvironmentSettings(**args), seed=arguments.seed)
        played = play(environment, arguments.name, arguments.index, _tokenizer(arguments.model))
    if arguments.json:
        output.print_json(played)
    else:
        _show(played)
    return 0


def _tokenizer(model: Path | None) -> Tokenizer:
    return CharacterTokenizer() if model is None else load_tokenizer(model)


def play(environment: Environment, name: str, index: int, tokenizer: Tokenizer) -> Played:
    """Task ``index``, played by the environment's demonstrator.

    Raises EnvironmentFault where it has none, where a generator could not use what it returns, or where it raises
    itself: with the line at which it did.
    """
    try:
        task = environment.task(index)
        if not (isinstance(task, Task) and isinstance(task.prompt, str)):
            raise EnvironmentFault(
                f"task({index}) of environment {name!r} is not a Task whose prompt is text: {printable(repr(task))}"
            )
        demonstrator = environment.demonstration(task, random.Random(f"{environment.seed}:{index}"))
        if demonstrator is None:
            raise EnvironmentFault(
                f"environment {name!r} has no demonstrator to play with: let its demonstration() return one"
            )
        policy = ScriptedPolicy(tokenizer, demonstrator)
        outcome = checked_outcome(asyncio.run(environment.play(task, policy)), policy.transcript())
    except HeadraceError:
        raise
    except (Exception, SystemExit) as error:  # whatever a foreign module does
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise EnvironmentFault(
            f"environment {name!r} raised {type(error).__name__}: {error} ({frame.filename}, line {frame.lineno})"
        ) from error
    return _played(environment, name, index, task, outcome, policy.transcript(), tokenizer)


def _played(
    environment: Environment,
    name: str,
    index: int,
    task: Task,
    outcome: Outcome,
    transcript: Transcript,
    tokenizer: Tokenizer,
) -> Played:
    return Played(
        environment=name,
        seed=environment.seed,
        index=index,
        task=task,
        turns=list(_said(transcript, tokenizer)),
        tokens=len(transcript.tokens),
        reward=outcome.reward,
        metrics=outcome.metrics,
    )


def _said(transcript: Transcript, tokenizer: Tokenizer) -> Iterator[Said]:
    position = 0
    for i, turn in enumerate(transcript.turns):
        middle, end = position + turn.context, position + turn.context + turn.sampled
        yield Said(
            context=tokenizer.decode(transcript.tokens[position:middle].tolist()),
            context_tokens=turn.context,
            reply=tokenizer.decode(transcript.tokens[middle:end].tolist()),
            reply_tokens=turn.sampled,
            finish=turn.finish,
            anew=i in transcript.starts,
        )
        position = end


def _show(played: Played) -> None:
    console = output.console()
    console.print(f"{played.environment}, task {played.index} of seed {played.seed}", style="bold")
    if played.task.answer:
        console.print(f"answer: {printable(played.task.answer)}", soft_wrap=True)
    for i, turn in enumerate(played.turns, start=1):
        ended = "ended by itself" if turn.finish == "stop" else "met its token limit"
        anew = ", in a new training sequence" if turn.anew else ""
        console.print(f"\nturn {i}: context {turn.context_tokens}, reply {turn.reply_tokens} tokens, {ended}{anew}")
        _print_text(console, "context", turn.context)
        _print_text(console, "reply", turn.reply)
    metrics = "".join(f"  {printable(name)} {number(value)}" for name, value in played.metrics.items())
    console.print(f"\nreward {number(played.reward)}{metrics}  {played.tokens} tokens")


def _print_text(console: Console, name: str, text: str) -> None:
    for line in text.split("\n"):
        console.print(f"{name:>9} │ {printable(line)}", soft_wrap=True)
        name = ""
