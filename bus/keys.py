"""Keys: each role is known to a server by the public half of an Ed25519 key, and proves the other half, its seed.

DIR/<role>/nkey         the role's seed, for its process alone
DIR/server/users.conf   the roles' public keys and permissions, for the server's configuration to include

DIR is for its owner alone (0700) and guards what is in it. The seeds themselves can be read by all (0444): a container
gets the folder of its own role, and runs as a user that the owner of DIR does not know.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

import msgspec

from schemas import ConfigError, check_name

from .permissions import BUS_ROLES, BusRole
from .seed import new_seed, public_key, read_seed
from .server_config import users_config

SEED_FILE = "nkey"
USERS_FILE = Path("server", "users.conf")
_OWNER_ALONE, _FOLDER, _SEED, _USERS = 0o700, 0o755, 0o444, 0o644


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A role's key, without its secret."""

    role: BusRole
    public_key: str
    file: Path
    """Where its seed is."""
    made: bool
    """Whether it is new; otherwise it was there before."""


def make_keys(folder: Path, runs: Sequence[str]) -> list[Key]:
    """A key for each role in ``folder``, the ones that are there kept, and what each may do in ``runs``, anew.

    Raises ConfigError where a run's name cannot be used, the folder cannot be written, or a seed in it is damaged.
    """
    runs = [check_name(run, "--run") for run in runs]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(_OWNER_ALONE)
        _write_unless_there(folder / ".gitignore", b"*\n", _USERS)
        keys = [_make_key(folder / role / SEED_FILE, role) for role in BUS_ROLES]
        config = users_config({key.role: key.public_key for key in keys}, runs)
        (folder / USERS_FILE).parent.mkdir(mode=_FOLDER, exist_ok=True)
        _write(folder / USERS_FILE, config.encode(), _USERS)
        _give_to_owner(folder)
    except OSError as error:
        raise ConfigError(
            f"keys cannot be written to {folder}: {error.filename}: {error.strerror}: give a folder of your own"
        ) from None
    return keys


def _make_key(file: Path, role: BusRole) -> Key:
    file.parent.mkdir(exist_ok=True)
    file.parent.chmod(_FOLDER)
    made = _write_unless_there(file, new_seed().encode(), _SEED)
    return Key(role=role, public_key=public_key(read_seed(file)), file=file, made=made)


def _write_unless_there(file: Path, content: bytes, mode: int) -> bool:
    """Whether ``file`` was written."""
    if missing := not file.exists():
        _write(file, content, mode)
    return missing


def _write(file: Path, content: bytes, mode: int) -> None:
    """The file appears whole, and is never seen by others before it has its mode."""
    aside = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
        opened.write(content)
    aside.chmod(mode)
    aside.replace(file)


def _give_to_owner(folder: Path) -> None:
    """A container writes as root into a folder of the user who started it; that user is to be able to remove it."""
    if os.geteuid() != 0:
        return
    owner = folder.stat()
    for path in (*(folder / role for role in BUS_ROLES), folder / USERS_FILE.parent):
        for each in (path, *path.iterdir()):
            os.chown(each, owner.st_uid, owner.st_gid)
    os.chown(folder / ".gitignore", owner.st_uid, owner.st_gid)
