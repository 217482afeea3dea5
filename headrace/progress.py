"""The progress of a run: one display that is redrawn on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .evaluations import score_line
from .readable import printable
from .silence import Silence, moment, silences, words
from .summary import (
    generator_idle_share,
    swap_line,
    tokens_per_s_generated,
    tokens_per_s_trained,
    trainer_idle_share,
)
from .view import RunView

HEARTBEAT_S = 10.0
"""Without a terminal: a line at least so often, even when no step was committed."""


def _redraws(console: Console) -> bool:
    """Whether what was drawn can be drawn anew there: a file cannot, whatever FORCE_COLOR says, nor TERM=dumb."""
    return console.is_terminal and not console.is_dumb_terminal and console.file.isatty()


class Progress:
    """Shows ``view``; call ``update`` at each change and at least each second."""

    def __init__(
        self,
        view: RunView,
        steps: int,
        console: Console,
        clock: Callable[[], float] = time.time,
        server: Callable[[float], Silence | None] = lambda now: None,
    ) -> None:
        """``server``: the run's server, where it is silent at the time given."""
        self._view = view
        self._steps = steps
        self._console = console
        self._clock = clock
        self._server = server
        self._told_step = view.committed
        self._told_at = 0.0
        self._told_evaluations = set(_complete(view))
        self._silent: dict[str, Silence] = {}
        self._updated_at = clock()
        self._live = Live(console=console, auto_refresh=False) if _redraws(console) else None

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def update(self) -> None:
        """Draw anew; without a terminal, print what was not told yet. Say who has become silent, and who is back."""
        self._tell_silences(self._clock())
        self._tell_evaluations()
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
            return
        while self._told_step < self._view.committed:
            self._told_step += 1
            self._tell(step_line(self._view, self._told_step, self._steps))
        if self._clock() - self._told_at >= HEARTBEAT_S:
            self._tell(state_line(self._view, self._silent.values()))

    def _tell_silences(self, now: float) -> None:
        if now - self._updated_at > self._view.silent_after_s:
            # We were stopped ourselves, and must listen first.
            self.say(f"headrace up did not run for {now - self._updated_at:.0f} s")
            self._view.listening_since = now
        self._updated_at = now
        server = self._server(now)
        if server is not None:
            # Nobody is heard through a silent server; each has some time to be heard when it is back.
            self._view.listening_since = now
        silent = {each.who: each for each in ([server] if server else silences(self._view, now))}
        for who in sorted(silent.keys() - self._silent.keys()):
            self.say(words(silent[who], now))
        for who in sorted(self._silent.keys() - silent.keys()):
            self.say(f"{who} is no longer silent, after {now - self._silent[who].since:.0f} s")
        self._silent = silent

    def _tell_evaluations(self) -> None:
        for env, version in _complete(self._view):
            if (env, version) not in self._told_evaluations:
                self._told_evaluations.add((env, version))
                self.say(f"evaluation {score_line(self._view.evaluations.score(env, version, self._view.plan))}")

    def _tell(self, line: str) -> None:
        self._told_at = self._clock()
        self.say(line)

    def _table(self) -> RenderableType:
        view = self._view
        grid = Table.grid(padding=(0, 2))
        for label, value in figures(view, self._silent.values()):
            grid.add_row(Text(label, style="dim"), value)
        bar = ProgressBar(total=self._steps, completed=view.committed, width=50)
        return Group(Text(f"{view.run}: step {view.committed} of {self._steps}", style="bold"), bar, grid)


def figures(view: RunView, silent: Collection[Silence]) -> list[tuple[str, str]]:
    """Label and value of everything that progress shows."""
    last = view.steps[-1].metrics if view.steps else {}
    swaps = [swap for swap in view.swaps if not swap.initial]
    version = "-" if view.weights is None else str(view.weights.version)
    return [
        ("reward", f"{last['reward_mean']:.3f}" if "reward_mean" in last else "-"),
        ("weights", version),
        ("staleness", f"mean {last['staleness_mean']:.2f}, max {last['staleness_max']:.0f}" if last else "-"),
        (
            "queue",
            f"{view.gauge('dispatcher', 'groups_open'):.0f} groups open, "
            f"{view.gauge('trainer', 'rollouts_held'):.0f} rollouts held",
        ),
        ("tokens/s", f"{tokens_per_s_generated(view):.0f} generated, {tokens_per_s_trained(view.steps):.0f} trained"),
        (
            "idle",
            f"generators {100 * generator_idle_share(view):.0f} %, "
            f"trainer {100 * trainer_idle_share(view.steps):.0f} %",
        ),
        ("last swap", swap_line(swaps[-1]) if swaps else "-"),
        *_evaluation(view),
        ("dead letters", str(len(view.dead))),
        ("roles", roles_line(view, silent)),
    ]


def _complete(view: RunView) -> list[tuple[str, int]]:
    """Environment and version of each evaluation that lacks nothing."""
    plan = view.plan
    if plan is None:
        return []
    due = [(env, version) for version in plan.due(view.version) for env in plan.environments]
    return [each for each in due if view.evaluations.published(*each) >= plan.plays]


def _evaluation(view: RunView) -> list[tuple[str, str]]:
    """The newest version that is due, and how far its evaluation is; nothing where nothing is evaluated."""
    plan = view.plan
    if plan is None or not (due := plan.due(view.version)):
        return []
    total = plan.plays * len(plan.environments)
    waiting = [version for version in due if view.evaluations.missing(plan, version)]
    version = waiting[0] if waiting else due[-1]
    return [("evaluation", f"v{version}: {total - view.evaluations.missing(plan, version)} of {total} plays")]


def roles_line(view: RunView, silent: Collection[Silence]) -> str:
    """Each instance with its state and what holds it up; first, who is silent since when."""
    parts = [f"{each.who} SILENT since {moment(each.since)}" for each in silent]
    for name, role in sorted(view.roles.items()):
        held_up = f" ({printable(role.note)})" if role.note and role.state != "stopped" else ""
        parts.append(f"{name} {role.state}{held_up}")
    return ", ".join(parts) or "none"


def step_line(view: RunView, number: int, steps: int) -> str:
    """One committed step on one line."""
    step = next(each for each in reversed(view.steps) if each.number == number)
    metrics = step.metrics
    named = "".join(f" {name} {value:.2f}" for env in step.env_metrics.values() for name, value in sorted(env.items()))
    swaps = [swap for swap in view.swaps if not swap.initial]
    swap = f"  swap {swap_line(swaps[-1])}" if swaps else ""
    return (
        f"step {number:>3}/{steps}  reward {metrics.get('reward_mean', float('nan')):.3f}{named}"
        f"  staleness {metrics['staleness_mean']:.2f}  held {metrics['rollouts_held']:.0f}"
        f"  tokens {metrics['trained_tokens']:.0f}  waited {metrics['wait_s']:.1f} s"
        f"  trained {metrics['train_s']:.1f} s{swap}"
    )


def state_line(view: RunView, silent: Collection[Silence]) -> str:
    """What everybody is doing, while no step is committed."""
    return f"step {view.committed}  " + "  ".join(f"{label}: {value}" for label, value in figures(view, silent)[3:])
