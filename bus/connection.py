"""A role's connection to a run: publish, announce, read, pull."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from schemas import Event, PublishFailed, StreamSpec, check_name, encode, headers_of, subject_filter, subject_of

from . import gaps, topology
from .address import Address
from .answers import Unanswered
from .consumer import Consumer
from .fitness import require_fit_server
from .log import LogReader
from .patience import OutOfPatience, Patience
from .permissions import BusRole
from .publication import STREAM_FULL, Publication, Published, StreamFull, why
from .settings import LogSettings, WeightsSettings
from .stream import ANYTHING, Logged, StreamState, current_state, from_leader, purge
from .wire import Wire

HOLDUP_S = 2.0
"""What waits to be published for longer is worth telling."""
MOST_PENDING_BYTES = 1024 * 1024
"""Announcements are dropped while so much waits to be sent."""


async def connect(address: Address, *, run: str, role: BusRole, id: str, timeout_s: float = 10.0) -> Bus:
    """A connection of instance ``id`` of ``role`` to ``run``. It comes back by itself, for ever, until closed.

    Raises ServerUnreachable where no server answers within ``timeout_s`` or it refuses us, ServerUnfit where it
    cannot carry a run: no JetStream, or too old.
    """
    check_name(run, "run.name")
    check_name(id, f"the id of the {role}")
    wire = Wire(address, role)
    await wire.open(f"{run}/{role}/{id}", timeout_s=timeout_s)
    try:
        await require_fit_server(wire, timeout_s=timeout_s)
    except BaseException:
        await wire.close()
        raise
    return Bus(wire, run=run, role=role, id=id)


class Bus:
    """What a role does with a run's streams. Use it in the event loop in which it was connected."""

    def __init__(self, wire: Wire, *, run: str, role: BusRole, id: str) -> None:
        self.wire = wire
        self.run = run
        self.role = role
        self.id = id
        self._publishing: set[Patience] = set()

    @property
    def connected(self) -> bool:
        return self.wire.connected

    async def answers(self, timeout_s: float) -> bool:
        """Whether the server answers within ``timeout_s``. Raises ServerUnreachable where it never will."""
        return await self.wire.answers(timeout_s)

    @property
    def source(self) -> str:
        """``<role>/<id>``: who published, in every header."""
        return f"{self.role}/{self.id}"

    async def publish(
        self,
        event: Event,
        *,
        expected_last_sequence: int | None = None,
        deadline_s: float | None = None,
        wait_for_room: bool = True,
    ) -> Published:
        """Store ``event`` in its stream, and return when the server has it.

        A lost connection, a server that starts again, or a full stream are waited out: for ever, with a log line
        each 10 s, or for ``deadline_s``. Each attempt has the same message id, so the event is stored once
        (within the stream's duplicate window).
        With ``expected_last_sequence`` it is stored only as the message after that one; WrongSequence otherwise,
        which after a lost acknowledgement may be our own message: look at the log.
        Raises PublishFailed where trying again cannot help: no permission, no stream, too large, deadline passed; and
        StreamFull, unless ``wait_for_room``, where the stream is full.
        """
        assert event.run == self.run, f"an event of run {event.run} on the bus of run {self.run}"
        publication = Publication(self.wire, event, source=self.source)
        with self.publishing(publication.what, deadline_s=deadline_s) as patience:
            while True:
                try:
                    answer = await publication.send(
                        expected_last=expected_last_sequence, timeout_s=patience.remaining_s(publication.timeout_s)
                    )
                except Unanswered as error:
                    await patience.pause(str(error))
                    continue
                if isinstance(answer, Published):
                    patience.rewarded()
                    return answer
                if answer.err_code == STREAM_FULL and not wait_for_room:
                    raise StreamFull(f"{publication.what}: {why(answer, publication.spec)}")
                await patience.pause(why(answer, publication.spec))

    @contextmanager
    def publishing(self, what: str, *, deadline_s: float | None = None) -> Iterator[Patience]:
        """The attempts to publish ``what``, which ``holdup`` then knows of. Raises PublishFailed at the deadline."""
        patience = Patience(what, deadline_s=deadline_s)
        self._publishing.add(patience)
        try:
            yield patience
        except OutOfPatience as error:
            raise PublishFailed(f"{error}: look at the server") from None
        finally:
            self._publishing.discard(patience)

    @property
    def holdup(self) -> str:
        """What has been waiting longest to be published, why, and for how long; empty while nothing waits."""
        waiting = [each for each in self._publishing if each.waited_s > HOLDUP_S and each.reason]
        if not waiting:
            return ""
        longest = max(waiting, key=lambda each: each.waited_s)
        more = f", and {len(waiting) - 1} more" if len(waiting) > 1 else ""
        return f"{longest.what}{more}: still trying after {longest.waited_s:.0f} s: {longest.reason}"

    async def announce(self, event: Event) -> None:
        """Send ``event`` without waiting for its storage; dropped where that would have to wait.

        For telemetry: nothing that anyone decides on. Raises EventInvalid for an invalid event, and nothing else.
        """
        payload, headers = encode(event), headers_of(event, source=self.source)
        await self.wire.tell(subject_of(event), payload, headers, most_pending=MOST_PENDING_BYTES)

    def read(
        self, spec: StreamSpec, *, kinds: Sequence[type[Event]] = (), start: int = 1, follow: bool = False
    ) -> AsyncIterator[Logged]:
        """The messages of a stream in order, from sequence ``start`` on; of ``kinds`` only, where some are given.

        Ends at the stream's last message at the time of the call, or with ``follow`` never: then it goes on over
        reconnects and server restarts. Purged messages are passed over.
        Raises LogGap where messages are missing that no purge explains (not with one kind alone, which cannot tell).
        """
        return LogReader(self.wire, self.run, spec, kinds, start).messages(follow=follow)

    async def last(
        self, spec: StreamSpec, kind: type[Event] | None = None, *, source: str | None = None
    ) -> Logged | None:
        """The newest message of ``kind``, or of all, as the stream's leader has it; None where there is none.

        ``source``: of one instance only, ``<role>/<id>``, for kinds whose subject names it.
        """
        subject = ANYTHING if kind is None else subject_filter(self.run, kind)
        if source is not None:
            subject = subject.replace(">", source.replace("/", "."))
        return await from_leader(self.wire, spec.name(self.run), {"last_by_subj": subject})

    async def state(self, spec: StreamSpec) -> StreamState:
        """What the stream holds now, from its leader."""
        return await current_state(self.wire, spec.name(self.run))

    async def require_whole(self, spec: StreamSpec, *, start: int = 1) -> None:
        """Raise LogGap where messages from sequence ``start`` on are missing that no purge explains."""
        await gaps.require_whole(self.wire, spec.name(self.run), start=start)

    async def purge(self, spec: StreamSpec, *, before: int) -> None:
        """Remove all messages below sequence ``before``: the only way in which one leaves TASKS and ROLLOUTS."""
        if before > 1:
            await purge(self.wire, spec.name(self.run), before=before)

    async def consumer(
        self, spec: StreamSpec, durable: str, *, ack: Literal["explicit", "all"], ack_wait_s: float
    ) -> Consumer:
        """The durable pull consumer of that name: made, or the one that is there.

        All instances that pull from one share its messages. Deliveries and pending acknowledgements have no limit.
        Raises StreamMismatch where the stream is missing or the consumer is of another kind.
        """
        consumer = Consumer(self.wire, spec.name(self.run), check_name(durable, "the name of a consumer"))
        await consumer.create(ack=ack, ack_wait_s=ack_wait_s)
        return consumer

    async def apply_topology(self, log: LogSettings, weights: WeightsSettings) -> list[str]:
        """See topology.apply_topology."""
        return await topology.apply_topology(self.wire, self.run, log, weights)

    async def verify_topology(self, log: LogSettings, weights: WeightsSettings) -> None:
        """See topology.verify_topology."""
        await topology.verify_topology(self.wire, self.run, log, weights)

    async def close(self) -> None:
        """Send what is still to be sent, and disconnect, within about 2 s."""
        await self.wire.close()
