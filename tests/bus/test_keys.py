"""Keys: made once, kept, and for those alone who should have them."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus import BUS_ROLES, make_keys, permissions
from bus.seed import new_seed, public_key, read_seed
from schemas import ConfigError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "keys"


def test_every_role_has_a_key_of_its_own_in_a_folder_of_its_own(folder: Path) -> None:
    keys = make_keys(folder, ["demo"])
    assert [(key.role, key.file) for key in keys] == [(role, folder / role / "nkey") for role in BUS_ROLES]
    assert [key.public_key for key in keys] == [public_key(read_seed(key.file)) for key in keys]
    assert len({key.public_key for key in keys}) == len(BUS_ROLES)
    assert all(key.made and re.fullmatch(r"U[A-Z2-7]{55}", key.public_key) for key in keys)


def test_folder_guards_seeds_that_any_container_can_read(folder: Path) -> None:
    keys = make_keys(folder, ["demo"])
    assert mode(folder) == 0o700
    assert {mode(key.file.parent) for key in keys} == {0o755}
    assert {mode(key.file) for key in keys} == {0o444}
    assert mode(folder / "server" / "users.conf") == 0o644


def test_modes_do_not_depend_on_the_umask(folder: Path) -> None:
    before = os.umask(0o077)
    try:
        test_folder_guards_seeds_that_any_container_can_read(folder)
    finally:
        os.umask(before)


def test_folder_that_was_open_is_closed(folder: Path) -> None:
    folder.mkdir(parents=True, mode=0o755)
    make_keys(folder, ["demo"])
    assert mode(folder) == 0o700


def test_second_call_keeps_the_keys_and_writes_the_users_anew(folder: Path) -> None:
    first = make_keys(folder, ["demo"])
    seeds = [key.file.read_bytes() for key in first]
    (folder / "dispatcher" / "nkey").unlink()
    again = make_keys(folder, ["demo", "other"])
    assert [key.role for key in again if key.made] == ["dispatcher"]
    assert [key.file.read_bytes() for key in again][1:] == seeds[1:]
    assert again[0].public_key != first[0].public_key
    users = (folder / "server" / "users.conf").read_text()
    assert first[0].public_key not in users
    assert all(key.public_key in users for key in again)
    assert all(f'"{subject}"' in users for subject in permissions("trainer", "demo", "other").publish)


def test_server_gets_no_seed(folder: Path) -> None:
    keys = make_keys(folder, ["demo"])
    for file in (folder / "server").iterdir():
        assert not [key for key in keys if read_seed(key.file) in file.read_text()]


def test_nothing_is_left_beside_the_keys(folder: Path) -> None:
    make_keys(folder, ["demo"])
    make_keys(folder, ["demo"])
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {*(f"{role}/nkey" for role in BUS_ROLES), "server/users.conf", ".gitignore"}


def test_git_leaves_keys_out_wherever_they_are(folder: Path) -> None:
    subprocess.run(["git", "init", "--quiet", folder.parent.parent], check=True)
    make_keys(folder, ["demo"])
    listed = subprocess.run(
        ["git", "-C", folder.parent.parent, "status", "--porcelain", "--untracked-files=all"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert listed.stdout == ""


def test_damaged_seed_is_named_and_not_replaced(folder: Path) -> None:
    make_keys(folder, ["demo"])
    damaged = folder / "reader" / "nkey"
    damaged.chmod(0o644)
    damaged.write_text(damaged.read_text()[:-1])
    with pytest.raises(ConfigError, match=rf"the key {damaged} is not the seed of a user .* move it away"):
        make_keys(folder, ["demo"])
    assert len(damaged.read_text()) == 57


def test_name_of_a_run_is_checked_before_anything_is_written(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"--run 'a\.\*' cannot be used"):
        make_keys(folder, ["demo", "a.*"])
    assert not folder.exists()


@pytest.mark.parametrize("place", ["a file", "below a file"])
def test_place_that_cannot_be_written_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" if place == "a file" else tmp_path / "file" / "keys"
    with pytest.raises(ConfigError, match=rf"keys cannot be written to {folder}: .*: give a folder of your own"):
        make_keys(folder, ["demo"])


AS_ANOTHER_USER = """
import os, sys
from pathlib import Path
# The interpreter may lie where another user cannot go: everything is loaded before it becomes one.
from bus import make_keys
from schemas import ConfigError
os.setgid(65534)
os.setuid(65534)
try:
    make_keys(Path(sys.argv[1]), ["demo"])
except ConfigError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_folder_of_somebody_else_is_named() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        command = [sys.executable, "-c", AS_ANOTHER_USER, folder]
        told = subprocess.run(command, capture_output=True, text=True, check=True)
        assert told.stdout.startswith(f"keys cannot be written to {folder}: {folder}: Operation not permitted")
        assert not list(Path(folder).iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_root_gives_the_files_to_the_owner_of_the_folder(folder: Path) -> None:
    """A container makes the keys as root, in a folder of the user who started it."""
    (folder / "server").mkdir(parents=True)
    os.chown(folder, 12345, 12346)
    make_keys(folder, ["demo"])
    paths = [folder, *folder.rglob("*")]
    assert {(path.stat().st_uid, path.stat().st_gid) for path in paths} == {(12345, 12346)}


@given(st.integers(0, 57), st.sampled_from("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"))
def test_no_damage_to_one_character_of_a_seed_passes(place: int, letter: str) -> None:
    seed = new_seed()
    damaged = seed[:place] + letter + seed[place + 1 :]
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_text(f" {damaged}\n")
        if damaged == seed:
            assert read_seed(Path(file.name)) == seed
        else:
            with pytest.raises(ConfigError):
                read_seed(Path(file.name))
