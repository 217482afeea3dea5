"""The seed of a user's key: its secret half, from which the public one follows. NATS calls such keys nkeys."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

import nkeys

from schemas import ConfigError


def new_seed() -> str:
    """The seed of a new user's key."""
    seed: bytes = nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER)
    return seed.decode()


def read_seed(file: Path) -> str:
    """The seed in ``file``. Raises ConfigError where there is none: no file, not ours to read, or something else."""
    try:
        seed = file.read_bytes().strip()
    except OSError as error:
        raise ConfigError(
            f"the key {file} cannot be read: {error.strerror}: make keys with `headrace keys new DIR --run NAME`, "
            "and give DIR/<role>/nkey to a user that may read it"
        ) from None
    with contextlib.suppress(nkeys.NkeysError, ValueError):
        prefix, raw = nkeys.decode_seed(seed)
        # What nkeys itself does not look at: the check sum, and that the key is a user's.
        if prefix == nkeys.PREFIX_BYTE_USER and nkeys.encode_seed(bytes(raw), prefix) == seed:
            return seed.decode()
    raise ConfigError(
        f"the key {file} is not the seed of a user (58 characters that begin with SU): "
        "restore it, or move it away and run headrace keys new again"
    )


def public_key(seed: str) -> str:
    """The public half, as the server's configuration names it."""
    public: bytes = nkeys.from_seed(bytearray(seed.encode())).public_key
    return public.decode()
