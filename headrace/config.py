"""The run configuration: one TOML file, ``--set KEY=VALUE`` on top of it, checked once when it is loaded.

Everything wrong with a configuration is a ConfigError of one line, with the remedy, before anything starts.
A component gets its own table, never the whole.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import os
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bus.settings import LogSettings, WeightsSettings
from consumers.sinks.settings import ArchiveSettings, MetricsSettings
from consumers.trainer.settings import TrainerSettings
from headrace.keys import check_keys, override, what_is_wrong
from headrace.settings import SupervisorSettings
from producers.generator.settings import GeneratorSettings
from schemas import MAX_ROLLOUT_TOKENS, ConfigError, RunError
from schemas.settings import (
    EnvironmentSettings,
    EvaluationSettings,
    ModelSettings,
    PolicySettings,
    RunSettings,
    Settings,
    only_environment_names,
)

FILE_NAME = "config.json"
"""The resolved configuration in a run's folder."""
OWN = "generator."
"""Keys that a generator may set for itself, whatever the run's configuration says."""
MAX_INTEGER = 2**63 - 1
"""What other readers of the stored configuration can hold."""
GIB = 1024**3
MAX_SEED = 2**32 - 1
"""NumPy, which the inference engine seeds as well, takes no greater seed and no negative one."""


class RunConfig(Settings, frozen=True, kw_only=True):
    """All tables of a run. ``[run]``, ``[model]`` and ``[[environments]]`` must be given; the rest has defaults."""

    run: RunSettings
    model: ModelSettings
    environments: list[EnvironmentSettings]
    policy: PolicySettings = PolicySettings()
    generator: GeneratorSettings = GeneratorSettings()
    trainer: TrainerSettings = TrainerSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    weights: WeightsSettings = WeightsSettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()
    archive: ArchiveSettings = ArchiveSettings()
    supervisor: SupervisorSettings = SupervisorSettings()

    def __post_init__(self) -> None:
        only_environment_names(self.environments)
        for impossible, message in self._combinations():
            if impossible:
                raise ConfigError(message)

    def _combinations(self) -> Iterator[tuple[bool, str]]:
        """What no single table can check: whether it is impossible, and what to say then."""
        run, generator, trainer = self.run, self.generator, self.trainer
        yield (
            not 0 <= run.seed <= MAX_SEED,
            f"run.seed {run.seed} is out of range: use 0 to {MAX_SEED}",
        )
        yield (
            self.archive.enabled and self.log.keep == "checkpoints",
            'archive.enabled needs log.keep = "all": with "checkpoints" rollouts may go before they are archived',
        )
        yield (
            generator.max_model_len > MAX_ROLLOUT_TOKENS,
            f"generator.max_model_len {generator.max_model_len} does not fit into one message: "
            f"use at most {MAX_ROLLOUT_TOKENS}",
        )
        yield (
            trainer.row_tokens < generator.max_model_len and trainer.too_long == "drop",
            f"trainer.row_tokens {trainer.row_tokens} is below generator.max_model_len {generator.max_model_len}: "
            "the longest rollout must fit into a row, so raise the first or lower the second, or cut what is longer "
            'with trainer.too_long = "cut"',
        )
        yield (
            generator.concurrency < trainer.group_size,
            f"generator.concurrency {generator.concurrency} is below trainer.group_size {trainer.group_size}: "
            "a generator plays a group's members at once, so raise the first or lower the second",
        )
        yield self._log_limit()
        names = {environment.name for environment in self.environments}
        unknown = sorted(set(self.evaluation.environments) - names)
        yield (
            bool(unknown),
            f"evaluation.environments names {', '.join(unknown)}: the run has {', '.join(sorted(names))}",
        )

    def _log_limit(self) -> tuple[bool, str]:
        """ROLLOUTS must hold what can be open at once: nothing that is open is ever purged."""
        bound, groups, size = (
            self.policy.max_off_policy_steps, self.trainer.groups_per_step, self.trainer.group_size
        )  # fmt: skip
        rollouts, largest = (bound + 1) * groups * size, largest_rollout_bytes(self.generator.max_model_len)
        needed_gib = rollouts * largest / GIB
        return (
            needed_gib > self.log.max_gib,
            f"log.max_gib {self.log.max_gib:g} is too small: {rollouts} rollouts can be open at once "
            f"((policy.max_off_policy_steps {bound} + 1) * trainer.groups_per_step {groups} * trainer.group_size "
            f"{size}), each of up to {largest} bytes (generator.max_model_len {self.generator.max_model_len}): set it "
            f"to {math.ceil(100 * needed_gib) / 100:g} at least, or lower one of them",
        )


def largest_rollout_bytes(tokens: int) -> int:
    """Most that one rollout of ``tokens`` takes in its stream: 8.1 bytes a token and 1 KiB, and 1 KiB of headers."""
    return math.ceil(8.1 * tokens) + 2048


def load(path: Path | str, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration in the file ``path``, with each ``KEY=VALUE`` of ``overrides`` set on top.

    The file is TOML, or the JSON of a run's folder where its name ends so.
    Keys are dotted (``trainer.lr``, ``environments.0.args.length``); values are TOML, or text where they are not.
    Raises ConfigError with one line that names the file or ``--set``, the key, and the remedy.
    """
    path = Path(path)
    data = _read_json(path) if path.suffix == ".json" else _read_toml(path)
    overridden = [override(RunConfig, data, text) for text in overrides]
    return _build(data, source=str(path), overridden=overridden)


def store(config: RunConfig, folder: Path) -> Path:
    """Write the resolved configuration into a run's folder, so that the run can go on and be trained again.

    Written aside and renamed: a full disk or a kill leaves the one that was there.
    """
    path = folder / FILE_NAME
    aside = path.with_name(f".{FILE_NAME}.{os.getpid()}")
    try:
        aside.write_bytes(encoded(config))
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return path


def encoded(config: RunConfig) -> bytes:
    """The resolved configuration as it is stored: JSON, the same bytes for the same configuration."""
    return msgspec.json.format(msgspec.json.encode(config), indent=2) + b"\n"


def received(payload: bytes, source: str, overrides: Sequence[str]) -> RunConfig:
    """A run's configuration that came from ``source``, checked as any other, with ``overrides`` set on top.

    They may set keys of [generator] alone, and none that decides what is trained: those are the run's.
    Raises ConfigError, or RunError where it is damaged.
    """
    for text in overrides:
        key = text.partition("=")[0].strip()
        if not key.startswith(OWN) or key in DECISIVE:
            raise ConfigError(
                f"--set {key}: the configuration is that of {source}, and only keys of [generator] that do not decide "
                "what is trained can be set here: leave it out"
            )
    data = _parsed(payload, source)
    return _build(data, source=source, overridden=[override(RunConfig, data, text) for text in overrides])


def stored(folder: Path) -> RunConfig:
    """The configuration that ``store`` wrote.

    Raises RunError where there is none, and ConfigError where this version cannot use it.
    """
    path = folder / FILE_NAME
    return _build(_read_json(path), source=str(path), overridden=())


def digest(config: RunConfig) -> str:
    """sha256, in hexadecimal, of the part that decides what is trained; see ``DECISIVE``.

    The model's weights and the environment's make-up (threads, libraries, processes) are recorded beside it.
    """
    decisive = {key: value for key, value in _decisive(config).items() if LATER.get(key, _UNSET) != value}
    canonical = json.dumps(decisive, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def differences(old: RunConfig, new: RunConfig) -> list[str]:
    """What must stay and is not the same, as lines ``trainer.lr: 0.0005 -> 0.001``."""
    before, after = _staying(old), _staying(new)
    return [
        f"{key}: {json.dumps(before.get(key))} -> {json.dumps(after.get(key))}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


DECISIVE = ("run.seed", "policy", "environments", "generator.max_model_len", "generator.prefix_on_swap", "trainer",
            "weights.dtype", "evaluation.held_out", "evaluation.environments")  # fmt: skip
"""Keys, or tables, that decide what is trained. A new key of such a table counts until it is named below."""
INDIFFERENT = ("trainer.instance", "trainer.threads", "trainer.checkpoint_every", "trainer.keep_checkpoints",
               "trainer.max_logprob_gap", "trainer.activation_checkpointing", "trainer.data_parallel",
               "trainer.tensor_parallel", "trainer.context_parallel")  # fmt: skip
"""Keys of those tables that do not. Threads and processes do decide bits: each step records the real ones."""
LATER: dict[str, Any] = {
    "trainer.aggregation": None, "trainer.compile": False, "trainer.divergence_bound": 0.2, "trainer.kl_coef": 0.0,
    "trainer.length_constant": None, "trainer.loss_args": {}, "trainer.lr_decay": "constant", "trainer.tis_cap": None,
    "trainer.too_long": "drop", "trainer.truncated": "train",
}  # fmt: skip
"""Keys that came when there were runs already, and what was so before them: with that value they leave the digest, and
those runs go on and are trained again as the same."""
_UNSET = object()


PLACES = ("weights.store",)
"""Keys that decide nothing of what is trained, and must stay all the same: what the run has made lies there."""


def _staying(config: RunConfig) -> dict[str, Any]:
    places = {key: value for key, value in _flat(msgspec.to_builtins(config)) if key in PLACES}
    return _decisive(config) | places


def _decisive(config: RunConfig) -> dict[str, Any]:
    decays = config.trainer.lr_decay != "constant"  # Only then does a learning rate depend on the run's length.
    return ({"trainer.lr_decay to run.steps": config.run.steps} if decays else {}) | {
        key: value
        for key, value in _flat(msgspec.to_builtins(config))
        if key.startswith(tuple(f"{prefix}." for prefix in DECISIVE)) or key in DECISIVE
        if key not in INDIFFERENT
        if config.evaluation.every_steps or not key.startswith("evaluation.")  # Off, it holds nothing out.
    }


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves by dotted key; empty tables and lists are leaves too."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    leaf = True
    for key, item in items:
        leaf = False
        yield from _flat(item, f"{prefix}.{key}" if prefix else str(key))
    if leaf:
        yield prefix, value


def _build(data: dict[str, Any], *, source: str, overridden: Sequence[str]) -> RunConfig:
    try:
        check_keys(RunConfig, data)
        for key, value in _flat(data):
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(f"{key} is {value}: use a finite number")
            if isinstance(value, int) and abs(value) > MAX_INTEGER:
                raise ConfigError(f"{key} is {value}: use a number of at most {MAX_INTEGER}")
        return msgspec.convert(data, RunConfig)
    except msgspec.ValidationError as error:
        message = what_is_wrong(RunConfig, data, str(error))
    except ConfigError as error:
        message = str(error)
    raise ConfigError(f"{_at_fault(message, source, overridden)}: {message}")


def _at_fault(message: str, source: str, overridden: Sequence[str]) -> str:
    """What was given on the command line is wrong there, not in the file. A message begins with its key."""
    wrong = f"{message.split(' ', 1)[0].rstrip(':')}."
    return "--set" if any(wrong.startswith(f"{key}.") or f"{key}.".startswith(wrong) for key in overridden) else source


def _read_json(path: Path) -> dict[str, Any]:
    try:
        payload = path.read_bytes()
    except FileNotFoundError:
        raise RunError(f"{path.parent} holds no run: there is no {path.name} in it; see headrace runs") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; name a TOML file, see configs/") from None
    return _parsed(payload, str(path))


def _parsed(payload: bytes, source: str) -> dict[str, Any]:
    try:
        data = json.loads(payload)
        if not isinstance(data, dict):
            raise ValueError("it is no JSON object")
    except ValueError as error:
        raise RunError(f"{source} is damaged ({error}): take the configuration that the run began with") from None
    return data


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration {path}: {_near_files(path)}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; name a TOML file, see configs/") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}; correct that line") from None


def _near_files(path: Path) -> str:
    """A remedy that names the files which could have been meant."""
    found = sorted({*path.parent.glob("*.toml"), *Path("configs").glob("*.toml")})
    by_stem = {file.stem: file for file in reversed(found)}
    near = [by_stem[stem] for stem in difflib.get_close_matches(path.stem, by_stem, n=1)]
    if near:
        return f"did you mean {near[0]}?"
    if found:
        return f"there are {', '.join(str(file) for file in found[:8])}"
    return "give the path of a TOML file, for example one of the repository's configs/"
