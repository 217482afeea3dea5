"""Losses by name: those of this package, and entry points of group ``headrace.losses``.

A loss is a function of ``Tokens`` and of keyword-only settings. A setting is taken from ``trainer.loss_args``, from the
key of [trainer] that has its name, or from its default.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

import msgspec

from schemas import ConfigError, nearest

from .tokens import Loss, TokenLoss, Tokens

GROUP = "headrace.losses"
Aggregation = Literal["token_mean", "sequence_mean", "constant"]
_BUILT_IN = {
    "cispo": "weighted:cispo",
    "dapo": "clipped:dapo",
    "dppo": "masked:dppo",
    "dr_grpo": "clipped:dr_grpo",
    "grpo": "clipped:grpo",
    "gspo": "clipped:gspo",
    "ipo": "masked:ipo",
    "reinforce": "weighted:cispo",
}
_AGGREGATION: dict[str, Aggregation] = {"dr_grpo": "constant", "gspo": "sequence_mean"}
_KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def loss_names() -> list[str]:
    """Names of all losses that are installed, sorted."""
    return sorted({*_BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def own_aggregation(name: str) -> Aggregation:
    """How the loss ``name`` adds up its tokens where ``trainer.aggregation`` does not say."""
    return _AGGREGATION.get(name, "token_mean")


def load_loss(name: str, args: Mapping[str, Any], shared: Mapping[str, Any]) -> Loss:
    """The loss ``name`` with its settings filled in. Loads torch.

    args: ``trainer.loss_args``. shared: keys of [trainer] that any loss may take by their names.
    Raises ConfigError where no package brings it, it cannot be imported, or its settings do not fit.
    """
    function = _function(_entry_point(name))
    return partial(function, **_arguments(name, function, args, shared))


def check_loss(name: str, args: Mapping[str, Any], shared: Mapping[str, Any]) -> None:
    """Raise ConfigError where ``load_loss`` would, or where the loss of a package gives no loss for three tokens.

    Loads torch where the name is not of this package, or where there are ``args`` to look at.
    """
    _entry_point(name)
    if name in _BUILT_IN and not args:
        return
    loss = load_loss(name, args, shared)
    if name not in _BUILT_IN:
        _try(name, loss)


def _entry_point(name: str) -> EntryPoint:
    points = sorted(entry_points(group=GROUP, name=name), key=lambda point: point.value)
    brought = sorted({point.value for point in points})
    if name in _BUILT_IN:
        if points:
            raise ConfigError(
                f"trainer.loss {name!r} is Headrace's own and also brought by {' and '.join(brought)}: rename theirs"
            )
        return EntryPoint(name, f"{__package__}.{_BUILT_IN[name]}", GROUP)
    if not points:
        known = loss_names()
        raise ConfigError(
            f"trainer.loss {name!r} is no loss{nearest(name, known)}: use one of {', '.join(known)}, or install the "
            f"package that brings it (entry points of group {GROUP})"
        )
    if len(brought) > 1:
        raise ConfigError(f"trainer.loss {name!r} is brought by {' and '.join(brought)}: uninstall one of the packages")
    return points[0]


def _function(point: EntryPoint) -> Callable[..., TokenLoss]:
    try:
        function = point.load()
    except Exception as error:  # whatever a foreign module does at import
        raise ConfigError(
            f"trainer.loss {point.name!r} cannot be imported from {point.value}: {type(error).__name__}: {error}: "
            "reinstall or repair its package"
        ) from error
    if not callable(function):
        raise ConfigError(f"trainer.loss {point.name!r}: {point.value} is no function: name one")
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind not in _POSITIONAL or any(p.kind != _KEYWORD_ONLY for p in parameters[1:]):
        raise ConfigError(
            f"trainer.loss {point.name!r}: {point.value} must take the tokens, then keyword-only settings, as in "
            f"def {point.name}(tokens, *, clip_high): it takes {inspect.signature(function)}"
        )
    return typing.cast(Callable[..., TokenLoss], function)


def _arguments(
    name: str, function: Callable[..., TokenLoss], args: Mapping[str, Any], shared: Mapping[str, Any]
) -> dict[str, Any]:
    """The value of each keyword. Raises ConfigError for one that is unknown, of another type, or missing."""
    taken = [p for p in inspect.signature(function).parameters.values() if p.kind == _KEYWORD_ONLY]
    known = [parameter.name for parameter in taken]
    for key in args:
        if key not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise ConfigError(
                f"trainer.loss_args.{key}: loss {name!r} has no such setting{nearest(key, known)}: {takes}"
            )
    try:
        hints = typing.get_type_hints(function)
    except NameError:  # names that only a type checker imports
        hints = {}
    found: dict[str, Any] = {}
    for parameter in taken:
        if parameter.name in args:
            value = args[parameter.name]
            try:
                found[parameter.name] = msgspec.convert(value, hints.get(parameter.name, Any))
            except msgspec.ValidationError as error:
                raise ConfigError(f"trainer.loss_args.{parameter.name} = {value!r}: {error}: correct it") from None
        elif parameter.name in shared:
            found[parameter.name] = shared[parameter.name]
        elif parameter.default is inspect.Parameter.empty:
            raise ConfigError(
                f"trainer.loss {name!r} needs the setting {parameter.name!r}: give it in trainer.loss_args"
            )
    return found


def _try(name: str, loss: Loss) -> None:
    """Raise ConfigError unless the loss of a package gives a loss and a gradient for two documents of three tokens."""
    import torch

    logprobs_N = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    old_N = torch.tensor([-1.1, -1.9, -0.5])
    documents_N, lengths_D = torch.tensor([0, 0, 1]), torch.tensor([2, 1])
    try:
        found = TokenLoss(*loss(Tokens(logprobs_N, old_N, old_N, torch.ones(3), documents_N, lengths_D)))
        shapes = [tuple(found.loss_N.shape), tuple(found.bounded_N.shape)]
        fits = shapes == [(3,), (3,)] and found.bounded_N.dtype == torch.bool
        fits = fits and found.loss_N.dtype == torch.float32 and found.loss_N.requires_grad
    except Exception as error:  # whatever a foreign function does
        raise ConfigError(
            f"trainer.loss {name!r} fails on three tokens: {type(error).__name__}: {error}: correct it"
        ) from error
    if not fits:
        raise ConfigError(
            f"trainer.loss {name!r} must answer TokenLoss(loss_N, bounded_N): float32 with a gradient, and bool, one "
            f"of each for each of the three tokens; it gave {found.loss_N.dtype} {shapes[0]}, "
            f"{found.bounded_N.dtype} {shapes[1]}: correct it"
        )
