"""What a generator on another machine needs before its first weights: the model's directory and the configuration.

They lie in the bucket as ``model/<file name>`` and ``config.json``, which is put last: when it is there, all is.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from bus.patience import Patience
from bus.threads import in_thread
from schemas import ModelError, WeightsError

from .bucket import Bucket
from .disk import NewFile, mapped, reason, sha256_of, sha256_of_bytes
from .objects import ObjectInfo, sha256_in
from .reading import read_object
from .sending import put_object

log = logging.getLogger("headrace.bus")

CONFIG = "config.json"
MODEL = "model/"
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_TENSORS = ".safetensors"
_KINDS = (_TENSORS, ".json", ".jinja", ".txt", ".model")
"""Data only: no pickles (.bin, .pt), and no code."""
_MOST_CONFIG_BYTES = 16 * 1024 * 1024


class RunFiles:
    """The trainer puts them; whoever has a connection to the run takes them."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    async def put(self, model: Path, config: bytes) -> list[str]:
        """Make the files of directory ``model``, and then ``config``, durable. Returns the names of what was sent.

        What is there already is not sent again. A server that is away is waited for, with a log line each 10 s.
        Raises ModelError where a file cannot be read, WeightsError or BusError where waiting cannot help.
        """
        paths = {f"{MODEL}{path.name}": path for path in await in_thread(_files, model)}
        sent = [name for name, path in paths.items() if await self._put_file(name, path)]
        for info in await self._bucket.objects():
            if info.name.startswith(MODEL) and info.name not in paths:
                await self._bucket.remove(info)
        if await put_object(self._bucket, CONFIG, memoryview(config), sha256_of_bytes(memoryview(config))):
            sent.append(CONFIG)
        await self._bucket.sweep()
        return sent

    async def _put_file(self, name: str, path: Path) -> bool:
        try:
            with mapped(path) as view:
                sha256 = await in_thread(sha256_of_bytes, view)
                return await put_object(self._bucket, name, view, sha256)
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {reason(error)}") from error

    async def config(self) -> bytes:
        """The resolved configuration, as soon as the trainer has put it; a log line each 10 s until then.

        Raises WeightsError where it is damaged.
        """
        patience = Patience(f"taking {CONFIG} from {self._bucket.name}")
        while (config := await self.config_now()) is None:
            await patience.pause("it is not there yet: the trainer puts it and the model when it starts")
        patience.rewarded()
        return config

    async def config_now(self) -> bytes | None:
        """The resolved configuration; None where the trainer has put none. Raises WeightsError where it is damaged.

        It is read message by message, so that a role may read it that may make no consumer.
        """
        while (info := await self._bucket.info(CONFIG)) is not None:
            if info.size > _MOST_CONFIG_BYTES:
                raise WeightsError(f"{CONFIG} in {self._bucket.name} has {info.size} bytes: that is no configuration")
            config = b"".join(await self._bucket.chunks(info))
            if sha256_of_bytes(memoryview(config)) == sha256_in(info.digest):
                return config
            now = await self._bucket.info(CONFIG)
            if now is not None and now.nuid == info.nuid:  # else the trainer has put another one meanwhile
                raise WeightsError(
                    f"{CONFIG} in {self._bucket.name} is damaged: start the trainer again, which puts it"
                )
        return None

    async def fetch_model(self, into: Path, *, tensors: bool = True) -> None:
        """Have the model's files in folder ``into``, each verified; what is there and whole is not read again.

        ``tensors``: with the weights, not only what lies beside them. Waits for the trainer as ``config`` does.
        Raises WeightsError where one is damaged, or is not of the kind that may be taken, or the disk refuses.
        """
        await self.config()  # It is put last.
        files = [info for info in await self._bucket.objects() if info.name.startswith(MODEL)]
        if not files:
            raise WeightsError(f"{self._bucket.name} has no {MODEL} files: start the trainer again, which puts them")
        for info in files:
            name, sha256 = info.name.removeprefix(MODEL), sha256_in(info.digest)
            if not _fits(name):
                raise WeightsError(f"{self._bucket.name} has {info.name!r}, which is no file of a model: remove it")
            if name.endswith(_TENSORS) and not tensors:
                continue
            if await in_thread(_is_there, into / name, info.size, sha256):
                continue
            log.info("taking %s (%d bytes) from %s", info.name, info.size, self._bucket.name)
            with await in_thread(_new, into / name, info, sha256) as file:
                await read_object(self._bucket, info, file.take)
                await in_thread(file.finish)


def _files(model: Path) -> list[Path]:
    return [path for path in sorted(model.iterdir()) if path.is_file() and _fits(path.name)]


def _fits(name: str) -> bool:
    """Whether ``name`` may be a file of a model: no path, nothing hidden, and no format that can hold code."""
    return _FILE.fullmatch(name) is not None and name.endswith(_KINDS)


def _new(path: Path, info: ObjectInfo, sha256: str) -> NewFile:
    return NewFile(path, info.name, size_bytes=info.size, sha256=sha256)


def _is_there(path: Path, size_bytes: int, sha256: str) -> bool:
    return path.is_file() and path.stat().st_size == size_bytes and sha256_of(path) == sha256
