"""Who may begin a term: the same instance at once, another one only when the last is silent or has ended."""

from __future__ import annotations

from bus import Bus
from schemas import LEDGER, TELEMETRY, Fenced, Lifecycle, Metric, Term

FRESH_S = 15.0
"""A trainer that gave a sign of life so lately is alive."""


def refusal(term: Term | None, instance: str, *, last_sign: float | None, stopped: bool, now: float) -> str | None:
    """Why ``instance`` may not take over; None when it may.

    term: the last one begun. last_sign: when its trainer was last heard of, seconds since the epoch, on the same
    clock as ``now``; None where there is no term. stopped: whether that sign was its end.
    """
    if term is None or term.instance == instance or stopped or last_sign is None or now - last_sign > FRESH_S:
        return None
    return (
        f"trainer {term.instance!r} (process {term.pid} on {term.host}) was alive {now - last_sign:.0f} s ago: "
        f"stop it first, or wait until it has been silent for {FRESH_S:g} s"
    )


async def check_takeover(bus: Bus, instance: str, now: float) -> None:
    """Raise Fenced where another trainer is alive on this run. ``now``: seconds since the epoch."""
    last = await bus.last(LEDGER, Term)
    if last is None or not isinstance(last.event, Term):
        return
    source = f"trainer/{last.event.instance}"
    life = await bus.last(TELEMETRY, Lifecycle, source=source)
    beat = await bus.last(TELEMETRY, Metric, source=source)
    # The term itself is one: its trainer may not have told anything since.
    signs = [sign.time for sign in (last, life, beat) if sign is not None]
    stopped = life is not None and isinstance(life.event, Lifecycle) and _ended(last.event, life.event)
    reason = refusal(last.event, instance, last_sign=max(signs), stopped=stopped, now=now)
    if reason is not None:
        raise Fenced(reason)


def _ended(term: Term, life: Lifecycle) -> bool:
    """Whether ``life`` tells the end of the very process that began ``term``: one that it took over from ends later."""
    return life.state == "stopped" and (life.pid, life.host) == (term.pid, term.host)
