from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bus import BUS_ROLES
from tests.headrace.conftest import Headrace


def test_keys_are_listed_with_what_is_public_alone(tmp_path: Path, headrace: Headrace) -> None:
    told = headrace("keys", "new", tmp_path / "keys", "--run", "demo")
    assert told.code == 0
    rows = [line.split() for line in told.out.splitlines()[1:-1]]
    assert [(row[0], row[2], row[3]) for row in rows] == [
        (role, str(tmp_path / "keys" / role / "nkey"), "made") for role in BUS_ROLES
    ]
    assert told.out.splitlines()[-1] == f"{tmp_path}/keys/server/users.conf: what each may do in demo"
    assert not [role for role in BUS_ROLES if (tmp_path / "keys" / role / "nkey").read_text() in told.out]


def test_second_call_says_what_it_kept(tmp_path: Path, headrace: Headrace) -> None:
    headrace("keys", "new", tmp_path / "keys", "--run", "demo")
    (tmp_path / "keys" / "reader" / "nkey").unlink()
    told = headrace("keys", "new", tmp_path / "keys", "--run", "demo", "--run", "other", "--json")
    answer = msgspec.json.decode(told.out)
    assert (answer["dir"], answer["runs"]) == (str(tmp_path / "keys"), ["demo", "other"])
    assert [key["role"] for key in answer["keys"] if key["made"]] == ["reader"]
    assert [key["role"] for key in answer["keys"]] == list(BUS_ROLES)


def test_folder_that_cannot_be_written_is_an_error_in_one_line(tmp_path: Path, headrace: Headrace) -> None:
    (tmp_path / "file").write_text("")
    told = headrace("keys", "new", tmp_path / "file" / "keys", "--run", "demo")
    assert told.code == 1
    assert told.err.startswith(f"headrace keys: keys cannot be written to {tmp_path}/file/keys: ")
    assert told.err.count("\n") == 1


def test_run_must_be_named(tmp_path: Path, headrace: Headrace, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        headrace("keys", "new", tmp_path / "keys")
    assert "--run" in capsys.readouterr().err
