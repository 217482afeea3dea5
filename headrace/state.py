"""The state of a run at one moment: what ``headrace status`` and ``headrace runs`` say."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

import msgspec

from bus import Bus
from schemas import CONTROL, EVALUATIONS, LEDGER, ROLLOUTS, TASKS, Evaluated, Step

from .config import RunConfig
from .configured import config_of, configuration_of
from .evaluations import Evaluations, Score, plan_of
from .folder import RunFolder
from .inquiry import Place, newest
from .log_room import room_of
from .silence import Silence, silences
from .summary import (
    EDGE,
    generator_idle_share,
    mean_reward,
    tokens_per_s_generated,
    tokens_per_s_trained,
    trainer_idle_share,
)
from .view import HEARTBEAT_S, RoleView, RunView
from .watch import Watch

RunPhase = Literal["running", "paused", "stopping", "evaluating", "finished", "interrupted"]


class RoleState(msgspec.Struct, frozen=True, kw_only=True):
    """One instance of a role."""

    role: str
    id: str
    state: str
    """``started``, ``ready``, ``swapped`` or ``stopped``: the last thing it told."""
    alive: bool
    """It has not stopped, was heard lately, and the run goes on."""
    pid: int
    host: str
    version: int | None
    silent_s: float
    """Seconds since it was last heard."""
    restarts: int
    note: str


class SwapState(msgspec.Struct, frozen=True, kw_only=True):
    """The last swap, the load at a generator's start left out."""

    generator: str
    version: int
    at: float
    """Seconds since the epoch."""
    pause_ms: float


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """What ``headrace status --json`` prints. Figures that nothing is known of are null."""

    run: str
    state: RunPhase
    step: int
    """Last committed step."""
    steps: int | None
    """At which the run is finished; null where its configuration is not known."""
    version: int | None
    """Newest weights."""
    reward_last: float | None
    """Mean over the last five steps."""
    metrics: dict[str, dict[str, float]]
    """Environment to named metrics of the last step."""
    evaluations: list[Score]
    """By environment and version: those that were begun, and where the configuration is known those that are due."""
    evaluation_waits: str | None
    """Why no generator plays an evaluation that is due; null where one does, or none is due."""
    staleness_mean: float | None
    """Of the last step's tokens."""
    staleness_max: int | None
    groups_open: int
    rollouts_held: int
    """Rollouts that the trainer has and did not train yet."""
    tasks_published: int
    rollouts_published: int
    tokens_per_s_generated: float
    tokens_per_s_trained: float
    generator_idle_share: float
    trainer_idle_share: float
    last_swap: SwapState | None
    paused: bool
    stopped: bool
    """A person asked it to stop, and it was not started since."""
    dead_letters: int
    log_scarce: str | None
    """What is to be said of the room in ROLLOUTS; null while there is enough."""
    silent: list[Silence]
    """Who gives no sign of life while the run goes on."""
    roles: list[RoleState]


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """What ``headrace runs`` says of a run."""

    run: str
    state: RunPhase | Literal["unreadable"]
    step: int
    steps: int | None
    reward_last: float | None
    """Mean over the last five steps."""
    note: str = ""
    """Why it cannot be read."""


class UnansweredState(msgspec.Struct, frozen=True, kw_only=True):
    """What ``headrace status --json`` prints where the run's own server gives no answer."""

    run: str
    state: Literal["unanswered"] = "unanswered"
    steps: int | None
    """As in RunState."""
    silent: list[Silence]
    """The server."""


def steps_of(folder: RunFolder) -> int | None:
    """``run.steps`` of a run whose configuration is here."""
    config = config_of(folder)
    return None if config is None else config.run.steps


def phase(
    *, step: int, steps: int | None, goes_on: bool, paused: bool = False, stopped: bool = False, to_play: int = 0
) -> RunPhase:
    """In which state a run is that has committed ``step`` of ``steps``; its evaluation lacks ``to_play`` plays."""
    committed = steps is not None and step >= steps
    if committed and not to_play:
        return "finished"
    if not goes_on:
        return "interrupted"
    if stopped:
        return "stopping"
    if committed:
        return "evaluating"
    return "paused" if paused else "running"


async def run_state(bus: Bus, goes_on: bool, place: Place, clock: Callable[[], float] = time.time) -> RunState:
    """Read the log, and say how the run stands then. Times are of the epoch."""
    config = await configuration_of(bus, place)
    watch = Watch(bus, HEARTBEAT_S if config is None else config.generator.metric_interval_s)
    await watch.catch_up()
    watch.view.plan = None if config is None else plan_of(config)
    steps, now = None if config is None else config.run.steps, clock()
    tasks, rollouts = (await bus.state(TASKS)).last_sequence, (await bus.state(ROLLOUTS)).last_sequence
    return state_of(watch.view, goes_on=goes_on, steps=steps, now=now, tasks=tasks, rollouts=rollouts)


def state_of(view: RunView, *, goes_on: bool, steps: int | None, now: float, tasks: int, rollouts: int) -> RunState:
    """How the run in ``view`` stands; ``tasks`` and ``rollouts`` were published.

    ``goes_on``: its server is up. On one that serves other runs too, the run has ended where all its roles have.
    """
    goes_on = goes_on and not view.ended
    last = view.steps[-1].metrics if view.steps else {}
    staleness_max = last.get("staleness_max")
    stopped = view.stopped and view.stop_asked_at > view.last_start_at
    return RunState(
        run=view.run,
        state=phase(
            step=view.committed,
            steps=steps,
            goes_on=goes_on,
            paused=view.paused,
            stopped=stopped,
            to_play=view.evaluation_left,
        ),
        step=view.committed,
        steps=steps,
        version=view.version,
        reward_last=mean_reward(view.steps[-EDGE:]),
        metrics=view.steps[-1].env_metrics if view.steps else {},
        evaluations=view.scores,
        evaluation_waits=_evaluation_waits(view, now) if goes_on else None,
        staleness_mean=last.get("staleness_mean"),
        staleness_max=None if staleness_max is None else int(staleness_max),
        groups_open=int(view.gauge("dispatcher", "groups_open")),
        rollouts_held=int(view.gauge("trainer", "rollouts_held")),
        tasks_published=tasks,
        rollouts_published=rollouts,
        tokens_per_s_generated=round(tokens_per_s_generated(view), 1),
        tokens_per_s_trained=round(tokens_per_s_trained(view.steps), 1),
        generator_idle_share=generator_idle_share(view),
        trainer_idle_share=trainer_idle_share(view.steps),
        last_swap=_last_swap(view),
        paused=view.paused,
        stopped=stopped,
        dead_letters=len(view.dead),
        log_scarce=room_of(view).words(),
        silent=silences(view, now) if goes_on else [],
        roles=[_role_state(view, role, goes_on, now) for _, role in sorted(view.roles.items())],
    )


def _evaluation_waits(view: RunView, now: float) -> str | None:
    plan = view.plan
    if plan is None or not any(view.evaluations.missing(plan, version) for version in plan.due(view.version)):
        return None
    name = plan.settings.generator
    player = view.roles.get(f"generator/{name}")
    if player is not None and player.state != "stopped" and view.silent_for(player, now) is None:
        return None
    return f"no generator is called {name!r} (evaluation.generator): start one with headrace generate --id {name}"


def _role_state(view: RunView, role: RoleView, goes_on: bool, now: float) -> RoleState:
    alive = goes_on and role.state != "stopped" and view.silent_for(role, now) is None
    return RoleState(
        role=role.role,
        id=role.id,
        state=role.state,
        alive=alive,
        pid=role.pid,
        host=role.host,
        version=role.version,
        silent_s=round(max(0.0, now - role.last_seen), 1),
        restarts=role.restarts,
        note=role.note,
    )


def _last_swap(view: RunView) -> SwapState | None:
    swap = next((swap for swap in reversed(view.swaps) if not swap.initial), None)
    if swap is None:
        return None
    pause_ms = round(1000 * swap.details.get("pause_s", 0.0), 1)
    return SwapState(generator=swap.generator, version=swap.version, at=swap.at, pause_ms=pause_ms)


async def run_line(bus: Bus, goes_on: bool, config: RunConfig | None) -> RunLine:
    """The run on one line, from the end of its ledger; ``config``: its configuration, where it is here."""
    last = [logged.event for logged in await newest(bus, LEDGER, EDGE, (Step,)) if isinstance(logged.event, Step)]
    step, steps = last[-1].number if last else 0, None if config is None else config.run.steps
    to_play = await _plays_missing(bus, config) if config is not None and step >= config.run.steps else 0
    return RunLine(
        run=bus.run,
        state=phase(step=step, steps=steps, goes_on=goes_on, paused=await _paused(bus), to_play=to_play),
        step=step,
        steps=steps,
        reward_last=mean_reward(last),
    )


async def _paused(bus: Bus) -> bool:
    view = RunView(bus.run)
    async for logged in bus.read(CONTROL):
        view.apply(logged)
    return view.paused


async def _plays_missing(bus: Bus, config: RunConfig) -> int:
    """That the evaluation of the run's last version lacks."""
    if (plan := plan_of(config)) is None:
        return 0
    evaluations = Evaluations()
    async for logged in bus.read(EVALUATIONS):
        if isinstance(logged.event, Evaluated):
            evaluations.take(logged.event)
    return evaluations.missing(plan, plan.steps)
