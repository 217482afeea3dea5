"""Settings that more than one role reads. Each is a table of the run configuration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec

from .errors import ConfigError
from .events import Natural, Positive
from .subjects import check_name


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all tables: frozen, keyword-only, unknown keys refused."""


class RunSettings(Settings, frozen=True, kw_only=True):
    """``[run]``: what is done, and how long."""

    name: str
    """Name of the run: part of its subjects, streams and folder."""
    steps: Positive
    """Optimizer steps until the run is finished."""
    seed: int = 0
    """Seed of the tasks. Sampling is not seeded: what was sampled is in the log."""

    def __post_init__(self) -> None:
        check_name(self.name, "run.name")


class ModelSettings(Settings, frozen=True, kw_only=True):
    """``[model]``: what the run starts from."""

    path: str
    """Hugging Face directory with config.json, tokenizer and safetensors; relative to the working directory."""
    make: Literal["", "tiny", "smollm2-135m"] = ""
    """Makes the directory when it is missing: the demo's tiny model, or one that a package ships."""


class PolicySettings(Settings, frozen=True, kw_only=True):
    """``[policy]``: how the policy samples and how old its tokens may be."""

    max_off_policy_steps: Natural = 2
    """Greatest lag of a trained token: steps between the weights that sampled it and those it updates."""
    stale: Literal["drop", "mask"] = "drop"
    """What happens to a rollout with tokens that are too old: left out whole, or only those tokens."""
    temperature: Annotated[float, msgspec.Meta(ge=0.01, le=2)] = 1.0
    """Sampling temperature. Truncated sampling (top-p, top-k, min-p) does not exist here: importance ratios
    would be wrong under it."""


class EnvironmentSettings(Settings, frozen=True, kw_only=True):
    """``[[environments]]``: one environment of the run."""

    name: str
    """Name in subjects and metrics."""
    kind: str = ""
    """Entry point of group ``headrace.environments``; the name where empty."""
    weight: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """Share of the tasks, relative to the other environments."""
    args: dict[str, Any] = {}
    """Keyword arguments of the environment."""

    def __post_init__(self) -> None:
        check_name(self.name, "environments.name")


class EvaluationSettings(Settings, frozen=True, kw_only=True):
    """``[evaluation]``: how well versions of the weights do on held-out tasks, which are never trained."""

    every_steps: Natural = 0
    """Version 0, each so many steps' version and the run's last are evaluated, and stay in the weights store; 0
    evaluates nothing and holds nothing out."""
    tasks: Positive = 100
    """Held-out tasks of each environment: the same at every version, no two with the same prompt."""
    samples: Positive = 1
    """Plays of each task; pass@k is told for k up to it."""
    pass_reward: float = 1.0
    """A play with at least this reward passes, for pass@k."""
    temperature: Annotated[float, msgspec.Meta(ge=0.01, le=2)] = 1.0
    """Sampling temperature of these plays."""
    held_out: Annotated[float, msgspec.Meta(ge=0.01, le=0.9)] = 0.1
    """Share of an evaluated environment's prompts that is never trained, chosen by their sha256."""
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Seed of the evaluation's tasks. Change it, or the tasks, with a new run only: versions compare on the same."""
    environments: list[str] = []
    """Names of those that are evaluated; all where empty."""
    generator: str = "0"
    """Id of the generator that plays them: it swaps no weights meanwhile, and goes on with the run's groups."""
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5
    """Share of generator.concurrency that they take; the run's groups have the rest."""

    def __post_init__(self) -> None:
        check_name(self.generator, "evaluation.generator")

    def due(self, version: int, *, last: int) -> bool:
        """Whether ``version`` is evaluated in a run of ``last`` steps."""
        return self.every_steps > 0 and (version % self.every_steps == 0 or version == last)

    def evaluated(self, names: Iterable[str]) -> list[str]:
        """Those of the run's environments ``names`` that are evaluated, in their order; none while it is off."""
        return [name for name in names if self.every_steps and (not self.environments or name in self.environments)]


def only_environment_names(environments: list[EnvironmentSettings]) -> list[str]:
    """Their names. Raises ConfigError where none is given or two are the same."""
    names = [environment.name for environment in environments]
    if not names:
        raise ConfigError('no [[environments]] table: add one with a name, for example name = "reverse"')
    doubled = {name for name in names if names.count(name) > 1}
    if doubled:
        raise ConfigError(f"environments.name {sorted(doubled)[0]!r} is used twice: give each its own name")
    return names
