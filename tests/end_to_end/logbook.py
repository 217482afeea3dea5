"""A finished run's log in memory, and what must hold for every log."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import msgspec

from bus import Address, Logged, connect
from headrace.config import RunConfig, stored
from headrace.folder import RunFolder
from headrace.server import serving
from schemas import (
    LEDGER,
    ROLLOUTS,
    TASKS,
    TELEMETRY,
    Closed,
    GroupTask,
    Lifecycle,
    Rollout,
    Step,
    Term,
    Weights,
)


class Logbook(msgspec.Struct):
    """All of a run's events, by kind and in order."""

    folder: RunFolder
    config: RunConfig
    tasks: list[GroupTask] = []
    rollouts: dict[int, Rollout] = {}
    """By sequence."""
    ledger: list[Logged] = []
    terms: list[Term] = []
    steps: list[Step] = []
    closed: list[Closed] = []
    weights: list[Weights] = []
    lifecycle: list[Lifecycle] = []
    strange: list[Logged] = []
    """What is no event of this run, or not where it belongs."""

    def take(self, logged: Logged) -> None:
        match logged.event:
            case None:
                self.strange.append(logged)
            case GroupTask() as task:
                self.tasks.append(task)
            case Rollout() as rollout:
                self.rollouts[logged.sequence] = rollout
            case Term() as term:
                self.terms.append(term)
            case Step() as step:
                self.steps.append(step)
            case Closed() as closed:
                self.closed.append(closed)
            case Weights() as weights:
                self.weights.append(weights)
            case Lifecycle() as lifecycle:
                self.lifecycle.append(lifecycle)


def read_logbook(path: Path) -> Logbook:
    folder = RunFolder(path)
    book = Logbook(folder, stored(path))

    with serving(folder, "reader") as served:
        asyncio.run(take_all(book, served.address))
    return book


async def take_all(book: Logbook, address: Address) -> None:
    """Read the run's log from the server at ``address``."""
    bus = await connect(address, run=book.config.run.name, role="reader", id="logbook")
    for spec in (TASKS, ROLLOUTS, LEDGER, TELEMETRY):
        async for logged in bus.read(spec):
            book.take(logged)
            if spec is LEDGER:
                book.ledger.append(logged)
    await bus.close()


def check(book: Logbook, *, strange: int = 0) -> None:
    """What holds for every run, however often its parts died. Raises AssertionError.

    ``strange``: messages that a test has put among the run's own.
    """
    assert len(book.strange) == strange, [(each.subject, each.invalid) for each in book.strange]
    assert [task.group for task in book.tasks] == list(range(len(book.tasks))), "a task was skipped or repeated"
    assert [step.number for step in book.steps] == list(range(1, len(book.steps) + 1)), "the ledger has a gap or a fork"
    versions = [weights.version for weights in book.weights]
    assert versions == list(range(len(book.steps) + 1)), "a version was announced twice or not at all"
    for before, after in zip(book.steps, book.steps[1:], strict=False):
        assert after.weights_before == before.weights_after
    digests = [book.steps[0].weights_before, *[step.weights_after for step in book.steps]]
    assert [weights.sha256 for weights in book.weights] == digests
    settled = Counter([group.group for step in book.steps for group in step.groups])
    settled.update(closed.group for closed in book.closed)
    assert max(settled.values()) == 1, "a group was settled twice"
    assert max(settled) < len(book.tasks)
    check_staleness(book)


def check_staleness(book: Logbook) -> None:
    """No token that was trained is older than the bound, by the rollouts' own spans."""
    bound = book.config.policy.max_off_policy_steps
    for step in book.steps:
        for group in step.groups:
            for sequence, advantage in zip(group.sequences, group.advantages, strict=True):
                if advantage is not None:
                    lags = step.number - 1 - book.rollouts[sequence].token_versions()
                    assert lags.min() >= 0
                    if book.config.policy.stale == "drop":
                        assert lags.max() <= bound, f"step {step.number} trained a token of lag {lags.max()}"
