"""Environments that fail in every way there is, installed for the processes of one test as a package of its own."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import sys
from pathlib import Path

from environments import Outcome, Policy
from environments.reverse import Reverse
from schemas import Task

DEEDS = {
    "raises": ("environment", "ZeroDivisionError"),
    "exits": ("environment", "SystemExit left play"),
    "cancels itself": ("environment", "a cancellation of the environment's own left play"),
    "returns something else": ("environment", "play returned float, not an Outcome"),
    "rewards with NaN": ("environment", "number nan is not finite"),
    "rewards with text": ("environment", "reward is a str, not a number"),
    "says too much": ("too_long", "leave no room for a reply"),
    "hangs": ("timeout", "play took longer than generator.play_timeout_s 1 s"),
    "hangs and holds back its end": ("timeout", "play took longer"),
}
"""Deed to the kind of its failure and words of it."""


class Sabotage(Reverse):
    """Every third play does one of DEEDS in turn; the others are those of ``reverse``."""

    def __init__(self, *, seed: int) -> None:
        super().__init__(seed=seed)
        self._plays = itertools.count()

    async def play(self, task: Task, policy: Policy) -> Outcome:
        number, third = divmod(next(self._plays), 3)
        if third:
            return await super().play(task, policy)
        return await sabotaged(list(DEEDS)[number % len(DEEDS)], task, policy)


async def sabotaged(deed: str, task: Task, policy: Policy) -> Outcome:
    """Play ``task``, and do ``deed`` at its end."""
    await policy.say(task.prompt * (20 if deed == "says too much" else 1), max_tokens=2)
    match deed:
        case "raises":
            1 / 0  # noqa: B018
        case "exits":
            sys.exit(0)
        case "cancels itself":
            ours = asyncio.current_task()
            assert ours is not None
            ours.cancel()
            await asyncio.sleep(0)
        case "returns something else":
            return 1.0  # type: ignore[return-value]
        case "rewards with NaN":
            return Outcome(reward=math.nan)
        case "rewards with text":
            return Outcome(reward="1.0")  # type: ignore[arg-type]
        case "hangs":
            await asyncio.Event().wait()
        case "hangs and holds back its end":
            with contextlib.suppress(BaseException):
                await asyncio.Event().wait()
    return Outcome(reward=0.0)


class Broken(Reverse):
    """Every play raises."""

    async def play(self, task: Task, policy: Policy) -> Outcome:
        raise ZeroDivisionError("division by zero")


def install(folder: Path) -> Path:
    """Make entry points ``sabotage`` and ``broken`` of this module; returns the folder for PYTHONPATH."""
    package = folder / "saboteurs-0.1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: saboteurs\nVersion: 0.1\n")
    points = "\n".join(f"{kind.lower()} = {__name__}:{kind}" for kind in ("Sabotage", "Broken"))
    (package / "entry_points.txt").write_text(f"[headrace.environments]\n{points}\n")
    return folder
