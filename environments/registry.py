"""Environments by name: entry points of group ``headrace.environments``, so that any package can bring one."""

from __future__ import annotations

import inspect
import typing
from importlib.metadata import EntryPoint, entry_points

import msgspec

from schemas import EnvironmentFault, EnvironmentSettings, nearest

from .environment import Environment

GROUP = "headrace.environments"
_VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD


def environment_kinds() -> list[str]:
    """Names of all installed environments, sorted."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def load_environment(settings: EnvironmentSettings, *, seed: int) -> Environment:
    """The environment that ``settings`` describe.

    Raises EnvironmentFault where no package brings it, it cannot be imported, or its arguments do not fit.
    """
    kind = settings.kind or settings.name
    cls = _environment_class(_entry_point(kind))
    _check_arguments(cls, settings)
    try:
        return cls(seed=seed, **settings.args)
    except EnvironmentFault:
        raise
    except Exception as error:
        raise EnvironmentFault(
            f"environment {settings.name!r} cannot be built: {type(error).__name__}: {error}: check its args"
        ) from error


def _entry_point(kind: str) -> EntryPoint:
    points = sorted(entry_points(group=GROUP, name=kind), key=lambda point: point.value)
    if not points:
        known = environment_kinds()
        raise EnvironmentFault(
            f"no environment {kind!r} is installed{nearest(kind, known)}: set environments.kind to one of "
            f"{', '.join(known) or '(none found: install headrace itself)'}, or install the package that brings it"
        )
    if len({point.value for point in points}) > 1:
        raise EnvironmentFault(
            f"environment {kind!r} is brought by {' and '.join(point.value for point in points)}: "
            "uninstall one of the packages"
        )
    return points[0]


def _environment_class(point: EntryPoint) -> type[Environment]:
    try:
        cls = point.load()
    except Exception as error:  # whatever a foreign module does at import
        raise EnvironmentFault(
            f"environment {point.name!r} cannot be imported from {point.value}: {type(error).__name__}: {error}: "
            "reinstall or repair its package"
        ) from error
    if not (isinstance(cls, type) and issubclass(cls, Environment)):
        raise EnvironmentFault(f"{point.value} is not an environments.Environment: derive the class from it")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise EnvironmentFault(f"{point.value} does not define {missing}: define what Environment asks for")
    return cls


def _annotations(cls: type[Environment], where: str) -> dict[str, typing.Any]:
    """Parameter to its type."""
    try:
        return typing.get_type_hints(cls.__init__, include_extras=True)
    except Exception as error:  # a name that is imported for type checkers alone, for example
        raise EnvironmentFault(
            f"{where}: the annotations of {cls.__name__}.__init__ cannot be read ({type(error).__name__}: {error}): "
            "import what they name when the module runs, not only under TYPE_CHECKING"
        ) from None


def _check_arguments(cls: type[Environment], settings: EnvironmentSettings) -> None:
    """Raise EnvironmentFault for the first argument that ``cls`` does not take, of another type, or missing."""
    where = f"environment {settings.name!r}"
    parameters = inspect.signature(cls).parameters
    known = [name for name in parameters if name != "seed" and parameters[name].kind is not _VAR_KEYWORD]
    takes_any = any(parameter.kind is _VAR_KEYWORD for parameter in parameters.values())
    hints = _annotations(cls, where)
    for name, value in settings.args.items():
        if name == "seed":
            raise EnvironmentFault(f"{where}: args.seed cannot be set: it comes from run.seed")
        if name not in known and not takes_any:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise EnvironmentFault(f"{where} has no argument {name!r}{nearest(name, known)}: {takes}")
        try:
            msgspec.convert(value, hints.get(name, typing.Any))
        except msgspec.ValidationError as error:
            raise EnvironmentFault(f"{where}: args.{name} = {value!r}: {error}: correct it") from None
        except TypeError as error:  # of an annotation that msgspec cannot check against
            raise EnvironmentFault(
                f"{where}: its parameter {name} is annotated in a way that no value can be checked against ({error}): "
                "annotate it with what TOML has: text, numbers, lists and tables"
            ) from None
    for name in known:
        if name not in settings.args and parameters[name].default is inspect.Parameter.empty:
            raise EnvironmentFault(f"{where} needs the argument {name!r}: set it in environments.args")
