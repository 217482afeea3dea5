"""Being fenced, in words for people: what was not written, and who has taken over."""

from __future__ import annotations

import os
import socket

from bus import Bus
from schemas import LEDGER, Closed, Event, Fenced, Step, Term, Weights


async def in_words(bus: Bus, event: Event, error: Fenced) -> Fenced:
    """``error``, met when ``event`` was to be appended, with the step that it is about and the other trainer."""
    last = await bus.last(LEDGER, Term)
    if last is None or not isinstance(last.event, Term) or _is_ours(last.event, bus.id):
        return Fenced(f"{_not_written(event)}: {error}")
    term = last.event
    return Fenced(
        f"{_not_written(event)}: trainer {term.instance!r} (process {term.pid} on {term.host}) has taken over this run "
        f"after step {term.committed}. This trainer ends; if it is the right one, stop the other and start it again"
    )


def _is_ours(term: Term, instance: str) -> bool:
    return (term.instance, term.pid, term.host) == (instance, os.getpid(), socket.gethostname())


def _not_written(event: Event) -> str:
    match event:
        case Step(number=number):
            return f"step {number} could not be committed"
        case Weights(version=version):
            return f"weights {version} could not be announced"
        case Closed(group=group, step=step):
            return f"group {group} could not be closed for step {step}"
        case Term(committed=committed):
            return f"no term could begin after step {committed}"
    return "the ledger could not be written"
