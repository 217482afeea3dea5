"""Reading a stream in order, in batches of direct gets: no consumer is made, and no delivery taken from anyone.

A follower is woken by the server's headers-only echo of each stored message (``republish``), so it is idle in
between and sees no message before it is stored. Echoes may be missed; the reader looks by itself now and then, and
often where the stream has none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from schemas import Event, LogGap, StreamSpec, subject_filter

from .patience import Patience
from .permissions import stored_subject
from .received import Received
from .stream import ANYTHING, Logged, StreamState, current_state, epoch_s, event_in, from_leader
from .wire import Wire

log = logging.getLogger("headrace.bus")

BATCH_MESSAGES = 1000
BATCH_BYTES = 16 * 1024 * 1024
"""The server sends a batch without waiting, and drops a client that is more than 64 MB behind."""
QUIET_S = 5.0
LOOK_EVERY_S = 5.0
"""A follower that hears nothing looks at the stream so often."""
LOOK_OFTEN_S = 0.1
"""The same where the stream has no echo."""
_OF_THE_GET = {
    "Nats-Stream",
    "Nats-Subject",
    "Nats-Sequence",
    "Nats-Time-Stamp",
    "Nats-Num-Pending",
    "Nats-Last-Sequence",
}


class _Batch(msgspec.Struct):
    """Messages without a hole between them, and how they end."""

    messages: list[Received]
    at_end: bool = False
    """There was nothing after them."""
    trouble: str = ""
    """Why it may be shorter than it should be."""


class LogReader:
    """A position in a stream that only moves forward."""

    def __init__(self, wire: Wire, run: str, spec: StreamSpec, kinds: Sequence[type[Event]], start: int) -> None:
        self._wire = wire
        self._stream = spec.name(run)
        self._echoed = spec.echoed
        self._wanted = tuple(kinds)
        # The server filters by one subject; several kinds are sorted out here.
        self._filter = subject_filter(run, kinds[0]) if len(kinds) == 1 else ANYTHING
        self._next = max(1, start)

    async def messages(self, *, follow: bool) -> AsyncIterator[Logged]:
        if not follow:
            tail = (await self._state()).last_sequence
            async for logged in self._up_to(tail):
                yield logged
            return
        async with _News(self._wire, stored_subject(self._stream, self._filter) if self._echoed else None) as news:
            while True:
                async for logged in self._up_to(None):
                    yield logged
                await self._await_news(news)

    async def _up_to(self, tail: int | None) -> AsyncIterator[Logged]:
        """All messages from here to ``tail``; without one, until nothing more is there."""
        patience = Patience(f"reading {self._stream} from {self._next}")
        while tail is None or self._next <= tail:
            batch = await self._batch()
            for message in batch.messages:
                sequence = int(message.headers["Nats-Sequence"])
                if tail is not None and sequence > tail:
                    return
                await self._check_gap(sequence)
                self._next = sequence + 1
                if wanted := self._logged(message, sequence):
                    yield wanted
            if batch.messages:
                patience = Patience(f"reading {self._stream} from {self._next}")
                if tail is None and batch.at_end:
                    return
            if batch.at_end and await self._nothing_left(tail):
                return
            if batch.trouble:
                await self._state()  # Raises where the stream is gone: nobody would ever answer.
            if batch.trouble or batch.at_end:
                await patience.pause(batch.trouble or "a replica lags behind the stream's leader")

    async def _batch(self) -> _Batch:
        body: dict[str, Any] = {"seq": self._next, "batch": BATCH_MESSAGES, "max_bytes": BATCH_BYTES}
        if self._filter != ANYTHING:
            body["next_by_subj"] = self._filter
        answer = await self._wire.collect(
            f"$JS.API.DIRECT.GET.{self._stream}", body, most=BATCH_MESSAGES + 1, quiet_s=QUIET_S
        )
        batch, before = _Batch(messages=[]), 0
        for message in answer.messages:
            headers = message.headers
            if int(headers.get("Nats-Last-Sequence", before)) != before:
                batch.trouble = "messages were lost on the way"
                return batch
            before = int(headers["Nats-Sequence"])
            batch.messages.append(message)
        if answer.status == "204":
            batch.at_end = answer.pending == 0
        elif answer.status == "404":
            batch.at_end = True
        else:
            batch.trouble = answer.lost or f"{answer.status} {answer.description or 'nobody answers'}"
        return batch

    async def _nothing_left(self, tail: int | None) -> bool:
        """Whether the leader, too, has nothing from here on (or up to ``tail``)."""
        message = await from_leader(self._wire, self._stream, {"seq": self._next, "next_by_subj": self._filter})
        if message is not None and (tail is None or message.sequence <= tail):
            return False
        if tail is not None:
            await self._check_gap(tail + 1)
        return True

    async def _check_gap(self, sequence: int) -> None:
        """Raise LogGap if messages before ``sequence`` are missing although they were not purged."""
        if sequence == self._next or self._filter != ANYTHING:
            return
        state = await self._state()
        if sequence > max(state.first_sequence, self._next):
            missing = f"{max(self._next, state.first_sequence)} to {sequence - 1}"
            raise LogGap(
                f"{self._stream} has no messages {missing}, and no purge explains it (it begins at "
                f"{state.first_sequence}): restore the stream from a backup, or start a new run"
            )

    def _logged(self, message: Received, sequence: int) -> Logged | None:
        headers = message.headers
        event, invalid = event_in(message.data, headers["Nats-Subject"])
        if self._wanted and not isinstance(event, self._wanted):
            if invalid:
                log.warning("message %d of %s is passed over: %s", sequence, self._stream, invalid)
            return None
        return Logged(
            sequence=sequence,
            time=epoch_s(headers["Nats-Time-Stamp"]),
            subject=headers["Nats-Subject"],
            headers={name: value for name, value in headers.items() if name not in _OF_THE_GET},
            payload=message.data,
            event=event,
            invalid=invalid,
        )

    async def _await_news(self, news: _News) -> None:
        """Return when there may be more to read. Raises LogGap where the stream is shorter than what was read."""
        while not await news.heard(self._next, LOOK_EVERY_S if self._echoed else LOOK_OFTEN_S):
            state = await self._state()
            if state.last_sequence < self._next - 1:
                raise LogGap(
                    f"{self._stream} ends at {state.last_sequence}, and {self._next - 1} was read before: "
                    "it was made anew or restored from an older copy; start again from its beginning"
                )
            if state.last_sequence >= self._next:
                return

    async def _state(self) -> StreamState:
        return await current_state(self._wire, self._stream)


class _News:
    """Hears the sequences of messages as they are stored, and that a lost connection is back."""

    def __init__(self, wire: Wire, subject: str | None) -> None:
        """``subject``: of the echo; None where the stream has none."""
        self._wire = wire
        self._subject = subject
        self._newest = 0
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._subscription = None if self._subject is None else await self._wire.subscribe(self._subject, self._take)
        self._forget = self._wire.on_return(self._changed.set)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._forget()
        if self._subscription is not None:
            await self._wire.unsubscribe(self._subscription)

    def _take(self, message: Received) -> None:
        self._newest = max(self._newest, int(message.headers.get("Nats-Sequence", 0)))
        self._changed.set()

    async def heard(self, sequence: int, timeout_s: float) -> bool:
        """Whether a message from ``sequence`` on was stored, or the connection came back, within ``timeout_s``."""
        if self._newest >= sequence:
            # Each message is news once: a purge may have taken it before it was read.
            self._newest = 0
            return True
        self._changed.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True
