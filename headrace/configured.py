"""The configuration that a run was made with: in its folder, or in NATS, where its trainer has put it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bus import Bus, Denied, open_run_files
from schemas import RunError, StreamMismatch

from .config import FILE_NAME, RunConfig, received, stored
from .folder import RunFolder
from .inquiry import Place, ask


async def configuration_of(bus: Bus, place: Place) -> RunConfig | None:
    """From NATS where a server was named and has it, else from the run's folder; None where neither has it.

    Raises ConfigError or RunError where it is one that this version cannot use.
    """
    if (payload := await _in_nats(bus, place)) is not None:
        return received(payload, f"run {bus.run!r}", ())
    return config_of(place.folder)


def config_of(folder: RunFolder) -> RunConfig | None:
    """The configuration in a run's folder; None where it has none. Raises as ``configuration_of``."""
    return stored(folder.path) if folder.exists else None


@contextmanager
def configuration_file(place: Place, given: Path | None) -> Iterator[Path]:
    """A file with the configuration, for the length of the block: ``given``, or as ``configuration_of`` finds it.

    Raises RunError where there is none.
    """
    if given is not None:
        if not given.is_file():
            raise RunError(f"there is no configuration {given}: give the file that the run was made with")
        yield given
        return
    payload = None if place.url is None else ask(place, lambda bus, goes_on: _in_nats(bus, place))
    if payload is None:
        if not place.folder.exists:
            raise no_configuration(place)
        yield place.folder.path / FILE_NAME
        return
    with tempfile.TemporaryDirectory(prefix="headrace-") as aside:
        file = Path(aside) / FILE_NAME
        file.write_bytes(payload)
        yield file


def no_configuration(place: Place) -> RunError:
    """What is to be said where a run's configuration is nowhere."""
    return RunError(
        f"neither NATS nor {place.folder.path} has the {FILE_NAME} of run {place.run!r}, and this needs the "
        "configuration that the run was made with: put the run's folder there, or name the folder above it with "
        "--dir; a replay takes the file with --config FILE as well"
    )


async def _in_nats(bus: Bus, place: Place) -> bytes | None:
    """Where weights travel through NATS the trainer has put it there; None where they do not, or we may not see it."""
    if place.url is None:
        return None
    try:
        return await open_run_files(bus).config_now()
    except (StreamMismatch, Denied):
        return None
