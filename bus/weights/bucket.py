"""A run's bucket in NATS: what is in it, and what may go.

Everything is asked of the stream's leader, never of a copy that may lag behind: what is not seen is removed.

Who removes and who reads agree without a lock. A reader first makes its consumer, then looks at the metadata once
more. The trainer first removes the metadata, then looks for consumers, and leaves the chunks that one reads to a
later time. So either the reader sees that the object is gone, or the trainer sees the reader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from bus.answers import UNAVAILABLE, ApiError, Unanswered
from bus.connection import Bus
from bus.patience import Patience
from bus.stream import Logged, stored_message
from bus.topology import UNKNOWN_STREAM
from schemas import WEIGHTS_BUCKET, StreamMismatch

from .objects import ObjectInfo, chunk_subject, meta_subject, object_info

T = TypeVar("T")


class Bucket:
    """The bucket of the bus's run. One process at a time, the trainer, puts and removes, one thing after the other.

    A server that is away is waited for, with a log line each 10 s. Everything raises StreamMismatch where there is
    no bucket.
    """

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.wire = bus.wire
        self.name = WEIGHTS_BUCKET.bucket(bus.run)
        self.stream = WEIGHTS_BUCKET.name(bus.run)

    async def info(self, name: str) -> ObjectInfo | None:
        """What is stored under ``name``."""
        logged = await self._leader({"last_by_subj": meta_subject(self.name, name)})
        info = None if logged is None else object_info(logged.payload, self.name)
        return info if info is not None and info.name == name else None

    async def objects(self) -> list[ObjectInfo]:
        """All that is stored, in the order in which it was put."""
        found, sequence = [], 1
        while logged := await self._leader({"seq": sequence, "next_by_subj": meta_subject(self.name)}):
            sequence = logged.sequence + 1
            if info := object_info(logged.payload, self.name):
                found.append(info)
        return found

    async def chunks(self, info: ObjectInfo) -> list[bytes]:
        """All of a small object, asked for one by one. Fewer than there were where it is removed meanwhile."""
        found: list[bytes] = []
        query: dict[str, Any] = {"seq": 1, "next_by_subj": chunk_subject(self.name, info.nuid)}
        while len(found) < info.chunks and (logged := await self._leader(query)):
            query["seq"] = logged.sequence + 1
            found.append(logged.payload)
        return found

    async def _leader(self, query: dict[str, Any]) -> Logged | None:
        ask = partial(stored_message, self.wire, self.stream, query)
        return await self._answer(f"asking the leader of {self.stream}", ask)

    async def is_whole(self, info: ObjectInfo) -> bool:
        """Whether every chunk is there. The server itself checks the bytes of a message."""
        _, chunks = await self.progress(info.nuid)
        return chunks == info.chunks

    async def progress(self, nuid: str) -> tuple[int, int]:
        """The stream's last sequence, and how many chunks there are of ``nuid``."""
        subject = chunk_subject(self.name, nuid)
        state = await self._state(subject)
        return state["last_seq"], (state.get("subjects") or {}).get(subject, 0)

    async def _state(self, subjects: str) -> Any:
        """The stream's state, with a count for each subject that ``subjects`` matches."""
        return (await self.api(f"STREAM.INFO.{self.stream}", {"subjects_filter": subjects}))["state"]

    async def remove(self, info: ObjectInfo) -> None:
        """Forget an object. Its chunks go with the first ``sweep`` at which nobody reads them."""
        await self._purge(meta_subject(self.name, info.name))

    async def sweep(self, *, sparing: str = "") -> None:
        """Remove chunks without metadata: of objects removed or replaced, and of a put that never ended.

        Not those of nuid ``sparing``, which is being put.
        """
        subjects = (await self._state(chunk_subject(self.name, "*"))).get("subjects") or {}
        nuids = {subject.rpartition(".")[2] for subject in subjects}
        left = nuids - {sparing} - {info.nuid for info in await self.objects()}
        for nuid in left and left - await self._being_read():
            await self.purge_chunks(nuid)

    async def _being_read(self) -> set[str]:
        """Nuids whose chunks have a reader. Its consumer, named after the nuid, goes 30 s after its last pull."""
        names: list[str] = []
        while True:
            page = await self.api(f"CONSUMER.NAMES.{self.stream}", {"offset": len(names)})
            names += page.get("consumers") or []
            if not page.get("consumers") or len(names) >= page["total"]:
                return {name.partition("-")[0] for name in names}

    async def purge_chunks(self, nuid: str) -> None:
        await self._purge(chunk_subject(self.name, nuid))

    async def _purge(self, subject: str) -> None:
        await self.api(f"STREAM.PURGE.{self.stream}", {"filter": subject})

    async def api(self, path: str, body: dict[str, Any]) -> Any:
        """A JetStream request, asked until there is an answer; so only what may be done twice is asked."""
        return await self._answer(f"asking for {path}", partial(self.wire.api, path, body))

    async def _answer(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        patience = Patience(what)
        while True:
            try:
                answer = await ask()
            except Unanswered as error:
                reason = str(error)
            except ApiError as error:
                if error.fault.code != UNAVAILABLE:
                    raise self._named(error) from None
                reason = str(error)
            else:
                patience.rewarded()
                return answer
            await patience.pause(reason)

    def _named(self, error: ApiError) -> Exception:
        if error.fault.err_code != UNKNOWN_STREAM:
            return error
        return StreamMismatch(
            f'stream {self.stream} does not exist: run headrace topology apply, with weights.store = "jetstream", '
            "or correct the name of the run"
        )
