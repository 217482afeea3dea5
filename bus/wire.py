"""One connection to NATS on which every request ends: answered, refused, lost with the connection, or timed out.

nats-py alone leaves a request waiting when the server refuses it (a refusal comes to the error callback, its
subject in lower case) and when the connection is lost. It also keeps what is sent without a connection, and
delivers it later: requests here wait for the connection instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable
from typing import Any

import msgspec
import nats.errors
from nats.aio.subscription import Subscription

from schemas import BusError, ServerUnreachable

from .address import Address
from .answers import NOT_NOW, ApiError, Collected, Denied, Fault, Unanswered
from .client import Take
from .handshake import Dialer
from .headers import DESCRIPTION, STATUS
from .patience import OutOfPatience, Patience
from .permissions import BusRole, inbox_prefix
from .received import Received
from .waiting import Waiting

log = logging.getLogger("headrace.bus")

API = "$JS.API"
API_TIMEOUT_S, API_DEADLINE_S = 5.0, 10.0
PING_INTERVAL_S = 10
CONNECT_S = 2.0
RECONNECT_PAUSE_S = 0.1
ELSEWHERE_S = 2.0
"""How long another server of the address may take to let us in when one has refused us for good."""
ANSWER_S, CLOSE_S = 1.0, 1.0
"""On the way out: most time for what is still to be sent, and for closing. A server that is stopped takes neither."""
CANCEL_S = 0.1
NO_RESPONDERS = "503"
_REFUSAL = re.compile(r'permissions violation for (publish|subscription) to "([^"]+)"')


class Wire:
    """A connection that comes back by itself, for ever, until it is closed."""

    def __init__(self, address: Address, role: BusRole) -> None:
        self.address = address
        self.role = role
        self._client = Dialer(address)
        self._up = asyncio.Event()
        self._waiting = Waiting(asyncio.get_running_loop())
        self._listeners: set[Callable[[], None]] = set()
        self._refused: set[str] = set()
        self._rejected: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._last_error = ""
        self._closing = False
        self._dead: ServerUnreachable | None = None
        self._deaf: Denied | None = None

    # Connecting and closing

    async def open(self, name: str, *, timeout_s: float) -> None:
        """Connect. Raises ConfigError where the address cannot be used, and ServerUnreachable where no server answers
        within ``timeout_s``, or at once where it refuses us, or we it, for good.
        """
        # nats-py itself tries for ever, also where it is refused.
        connecting: asyncio.Future[None] = asyncio.ensure_future(self._client.connect(**self._options(name)))
        ends: set[asyncio.Future[Any]] = {connecting, self._rejected}
        try:
            await asyncio.wait(ends, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not connecting.done() and self._rejected.done() and len(self.address.servers) > 1:
                await asyncio.wait({connecting}, timeout=ELSEWHERE_S)
            self._raise_unless_connected(connecting, timeout_s)
            self._rejected.cancel()
            self._up.set()
        except BaseException:
            while not connecting.done():
                # Again and again: nats-py waits with asyncio.wait_for, which in Python 3.11 loses a cancellation that
                # comes as the wait ends, and then it would try the servers for ever.
                connecting.cancel()
                await asyncio.wait({connecting}, timeout=CANCEL_S)
            await asyncio.gather(connecting, return_exceptions=True)
            await self.close()
            raise

    def _options(self, name: str) -> dict[str, Any]:
        return self._client.credentials() | {
            "name": name,
            "inbox_prefix": inbox_prefix(self.role),
            "allow_reconnect": True,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": RECONNECT_PAUSE_S,
            "connect_timeout": CONNECT_S,
            "ping_interval": PING_INTERVAL_S,
            "error_cb": self._on_error,
            "disconnected_cb": self._on_loss,
            "reconnected_cb": self._on_return,
            "closed_cb": self._on_close,
        }

    def _raise_unless_connected(self, connecting: asyncio.Future[Any], timeout_s: float) -> None:
        where = f"{self.address.url} as {self.address.identity}"
        if not connecting.done():
            if self._rejected.done():
                raise ServerUnreachable(self._rejected.result())
            raise ServerUnreachable(
                f"no NATS server answers at {where} within {timeout_s:g} s "
                f"({self._last_error or 'no answer'}): start one, or give another address"
            )
        if error := connecting.exception():
            raise ServerUnreachable(f"cannot connect to NATS at {where}: {error}: check the address") from error

    async def close(self) -> None:
        """Send what is still to be sent, and close; within 2 s, also where the server is stopped or away."""
        self._closing = True
        self._waiting.end(ServerUnreachable("the connection is closed"))
        with contextlib.suppress(BusError):
            await self.answers(ANSWER_S)
        # Who waits for the connection, or comes later, learns that there is none any more.
        self._dead = ServerUnreachable("the connection is closed")
        self._up.set()
        # A task of its own: nats-py may wait for the socket's end in a task that it cancels, and who waits with it is
        # cancelled too.
        closing = asyncio.create_task(self._client.close())
        try:
            await asyncio.wait({closing}, timeout=CLOSE_S)
        finally:
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
        if self._client._transport is not None:
            # nats-py leaves the socket of an attempt that was refused or cancelled open. It closes in the loop's
            # next round; waiting for that may meet the cancellation of nats-py's own wait.
            self._client._transport.close()  # type: ignore[no-untyped-call]
            await asyncio.sleep(0)
        self._rejected.cancel()

    # What nats-py reports

    async def _on_error(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        self._last_error = text
        if denied := _REFUSAL.search(text.lower()):
            self._on_refusal(*denied.groups())
        elif reason := self._client.refusal(error):
            self._on_rejection(reason)
        elif isinstance(error, nats.errors.SlowConsumerError):
            log.error("a message was dropped: the receiver is too slow: %s", text)
        else:
            log.debug("connection to %s: %s", self.address.url, text)

    def _on_rejection(self, reason: str) -> None:
        """At the start that is the end; later it is tried again: a server's users may be put right."""
        if not self._rejected.done():
            self._rejected.set_result(reason)
        elif reason not in self._refused:
            self._refused.add(reason)
            log.error("%s", reason)

    def _on_refusal(self, verb: str, subject: str) -> None:
        """``subject`` is in lower case."""
        inbox = inbox_prefix(self.role).lower()
        if verb == "subscription" and subject.startswith(f"{inbox}."):
            self._deaf = Denied(
                f"role {self.role} may not listen to answers, {inbox_prefix(self.role)}.> ({self._who}): "
                "these are another role's credentials: use that role's own"
            )
            self._waiting.end(self._deaf)
            return
        waited_for = self._waiting.refuse(subject, lambda spelled: self._denial(verb, spelled))
        if not waited_for and subject not in self._refused:
            self._refused.add(subject)
            log.error("%s", self._denial(verb, subject))

    def _denial(self, verb: str, subject: str) -> Denied:
        act = "publish" if verb == "publish" else "subscribe"
        return Denied(
            f"role {self.role} may not {act} to {subject!r} ({self._who}): "
            "use the credentials of a role that may, or extend its permissions on the server"
        )

    @property
    def _who(self) -> str:
        return f"{self.address.identity} at {self.address.url}"

    async def _on_loss(self) -> None:
        self._up.clear()
        if not self._closing:
            log.warning("connection to NATS at %s lost: reconnecting", self.address.url)
        self._waiting.end(Unanswered("the connection was lost"))
        self._client.drop_unsent()  # All of it was for requests that have just ended.

    async def _on_return(self) -> None:
        self._up.set()
        log.info("connection to NATS at %s is back", self.address.url)
        for wake in list(self._listeners):
            wake()

    async def _on_close(self) -> None:
        if not self._closing:
            self._dead = ServerUnreachable(
                f"the NATS server at {self.address.url} closed the connection for good: {self._last_error}"
            )
            log.error("%s", self._dead)
            self._waiting.end(self._dead)
            self._up.set()  # Who waits for the connection must learn that it does not come back.

    # Using it

    @property
    def connected(self) -> bool:
        return self._client.is_connected

    @property
    def server_version(self) -> tuple[int, int, int]:
        version = self._client.connected_server_version
        return version.major, version.minor, version.patch

    @property
    def max_payload_bytes(self) -> int:
        """Headers and payload of the largest message that the server takes."""
        return self._client.max_payload

    def on_return(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Have ``wake`` called after each reconnect; the answer takes it back."""
        self._listeners.add(wake)
        return lambda: self._listeners.discard(wake)

    async def wait_connected(self, timeout_s: float) -> bool:
        """Whether there is a connection within ``timeout_s``. Raises ServerUnreachable where none comes back."""
        if not self._up.is_set():
            # Not asyncio.wait_for: in Python 3.11 it loses a cancellation that comes as the wait ends.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._up.wait()
        self._raise_if_gone()
        return self._up.is_set()

    def _raise_if_gone(self) -> None:
        """Raise where no answer will come on this connection, nor on one that replaces it."""
        if self._dead is not None:
            raise self._dead
        if self._deaf is not None:
            raise self._deaf

    async def answers(self, timeout_s: float) -> bool:
        """Whether the server answers within ``timeout_s``; then it has all that was sent before."""
        # Not nats-py's flush: its ping overtakes what waits to be sent, and a late pong breaks its read loop.
        if not self.connected:
            return False
        try:
            await self.request(f"{API}.INFO", timeout_s=timeout_s)
        except Unanswered as error:
            return error.no_responders
        except Denied:
            pass
        return True

    async def request(
        self, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None, *, timeout_s: float
    ) -> Received:
        """One answer. Raises Denied, Unanswered, or ServerUnreachable where the connection is gone for good."""
        self._raise_if_gone()
        if not self._ready:
            timeout_s = await self._until_ready(timeout_s)
        self._raise_if_gone()
        name = ""
        with self._waiting.for_answer(subject, timeout_s) as answer:

            def take(received: Received) -> None:
                if not answer.done():
                    answer.set_result(received)

            try:
                name = await self._client.ask(subject, payload, headers, take)
                message: Received = await answer
            except (nats.errors.Error, OSError) as error:
                raise Unanswered(f"not sent: {error} ({type(error).__name__})") from None
            finally:
                self._client.unask(name)
        if not message.data and message.headers.get(STATUS) == NO_RESPONDERS:
            raise Unanswered("nobody answers (503)", no_responders=True)
        return message

    @property
    def _ready(self) -> bool:
        """Whether something can be sent now."""
        return self._up.is_set() and not self._client.congested

    async def _until_ready(self, timeout_s: float) -> float:
        """Return what is left of ``timeout_s`` when something can be sent. Raises Unanswered where nothing can be."""
        deadline = time.monotonic() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._up.wait()
                await self._client.uncongested()
        except TimeoutError:
            if not self._up.is_set():
                raise Unanswered(f"no connection to {self.address.url} ({self._last_error})") from None
            raise Unanswered(f"nothing could be sent within {timeout_s:g} s") from None
        return max(0.001, deadline - time.monotonic())

    async def api(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """A JetStream request's decoded answer; asked again for 10 s, so only what may be done twice is asked here.

        Raises ApiError, Unanswered, Denied, or ServerUnreachable where the connection is gone for good.
        """
        subject = f"{API}.{path}"
        patience = Patience(f"asking {subject}", deadline_s=API_DEADLINE_S)
        while True:
            try:
                timeout_s = patience.remaining_s(API_TIMEOUT_S)
                message = await self.request(subject, msgspec.json.encode(body) if body else b"", timeout_s=timeout_s)
            except Unanswered as error:
                if error.no_responders:
                    raise
                await _pause(patience, error)
                continue
            answer = msgspec.json.decode(message.data)
            if "error" not in answer:
                return answer
            fault = msgspec.convert(answer["error"], Fault)
            if fault.err_code != NOT_NOW:
                raise ApiError(subject, fault)
            await _pause(patience, Unanswered(f"{subject}: {fault}"))

    async def collect(self, subject: str, body: dict[str, Any], *, most: int, quiet_s: float) -> Collected:
        """Answers to one request until ``most`` came, the server closes the list, or ``quiet_s`` pass without one.

        Never raises for a lost connection: what came before it counts, and ``lost`` says so. Raises Denied.
        """
        collected = Collected(messages=[])
        done = asyncio.get_running_loop().create_future()
        owed = most

        def take(message: Received) -> None:
            nonlocal owed
            headers = message.headers
            # A stored message may have a header of that name too; the server says where it is stored.
            stored = message.reply or "Nats-Sequence" in headers
            if status := "" if stored else headers.get(STATUS, ""):
                collected.status, collected.description = status, headers.get(DESCRIPTION, "")
                collected.pending = int(headers.get("Nats-Num-Pending", 0))
                # A consumer with copies says that a pull has ended before it sends the last of what was pulled,
                # because that waits for the copies. It says how many of those asked for will not come.
                unsent = headers.get("Nats-Pending-Messages")
                owed = 0 if unsent is None else most - int(unsent)
            else:
                collected.messages.append(message)
            if len(collected.messages) >= owed and not done.done():
                done.set_result(None)

        if self._dead is not None:
            raise self._dead
        if not self.connected:
            collected.lost = "no connection"
            return collected
        try:
            if not self._ready:
                await self._until_ready(quiet_s)
        except Unanswered as error:
            collected.lost = str(error)
            return collected
        inbox = self._client.new_inbox()
        subscription: Subscription | None = None
        try:
            with self._waiting.for_answer(subject) as trouble:
                subscription = await self._client.listen(inbox, take)
                await self._client.publish(subject, msgspec.json.encode(body), reply=inbox)
                await self._await_all(collected, {done, trouble}, quiet_s)
                if trouble.done():
                    cause = trouble.exception()
                    if not isinstance(cause, Unanswered):
                        raise cause or AssertionError("trouble without an exception")
                    collected.lost = str(cause)
        except (nats.errors.Error, OSError) as error:
            collected.lost = str(error)
        finally:
            if subscription is not None:
                await self.unsubscribe(subscription)
        return collected

    async def _await_all(self, collected: Collected, ends: set[asyncio.Future[None]], quiet_s: float) -> None:
        seen = -1
        while len(collected.messages) > seen:
            seen = len(collected.messages)
            done, _ = await asyncio.wait(ends, timeout=quiet_s, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return
        collected.lost = f"no answer within {quiet_s:g} s"

    async def subscribe(self, subject: str, take: Take) -> Subscription:
        """Raises Denied. Where the connection is lost meanwhile, nats-py subscribes again when it is back."""
        with self._waiting.for_answer(subject) as trouble:
            subscription = await self._client.listen(subject, take)
            try:
                # A refusal comes before the answer to whatever is asked after it.
                await self.answers(API_TIMEOUT_S)
                if trouble.done() and isinstance(denied := trouble.exception(), Denied):
                    raise denied
            except BaseException:
                await self.unsubscribe(subscription)
                raise
            return subscription

    async def unsubscribe(self, subscription: Subscription) -> None:
        with contextlib.suppress(nats.errors.Error, OSError):
            await self._client.forget(subscription)

    async def tell(self, subject: str, payload: bytes, headers: dict[str, str], *, most_pending: int) -> bool:
        """Send without an answer; False, and nothing sent, where that would have to wait."""
        if not self._client.is_connected or self._client.pending_data_size > most_pending:
            return False
        with contextlib.suppress(nats.errors.Error, OSError):
            await self._client.publish(subject, payload, headers=headers)
            return True
        return False


async def _pause(patience: Patience, error: Unanswered) -> None:
    try:
        await patience.pause(str(error))
    except OutOfPatience:
        raise error from None
