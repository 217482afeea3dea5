"""A run's evaluations as a picture: the mean on held-out tasks by version, with its 95 % confidence interval.

    python -m tools.curve RUN PNG [--dir DIR | --server URL] [--env NAME] [--metric NAME]

Needs matplotlib (in the extra `dev`). The run may go on, or have ended.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bus import Bus
from headrace.evaluations import Score
from headrace.folder import DEFAULT_DIR, RunFolder, find_run
from headrace.inquiry import Place, ask
from headrace.view import RunView
from headrace.watch import Watch
from schemas import HeadraceError, RunError


def main(argv: Sequence[str]) -> int:
    """Exit code 0 when the picture is written."""
    parser = argparse.ArgumentParser(prog="python -m tools.curve", description=__doc__.partition("\n")[0])
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("png", type=Path, metavar="PNG")
    parser.add_argument("--dir", type=Path, default=DEFAULT_DIR, help="folder of runs (default: runs)")
    parser.add_argument("--server", metavar="URL", help="NATS server, for a run on one of yours")
    parser.add_argument("--env", help="environment (default: the first that was evaluated)")
    parser.add_argument("--metric", help="named metric (default: the reward)")
    arguments = parser.parse_args(argv)
    try:
        view = ask(_place(arguments.run, arguments.dir, arguments.server), _view)
        draw(view, arguments.png, env=arguments.env, metric=arguments.metric)
    except HeadraceError as error:
        print(f"tools.curve: {error}", file=sys.stderr)
        return 1
    print(arguments.png)
    return 0


def _place(run: str, folder: Path, server: str | None) -> Place:
    return Place(run, find_run(run, folder)) if server is None else Place(run, RunFolder(folder / run), server)


async def _view(bus: Bus, goes_on: bool) -> RunView:
    watch = Watch(bus)
    await watch.catch_up()
    return watch.view


def draw(view: RunView, png: Path, *, env: str | None = None, metric: str | None = None) -> None:
    """Write the picture. Raises RunError where the run has no such evaluation."""
    scores = points(view.scores, env, metric)
    from matplotlib.figure import Figure

    name, versions = scores[0].env, [score.version for score in scores]
    estimates = [score.reward if metric is None else score.metrics[metric] for score in scores]
    means = [each.mean for each in estimates if each is not None]
    lows = [each.mean if each.low is None else each.low for each in estimates if each is not None]
    highs = [each.mean if each.high is None else each.high for each in estimates if each is not None]
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    trained = [(step.number, step.metrics["reward_mean"]) for step in view.steps if "reward_mean" in step.metrics]
    if metric is None and trained:
        axes.plot(*zip(*trained, strict=True), color="0.75", linewidth=1, label="reward in training, by step")
    spread = [[mean - low for mean, low in zip(means, lows, strict=True)],
              [high - mean for mean, high in zip(means, highs, strict=True)]]  # fmt: skip
    label = f"{scores[0].tasks} held-out tasks, 95 % interval ({estimates[0].method})" if estimates[0] else ""
    axes.errorbar(versions, means, yerr=spread, marker="o", capsize=4, color="tab:blue", label=label)
    axes.set(title=f"run {view.run}, environment {name}", xlabel="version of the weights", ylabel=metric or "reward")
    axes.grid(alpha=0.3)
    axes.legend(loc="best")
    figure.savefig(png, dpi=150)


def points(scores: Sequence[Score], env: str | None, metric: str | None) -> list[Score]:
    """Those to draw, by version. Raises RunError, saying what there is, where there is none."""
    names = sorted({score.env for score in scores})
    wanted = env or (names[0] if names else None)
    found = [
        score
        for score in scores
        if score.env == wanted and score.reward is not None and (metric is None or metric in score.metrics)
    ]
    if not found:
        there = ", ".join(names) or "none: set evaluation.every_steps"
        raise RunError(f"there is nothing to draw of environment {wanted!r}, metric {metric!r} (evaluated: {there})")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
