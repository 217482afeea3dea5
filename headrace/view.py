"""The state of a run, folded from its events: what status, progress and summary show.

A pure function of the log. Times are seconds since the epoch, as the server recorded the events.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from bus import Logged
from producers.generator.settings import GeneratorSettings
from schemas import Closed, Control, Dead, Evaluated, Lifecycle, Metric, Step, Term, Weights

from .evaluations import Evaluations, Plan, Score

HEARTBEAT_S = GeneratorSettings().metric_interval_s
"""Seconds between two heartbeats of a role, where the run's configuration is not at hand."""
MISSED_BEATS = 7.5
"""A role that was not heard for so many heartbeats is shown as silent."""


class RoleView(msgspec.Struct, kw_only=True):
    """One instance of a role."""

    role: str
    id: str
    state: str = "started"
    pid: int = 0
    host: str = ""
    version: int | None = None
    last_seen: float = 0.0
    """Of its newest event."""
    restarts: int = 0
    """Times that it was started again after a death or an error, rather than after an orderly end."""
    gauges: dict[str, float] = {}
    note: str = ""
    failed: bool = False
    """Whether it stopped because of an error."""


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown of one committed step."""

    number: int
    at: float
    """When it was committed."""
    metrics: dict[str, float]
    env_metrics: dict[str, dict[str, float]]
    left_out: dict[str, int]
    """Rollouts, by reason."""
    first: bool = False
    """Of a term: the time since the step before is that of a start, or of a stop of hours."""


class SwapView(msgspec.Struct, frozen=True, kw_only=True):
    """One swap of one generator; ``initial`` is the load after its start."""

    generator: str
    version: int
    at: float
    details: dict[str, float]
    """As the ``swapped`` event tells: times in seconds, and counts."""
    initial: bool


class RunView:
    """Fold events with ``apply``; read the fields."""

    def __init__(self, run: str, interval_s: float = HEARTBEAT_S) -> None:
        """``interval_s``: seconds between two heartbeats of a role, ``generator.metric_interval_s``."""
        self.run = run
        self.silent_after_s = MISSED_BEATS * interval_s
        self.listening_since = 0.0
        """Before it nobody could be heard from here: the server, or this process, had stopped."""
        self.began_at: float | None = None
        self.last_at = 0.0
        self.steps: list[StepView] = []
        self.weights: Weights | None = None
        self._term_begins = True
        self.closed: Counter[str] = Counter()
        """Groups left out whole, by reason."""
        self.roles: dict[str, RoleView] = {}
        self.swaps: list[SwapView] = []
        self.paused = False
        self.stopped = False
        self.stop_asked_at = 0.0
        self.last_start_at = 0.0
        """Of any role: a stop that was asked before it was for earlier processes."""
        self.dead: list[Logged] = []
        """Dead letters."""
        self.evaluations = Evaluations()
        self.plan: Plan | None = None
        """What is evaluated; None where nothing is, or the run's configuration is not at hand."""

    @property
    def committed(self) -> int:
        """Last committed step; 0 before the first."""
        return self.steps[-1].number if self.steps else 0

    @property
    def version(self) -> int | None:
        """Newest weights; None before the first."""
        return None if self.weights is None else self.weights.version

    @property
    def scores(self) -> list[Score]:
        """How each evaluated version does, by environment."""
        return self.evaluations.scores(self.plan, self.version)

    @property
    def evaluation_left(self) -> int:
        """Plays that the evaluation of the run's last version lacks; 0 where nothing is evaluated."""
        return 0 if self.plan is None else self.evaluations.missing(self.plan, self.plan.steps)

    @property
    def alive(self) -> list[RoleView]:
        """Instances that have not said that they stopped."""
        return [role for role in self.roles.values() if role.state != "stopped"]

    def silent_for(self, role: RoleView, now: float) -> float | None:
        """Seconds since its last sign of life, when that is too long for a role that has not stopped."""
        if role.state == "stopped" or now - max(role.last_seen, self.listening_since) <= self.silent_after_s:
            return None
        return now - role.last_seen

    def of_role(self, role: str) -> list[RoleView]:
        """Its instances, stopped ones included."""
        return [each for each in self.roles.values() if each.role == role]

    def gauge(self, role: str, name: str) -> float:
        """Sum of a gauge over the role's instances that live; where none does, that of the last one."""
        # The newest event is the clock: where nobody is heard, nobody has died of it.
        living = [each for each in self.alive if each.role == role and self.silent_for(each, self.last_at) is None]
        last = sorted(self.of_role(role), key=lambda each: each.last_seen)[-1:]
        return sum(each.gauges.get(name, 0.0) for each in living or last)

    @property
    def ended(self) -> bool:
        """Whether roles are known, and each but sinks, which may serve on, has said that it stopped."""
        states = [role.state for role in self.roles.values() if role.role != "sink"]
        return bool(states) and set(states) == {"stopped"}

    def apply(self, logged: Logged) -> None:
        """Take one message of a watched stream into account; others change nothing but the times."""
        self.began_at = logged.time if self.began_at is None else min(self.began_at, logged.time)
        self.last_at = max(self.last_at, logged.time)
        match logged.event:
            case Step() as step:
                self.steps.append(
                    StepView(
                        number=step.number,
                        at=logged.time,
                        metrics=step.metrics,
                        env_metrics=step.env_metrics,
                        left_out=step.left_out,
                        first=self._term_begins,
                    )
                )
                self._term_begins = False
            case Term():
                self._term_begins = True
            case Weights() as weights:
                self.weights = weights
            case Closed() as closed:
                self.closed[closed.reason] += 1
            case Lifecycle() as lifecycle:
                self._live(lifecycle, logged.time)
            case Metric() as metric:
                heard_before = f"{metric.role}/{metric.id}" in self.roles
                role = self._role(metric.role, metric.id, logged.time)
                if not heard_before:
                    # TELEMETRY drops its oldest: with 200 generators after an hour, and how they began with them.
                    role.state = "ready"
                role.gauges, role.version, role.note = metric.gauges, metric.version, metric.note
            case Control() as control:
                self._control(control, logged.time)
            case Dead():
                self.dead.append(logged)
            case Evaluated() as evaluated:
                self.evaluations.take(evaluated)

    def _control(self, control: Control, at: float) -> None:
        match control.action:
            case "pause":
                self.paused = True
            case "resume":
                self.paused = False
            case "stop":
                self.stopped, self.stop_asked_at = True, max(self.stop_asked_at, at)

    def _role(self, role: str, id: str, at: float) -> RoleView:
        view = self.roles.setdefault(f"{role}/{id}", RoleView(role=role, id=id))
        view.last_seen = max(view.last_seen, at)
        return view

    def _live(self, event: Lifecycle, at: float) -> None:
        role = self._role(event.role, event.id, at)
        if event.state == "stopped" and (event.pid, event.host) != (role.pid, role.host) and role.pid:
            return  # The end of a process whose place another one of its name has taken.
        if event.state == "started":
            role.restarts += role.pid != 0 and (role.state != "stopped" or role.failed)
            self.last_start_at = max(self.last_start_at, at)
        if event.state == "swapped" and event.version is not None:
            initial = role.state == "started"
            self.swaps.append(
                SwapView(generator=event.id, version=event.version, at=at, details=event.details, initial=initial)
            )
            role.state = "ready"
        else:
            role.state = event.state
            role.failed = event.state == "stopped" and bool(event.note)
        role.pid, role.host, role.version, role.note = event.pid, event.host, event.version, event.note
