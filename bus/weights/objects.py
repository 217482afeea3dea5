"""An object in an object-store bucket, as all NATS clients lay it out (ADR-20).

    $O.<bucket>.M.<base64url of its name>   one message, JSON: what it is; a newer one replaces it (``Nats-Rollup``)
    $O.<bucket>.C.<nuid>                    its bytes in order, a chunk to a message

An object put anew gets a new nuid, so its old chunks stay whole for those who are reading them.
Source: https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-20.md
"""

from __future__ import annotations

import base64
import re

import msgspec

NUID = re.compile(r"[A-Za-z0-9_]{1,64}")
_DIGEST = "SHA-256="
_VERSIONS, _BASE = "versions", "base"


class Options(msgspec.Struct, frozen=True):
    """How the object was cut."""

    max_chunk_size: int = 0
    """Bytes of all chunks but the last."""


class ObjectInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the metadata message says."""

    name: str
    description: str = ""
    metadata: dict[str, str] = {}
    options: Options = Options()
    bucket: str
    nuid: str
    """Last token of the chunks' subject."""
    size: int
    """Of the object in bytes."""
    chunks: int
    """How many there are."""
    digest: str = ""
    """``SHA-256=`` and base64url."""
    deleted: bool = False

    @property
    def versions(self) -> frozenset[int]:
        """Versions of the weights that these bytes are; empty for what is no weights."""
        words = self.metadata.get(_VERSIONS, "").split()
        return frozenset(int(word) for word in words if word.isdecimal())

    @property
    def base(self) -> str:
        """sha256 of the weights that a delta applies to; empty for what is no delta."""
        return self.metadata.get(_BASE, "")


def labels(versions: frozenset[int], base: str = "") -> tuple[dict[str, str], str]:
    """Metadata and description of an object that has these versions of the weights, of a delta from ``base``."""
    words = " ".join(str(version) for version in sorted(versions))
    metadata = {_VERSIONS: words} if versions else {}
    description = f"weights {words}" if versions else ""
    if base:
        return metadata | {_BASE: base}, f"delta to {description or 'a base of later weights'}"
    return metadata, description


def digest_of(sha256: str) -> str:
    """From hexadecimal."""
    return _DIGEST + base64.urlsafe_b64encode(bytes.fromhex(sha256)).decode()


def sha256_in(digest: str) -> str:
    """To hexadecimal; empty where it is no sha256."""
    try:
        raw = base64.urlsafe_b64decode(digest.removeprefix(_DIGEST))
    except ValueError:
        return ""
    return raw.hex() if digest.startswith(_DIGEST) and len(raw) == 32 else ""


def meta_subject(bucket: str, name: str | None = None) -> str:
    """Of one object's metadata, or of all."""
    token = ">" if name is None else base64.urlsafe_b64encode(name.encode()).decode()
    return f"$O.{bucket}.M.{token}"


def chunk_subject(bucket: str, nuid: str) -> str:
    return f"$O.{bucket}.C.{nuid}"


def cuts(size: int, chunk: int) -> list[tuple[int, int]]:
    """Begin and end of each chunk of an object of ``size`` bytes; none of an empty one."""
    return [(begin, min(begin + chunk, size)) for begin in range(0, size, chunk)]


def object_info(payload: bytes, bucket: str) -> ObjectInfo | None:
    """What a metadata message says; None for one that cannot be used: foreign, or deleted."""
    try:
        info = msgspec.json.decode(payload, type=ObjectInfo)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    sane = info.bucket == bucket and NUID.fullmatch(info.nuid) and info.size >= 0 and 0 <= info.chunks <= info.size
    return info if sane and not info.deleted else None
