"""JSON lines in a file that writer and reader share, one write for each line (PipelineRL's other backend)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from .rollouts import CONTEXT, Sampled
from .way import ReaderOfRecords, Received, Record, Resting, Sent, Way

LOOK_EVERY_S = 0.002
"""How often a reader looks for more at the end of the file; PipelineRL waits 0.1 s."""


class Line(Record, frozen=True, array_like=False, gc=False):
    """A record with its field names, as lines of JSON have them."""


class SharedFile:
    """No process."""

    pid = None

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        path = folder / "rollouts.jsonl"
        path.touch()
        self.place = str(path)

    def restart(self) -> None:
        pass

    def stop(self) -> None:
        pass


class LineWriter(Resting):
    def __init__(self, place: str) -> None:
        self._file = Path(place).open("ab", buffering=0)  # noqa: SIM115  # for as long as the process lives
        self._encoder = msgspec.json.Encoder()
        self._line = bytearray()

    def write(self, rollouts: Iterable[Sampled], sent: Sent) -> None:
        for sampled in rollouts:
            record = Line(sampled.number, sampled.reward, CONTEXT, sampled.token_list, sampled.logprob_list)
            self._encoder.encode_into(record, self._line)
            self._line += b"\n"
            self._file.write(self._line)
            sent(sampled.number)


class LineReader(ReaderOfRecords):
    def __init__(self, place: str) -> None:
        self._path = Path(place)
        self._file = self._path.open("rb")
        self._decoder = msgspec.json.Decoder(Line)
        self._half = b""

    def receive(self, timeout_s: float) -> Received | None:
        deadline = time.monotonic() + timeout_s
        while True:
            self._half += self._file.readline()
            if self._half.endswith(b"\n"):
                line, self._half = self._half, b""
                return self._decoder.decode(line).received()
            if time.monotonic() > deadline:
                return None
            time.sleep(LOOK_EVERY_S)

    def clear(self) -> None:
        with self._path.open("r+b") as file:
            file.truncate(0)
        self._file.seek(0)


LINES = Way("JSON lines in a file", SharedFile, LineWriter, LineReader, has_broker=False)
