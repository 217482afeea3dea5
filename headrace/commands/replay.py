"""``headrace replay train | events``: a recorded run's steps trained again, or its rollouts published again."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from headrace import config as configuration
from headrace.config import RunConfig
from headrace.configured import configuration_file
from headrace.folder import RunFolder
from headrace.readable import printable
from headrace.replay import Compared, Retrained, Steps, model_of, replay_rollouts, retrain, what_if
from schemas import ConfigError, check_name

from . import options, output

HELP = {"replay": "train a run's steps again from its log and compare, or publish its rollouts into a new run"}
EXAMPLES = {
    "train": [
        "headrace replay train demo                     all steps, from the model that the run started from",
        "headrace replay train demo --steps 100..120    from the checkpoint before step 100",
        "headrace replay train demo --steps 100..120 --set trainer.lr=1e-4    what if: the same batches",
        "headrace replay train demo --server nats://127.0.0.1:4222 --config config.json --model DIR    a backup",
    ],
    "events": [
        "headrace replay events demo --into dev                at the recorded pace",
        "headrace replay events demo --into dev --speed max    as fast as a trainer takes them",
    ],
}
DIGITS = 12
"""Of a digest, as elsewhere."""


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    options.example(parser, *(line for lines in EXAMPLES.values() for line in lines))
    actions = parser.add_subparsers(dest="action", required=True, metavar="train | events")
    train = actions.add_parser("train", help="train steps again from the log, and compare them with what was recorded")
    options.example(train, *EXAMPLES["train"])
    options.add_run(train)
    _add_config(train)
    train.add_argument(
        "--steps", type=_steps, default=Steps(), metavar="A..B", help="steps A to B (default: all that are committed)"
    )
    train.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
        help="what if: another loss or optimizer from step A on, for example trainer.lr=1e-4; may be repeated",
    )  # fmt: skip
    train.add_argument(
        "--model", type=Path, metavar="DIR",
        help="model that the run started from (default: with --server, what is in NATS; else the run's model.path)",
    )  # fmt: skip
    options.add_json(train)
    events = actions.add_parser("events", help="publish the run's rollouts into a new run, for a trainer to train")
    options.example(events, *EXAMPLES["events"])
    options.add_run(events)
    _add_config(events)
    events.add_argument("--into", required=True, metavar="NEW", help="name of the new run")
    events.add_argument(
        "--speed", type=_speed, default=1.0, metavar="X|max", help="times the recorded pace, or at once (default: 1)"
    )
    options.add_json(events)


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=Path, metavar="FILE",
        help="configuration that the run was made with (default: with --server, what is in NATS; else config.json in "
        "the run's folder)",
    )  # fmt: skip


def _steps(text: str) -> Steps:
    """``3..7``, ``3..``, ``..7`` or ``3``."""
    match = re.fullmatch(r"(\d*)\.\.(\d*)|(\d+)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no range of steps: write 3..7, 3.. or 3")
    first, last, only = match.groups()
    return Steps(int(only), int(only)) if only else Steps(int(first or 1), int(last) if last else None)


def _speed(text: str) -> float | None:
    """None for ``max``."""
    if text == "max":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no speed: write a number above 0, or max")
    return speed


def run(arguments: argparse.Namespace) -> int:
    return _train(arguments) if arguments.action == "train" else _events(arguments)


def _train(arguments: argparse.Namespace) -> int:
    place = options.place_of(arguments)
    with configuration_file(place, arguments.config) as file:
        recorded, changed = configuration.load(file), what_if(file, arguments.overrides)
    model = model_of(place, recorded, arguments.model)
    recorded, changed = (_with_model(config, model) for config in (recorded, changed))
    show = _as_json if arguments.json else _table(differences=bool(arguments.overrides))
    result = retrain(place, recorded, changed, arguments.overrides, arguments.steps, show)
    if arguments.json:
        output.print_json(result)
    else:
        _print(result)
    excused = result.what_if or result.environment_differs or not result.bits_promised
    return 0 if result.identical or excused else 1


def _with_model(config: RunConfig, model: Path) -> RunConfig:
    return msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, path=str(model)))


def _as_json(compared: Compared, asked: bool) -> None:
    if asked:
        output.print_json(compared)
        sys.stdout.flush()
    else:
        _say_before(compared)


def _say_before(compared: Compared) -> None:
    same = "the same" if compared.same else "NOT the same"
    print(f"step {compared.step} (on the way): {same}", file=sys.stderr, flush=True)


def _table(*, differences: bool) -> Callable[[Compared, bool], None]:
    """Prints a line for each step as it comes; with ``differences`` also how far now is from recorded."""
    titles = ["step", "loss", "now", "grad norm", "now", "weights", "now"]
    if differences:
        titles[3:3], titles[6:6] = ["difference"], ["difference"]
    differed = False
    begun = False

    def show(compared: Compared, asked: bool) -> None:
        nonlocal begun, differed
        if not asked:
            _say_before(compared)
            differed = differed or not compared.same
            return
        if not begun:
            print(_line(titles))
            begun = True
        mark = "" if compared.same else "  differs" if differed else "  <- first difference"
        differed = differed or not compared.same
        print(_line(_cells(compared, differences)) + mark, flush=True)

    return show


def _cells(compared: Compared, differences: bool) -> list[str]:
    cells = [str(compared.step)]
    for before, now in ((compared.loss_recorded, compared.loss), (compared.grad_norm_recorded, compared.grad_norm)):
        cells += [f"{before:.6g}", f"{now:.6g}"]
        if differences:
            cells.append(f"{now - before:+.3g}")
    return [*cells, compared.weights_recorded[:DIGITS], compared.weights[:DIGITS]]


def _line(cells: list[str]) -> str:
    return "  ".join([f"{cells[0]:>6}", *(f"{cell:>12}" for cell in cells[1:])])


def _print(result: Retrained) -> None:
    steps = f"steps {result.first_step} to {result.last_step}"
    begin = f"checkpoint {result.checkpoint}" if result.checkpoint else "the model that the run started from"
    changed = f", with {', '.join(result.what_if)} from step {result.first_step} on" if result.what_if else ""
    outcome = "identical" if result.identical else f"NOT identical, first at step {result.first_difference}"
    print(f"\n{steps} from {begin}{changed}: {outcome}")
    for line in result.environment_differs:
        print(f"  not as recorded: {printable(line)}")
    if not result.identical and not result.what_if:
        print(f"  {_reason(result)}")


def _reason(result: Retrained) -> str:
    """Why the bits differ."""
    if not result.bits_promised:
        return (
            "bits are not promised on a GPU, then or now: at most, the loss differs by "
            f"{result.loss_difference:.3g}, the gradient norm by {result.grad_norm_difference:.3g}"
        )
    if result.environment_differs:
        return "bits are promised only where all of this is as recorded"
    return "all that decides bits is as recorded: the log, a checkpoint or the model has changed"


def _events(arguments: argparse.Namespace) -> int:
    source = options.place_of(arguments)
    into = RunFolder(arguments.dir / check_name(arguments.into, "--into"))
    if into.name == source.run:
        raise ConfigError(f"--into {into.name} is the run itself: give the new run another name")
    stream = sys.stderr if arguments.json else sys.stdout

    def say(text: str) -> None:
        print(text, file=stream, flush=True)

    with configuration_file(source, arguments.config) as file:
        recorded = configuration.load(file)
    result = replay_rollouts(source, recorded, into, speed=arguments.speed, say=say)
    if arguments.json:
        output.print_json(result)
    else:
        print(
            f"{result.rollouts} rollouts of {result.run} in {result.into} ({result.duplicates} were duplicates, "
            f"{result.unreadable} messages unreadable); {result.steps} steps committed, {result.wall_s:.1f} s"
        )
    return 0
