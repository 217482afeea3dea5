"""``headrace tail``: a run's events as they come, in words or as JSON."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec

from bus import Bus, Logged
from headrace.inquiry import ask, by_time, newest, those_made
from headrace.readable import describe
from schemas import EVENT_TYPES, STREAMS, Event, StreamSpec, as_json, event_name

from . import options

HELP = {"tail": "events as they come, readable"}
LATEST = 20
"""Events that it begins with."""
KINDS = {event_name(kind): kind for kind in EVENT_TYPES}


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    options.example(
        parser,
        "headrace tail demo",
        "headrace tail demo --kind step,weights --since-start --no-follow",
        "headrace tail demo --kind rollout --json | jq .reward",
    )
    options.add_run(parser)
    parser.add_argument("--kind", type=_kinds, default=(), metavar="KIND,...", help=f"only these: {', '.join(KINDS)}")
    parser.add_argument("--since-start", action="store_true", help=f"begin with the run, not with the last {LATEST}")
    parser.add_argument("--no-follow", action="store_true", help="end after what the log has now")
    options.add_json(parser)


def _kinds(text: str) -> tuple[type[Event], ...]:
    unknown = [name for name in text.split(",") if name not in KINDS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no kind of event: use {', '.join(KINDS)}")
    return tuple(KINDS[name] for name in text.split(","))


def run(arguments: argparse.Namespace) -> int:
    tail = Tail(arguments.kind, as_json=arguments.json)

    async def question(bus: Bus, goes_on: bool) -> None:
        if not tail.began and not arguments.since_start:
            await tail.begin_with_latest(bus)
        else:
            await tail.catch_up(bus)
        if goes_on and not arguments.no_follow:
            await tail.follow(bus)

    ask(options.place_of(arguments), question, patient=True)
    return 0


class Tail:
    """Prints each event once: it goes on where it was when the server has changed."""

    def __init__(self, kinds: Sequence[type[Event]], *, as_json: bool) -> None:
        """``kinds``: empty for all."""
        self._kinds = tuple(kinds)
        self._as_json = as_json
        self._streams = [spec for spec in STREAMS if not kinds or set(kinds) & set(spec.events)]
        self._next: dict[str, int] = {spec.kind: 1 for spec in self._streams}
        self.began = False

    async def begin_with_latest(self, bus: Bus) -> None:
        """Print the last few events of all streams together; what was before them is passed over."""
        found = []
        for spec in await those_made(bus, self._streams):
            ours = await newest(bus, spec, LATEST, self._kinds_of(spec))
            self._next[spec.kind] = ours[-1].sequence + 1 if ours else 1
            found += [(logged.time, logged.sequence, logged) for logged in ours]
        for _, _, logged in sorted(found, key=lambda each: each[:2])[-LATEST:]:
            self._print(logged)
        self.began = True

    async def catch_up(self, bus: Bus) -> None:
        """Print all that the log has now, in the order of time."""
        self.began = True
        async for logged in by_time(
            [self._read(bus, spec, follow=False) for spec in await those_made(bus, self._streams)]
        ):
            self._print(logged)

    async def follow(self, bus: Bus) -> None:
        """Print what comes, for ever."""

        async def one(spec: StreamSpec) -> None:
            async for logged in self._read(bus, spec, follow=True):
                self._print(logged)

        following = [asyncio.create_task(one(spec)) for spec in await those_made(bus, self._streams)]
        try:
            await asyncio.gather(*following)
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)

    def _kinds_of(self, spec: StreamSpec) -> tuple[type[Event], ...]:
        return tuple(kind for kind in self._kinds if kind in spec.events)

    async def _read(self, bus: Bus, spec: StreamSpec, *, follow: bool) -> AsyncIterator[Logged]:
        kinds, start = self._kinds_of(spec), self._next[spec.kind]
        async for logged in bus.read(spec, kinds=kinds, start=start, follow=follow):
            yield logged
            # After it was printed: what was read and not printed is read again.
            self._next[spec.kind] = logged.sequence + 1

    def _print(self, logged: Logged) -> None:
        print(_json_line(logged) if self._as_json else describe(logged), flush=True)


def _json_line(logged: Logged) -> str:
    if logged.event is None:
        invalid = {"invalid": logged.invalid, "subject": logged.subject, "headers": logged.headers}
        return msgspec.json.encode(invalid).decode()
    return as_json(logged.event, logged.headers).decode()
