"""Training recorded steps again, from the checkpoint before them, and comparing what comes of it.

The learner has a folder of its own with links to the run's checkpoints, so whatever it saves or removes, the run
keeps its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from consumers.trainer import (
    Exported,
    Learner,
    cpu_features,
    device_name,
    library_versions,
    load_newest_checkpoint,
    promises_bits,
    train_again,
)
from headrace.config import RunConfig, digest
from headrace.inquiry import Place
from headrace.models import check_model
from headrace.training import build_learner, rules
from schemas import RunError, Step

from .recorded import CommittedStep, committed_steps, recorded_steps


class Steps(msgspec.Struct, frozen=True):
    """Which steps: both ends belong to them."""

    first: int = 1
    last: int | None = None
    """None for the last committed one."""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One step: what was recorded, and what it is now."""

    step: int
    loss_recorded: float
    loss: float
    grad_norm_recorded: float
    grad_norm: float
    weights_recorded: str
    """sha256 of the weights after the step."""
    weights: str
    same: bool
    """Whether all three are equal, to the last bit."""


class Retrained(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it all."""

    run: str
    steps: int
    """Steps compared."""
    first_step: int
    last_step: int
    checkpoint: int
    """Step after which it began; 0 for the model that the run started from."""
    what_if: list[str]
    """``KEY=VALUE`` that were changed from ``first_step`` on."""
    identical: bool
    first_difference: int | None
    """The first step that is not the same."""
    environment_differs: list[str]
    """What decides bits and is not as recorded, with both values."""
    bits_promised: bool
    """Whether the same inputs must give the same bits: then and now the CPU computed, and no GPU."""
    loss_difference: float
    """The greatest between now and recorded, absolute, of all steps that were trained again."""
    grad_norm_difference: float
    """Likewise."""


class _Comparison:
    """Takes each step that was trained again."""

    def __init__(self, environment: dict[str, str], first: int, show: Callable[[Compared, bool], None]) -> None:
        self._environment, self._first, self._show = environment, first, show
        self.first_difference: int | None = None
        self.environment_differs: list[str] = []
        self.bits_promised = promises_bits(environment["device"])
        self.loss_difference = self.grad_norm_difference = 0.0

    def take(self, step: Step, metrics: dict[str, float], sha256: str) -> None:
        self._compare_environment(step)
        self.bits_promised = self.bits_promised and promises_bits(step.device)
        recorded = (step.metrics["loss"], step.metrics["grad_norm"], step.weights_after)
        compared = Compared(
            step=step.number,
            loss_recorded=recorded[0],
            loss=metrics["loss"],
            grad_norm_recorded=recorded[1],
            grad_norm=metrics["grad_norm"],
            weights_recorded=recorded[2],
            weights=sha256,
            same=recorded == (metrics["loss"], metrics["grad_norm"], sha256),
        )
        self.loss_difference = max(self.loss_difference, abs(compared.loss - compared.loss_recorded))
        self.grad_norm_difference = max(
            self.grad_norm_difference, abs(compared.grad_norm - compared.grad_norm_recorded)
        )
        if not compared.same and self.first_difference is None:
            self.first_difference = step.number
        self._show(compared, step.number >= self._first)

    def _compare_environment(self, step: Step) -> None:
        for name, value in _environment_of(step).items():
            now = self._environment.get(name, "nothing")
            line = f"{name}: recorded {value or 'nothing'}, now {now or 'nothing'}"
            if now != value and line not in self.environment_differs:
                self.environment_differs.append(line)


def retrain(
    place: Place,
    recorded: RunConfig,
    changed: RunConfig,
    changes: list[str],
    steps: Steps,
    show: Callable[[Compared, bool], None],
) -> Retrained:
    """Train ``steps`` again, and those between the newest good checkpoint and them.

    recorded: the run's configuration. changed: the same with ``changes``, which count from the first of ``steps``
    on. show: told of each step as it is trained, and whether it is one of ``steps``.
    Raises RunError where the run has no such steps or the model is not the one that it started from, LogGap where
    rollouts are missing.
    """
    committed = committed_steps(place)
    numbers = _within(place.run, committed, steps)
    first, threads = numbers[0], committed[numbers[0]].threads
    recorded, changed = _with_threads(recorded, threads), _with_threads(changed, threads)
    check_model(Path(recorded.model.path))
    with tempfile.TemporaryDirectory(prefix="headrace-replay-") as aside:
        checkpoints = _linked(place.folder.checkpoints, Path(aside), before=first)
        learner = build_learner(recorded, checkpoints)
        checkpoint = load_newest_checkpoint(learner, first - 1)
        comparison = _Comparison(_environment_now(recorded, learner), first, show)

        def train(learner: Learner, numbers: range) -> None:
            read = recorded_steps(place, committed, numbers)
            train_again(learner, read, rules(recorded), on_step=comparison.take)

        _check_start(place, recorded, committed[checkpoint + 1], checkpoint, learner)
        train(learner, range(checkpoint + 1, first))
        if changes:
            learner.save_checkpoint(first - 1)
            learner = build_learner(changed, checkpoints)
            learner.load_checkpoint(first - 1)
        train(learner, numbers)
    return Retrained(
        run=place.run,
        steps=len(numbers),
        first_step=first,
        last_step=numbers[-1],
        checkpoint=checkpoint,
        what_if=changes,
        identical=comparison.first_difference is None,
        first_difference=comparison.first_difference,
        environment_differs=comparison.environment_differs,
        bits_promised=comparison.bits_promised,
        loss_difference=comparison.loss_difference,
        grad_norm_difference=comparison.grad_norm_difference,
    )


def _within(run: str, committed: dict[int, CommittedStep], steps: Steps) -> range:
    if not committed:
        raise RunError(f"run {run!r} has committed no step yet: see headrace tail {run}")
    newest = max(committed)
    last = newest if steps.last is None else steps.last
    if not 1 <= steps.first <= last <= newest:
        raise RunError(f"run {run!r} has committed steps 1 to {newest}: --steps {steps.first}..{last} is not in them")
    return range(steps.first, last + 1)


def _with_threads(config: RunConfig, threads: int) -> RunConfig:
    return msgspec.structs.replace(config, trainer=msgspec.structs.replace(config.trainer, threads=threads))


def _linked(checkpoints: Path, aside: Path, *, before: int) -> Path:
    """A folder with links to the run's checkpoints of steps below ``before``."""
    for path in checkpoints.glob("step-*"):
        number = path.name.removeprefix("step-")
        if number.isdecimal() and int(number) < before:
            (aside / path.name).symlink_to(path.resolve())
    return aside


def _check_start(place: Place, config: RunConfig, first: CommittedStep, checkpoint: int, learner: Learner) -> None:
    """Raise RunError unless training begins with the weights that step ``first`` began with."""
    now = Exported.of(learner.export()).sha256
    if now != first.weights_before:
        what = f"checkpoint {checkpoint}" if checkpoint else f"the model in {config.model.path}"
        raise RunError(
            f"step {checkpoint + 1} of run {place.run!r} began with weights {first.weights_before[:12]}, and {what} "
            f"has {now[:12]}: give the model that the run started from with --model DIR"
        )


def _environment_of(step: Step) -> dict[str, str]:
    return {
        "configuration": step.config_digest[:12],
        "seed": str(step.seed),
        "threads": str(step.threads),
        "processes": str(step.world_size),
        **({"device": step.device} if step.device else {}),
        **step.libraries,
        **{f"cpu {name}": value for name, value in step.cpu.items()},
    }


def _environment_now(config: RunConfig, learner: Learner) -> dict[str, str]:
    return {
        "configuration": digest(config)[:12],
        "seed": str(config.run.seed),
        "threads": str(config.trainer.threads),
        "processes": str(learner.world_size),
        "device": device_name(),
        **library_versions(),
        **{f"cpu {name}": value for name, value in cpu_features().items()},
    }
