from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headrace.doctor import Finding
from tests.headrace.conftest import Headrace

GOOD = Finding(name="python", ok=True, detail="Python 3.11", remedy="use another")
BAD = Finding(name="libnuma", ok=False, detail="it is missing", remedy="apt-get install libnuma1")


def test_all_well_ends_with_0_and_hides_remedies(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.commands.doctor.examine", lambda *_: [GOOD])
    told = headrace("doctor")
    assert told.code == 0
    assert told.out.splitlines() == ["ok    python: Python 3.11"]


def test_one_fault_ends_with_1_and_its_remedy(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.commands.doctor.examine", lambda *_: [GOOD, BAD])
    told = headrace("doctor")
    assert told.code == 1
    assert told.out.splitlines()[1:] == ["WRONG libnuma: it is missing", "      apt-get install libnuma1"]
    found = msgspec.json.decode(headrace("doctor", "--json").out, type=list[Finding])
    assert found == [GOOD, BAD]


def test_this_machine_is_examined_with_a_configuration(headrace: Headrace, tmp_path: Path) -> None:
    demo = Path(__file__).parents[3] / "configs" / "demo.toml"
    told = headrace("doctor", demo, "--set", f"model.path={tmp_path}/none", "--dir", tmp_path, "--json")
    found = {each["name"]: each["ok"] for each in msgspec.json.decode(told.out)}
    assert found["python"]
    assert found["model"] is False or "model" in found


def test_overrides_of_no_configuration_are_refused(headrace: Headrace) -> None:
    told = headrace("doctor", "--set", "trainer.lr=1e-5")
    assert (told.code, told.out) == (1, "")
    assert told.err == (
        "headrace doctor: --set trainer.lr=1e-5 changes a configuration, and none is given: "
        "headrace doctor CONFIG --set trainer.lr=1e-5\n"
    )
