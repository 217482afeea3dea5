"""The inference engine that ``generator.engine`` names: ``vllm``, or ``module:Class`` of another one."""

from __future__ import annotations

import importlib
import importlib.util
import secrets
from importlib.machinery import PathFinder
from pathlib import Path

from producers import Engine
from schemas import ConfigError

from .config import RunConfig

VLLM = "producers.generator.vllm_engine:VllmEngine"


def check_engine(name: str) -> None:
    """Raise ConfigError where there is no engine ``name``.

    Its package is only looked for: loading one takes seconds, and is for the generator to do.
    """
    package = "vllm" if name == "vllm" else _parts(name)[0].partition(".")[0]
    # Roles are started with `python -m`, which looks into the working directory too.
    if importlib.util.find_spec(package) is None and PathFinder.find_spec(package, [str(Path.cwd())]) is None:
        raise _unusable(name, f"there is no package {package!r}")


def build_engine(config: RunConfig) -> Engine:
    """A new engine for a generator. Raises ConfigError where there is none of that name."""
    name = config.generator.engine
    module, attribute = _parts(VLLM if name == "vllm" else name)
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise _unusable(name, str(error)) from error
    if not isinstance(kind, type):
        raise _unusable(name, "it is not a class")
    # Generators must not sample alike, nor one that was started again repeat itself. What was sampled is in the log.
    seed = secrets.randbits(31)
    engine: Engine = kind(Path(config.model.path), config.generator, config.policy, config.weights.dtype, seed)
    return engine


def _parts(name: str) -> tuple[str, str]:
    """Module and class."""
    module, _, attribute = name.partition(":")
    if not (attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise _unusable(name, "it is no module:Class")
    return module, attribute


def _unusable(name: str, why: str) -> ConfigError:
    return ConfigError(f"generator.engine {name!r} cannot be loaded ({why}): use vllm, or module:Class of an engine")
