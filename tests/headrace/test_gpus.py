"""Which GPUs each role gets; there is none here, so the driver's program is one of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import load
from headrace.gpus import VARIABLE, gpus_here, scarce, share_out, wanted

DEMO = Path(__file__).resolve().parents[2] / "configs" / "demo.toml"


@given(st.integers(1, 16), st.lists(st.integers(1, 8), min_size=1, max_size=6))
def test_each_role_has_different_gpus_and_its_own_where_there_are_enough(count: int, wants: list[int]) -> None:
    gpus = [str(number) for number in range(count)]
    shares = share_out(gpus, wants)
    assert [len(share) for share in shares] == [min(want, count) for want in wants]
    assert all(len(set(share)) == len(share) for share in shares)
    if sum(wants) <= count:
        assert [gpu for share in shares for gpu in share] == gpus[: sum(wants)]
    else:
        assert {gpu for share in shares for gpu in share} == set(gpus[: max(sum(wants), 0)])


def test_without_a_gpu_nobody_gets_one() -> None:
    assert share_out([], [1, 2]) == [[], []]
    assert scarce([], [1, 2]) is None


def test_the_trainer_comes_first_with_one_for_each_rank() -> None:
    config = load(DEMO, ["trainer.data_parallel=2", "generator.count=3", "generator.tensor_parallel_size=2"])
    assert wanted(config) == [2, 2, 2, 2]


def test_too_few_are_said_and_enough_are_not() -> None:
    assert scarce(["0", "1"], [1, 1]) is None
    words = scarce(["0", "1"], [1, 1, 1])
    assert words is not None
    assert words.startswith("3 GPUs are wanted (1 for the trainer, 2 for generators) and 2 are here")


@pytest.mark.parametrize(
    ("named", "gpus"), [("2,3", ["2", "3"]), ("", []), ("-1", []), (" GPU-1a , MIG-2b ", ["GPU-1a", "MIG-2b"])]
)
def test_those_that_this_process_may_use_are_shared_out(
    named: str, gpus: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, named)
    assert gpus_here() == gpus


@pytest.mark.parametrize(("body", "gpus"), [("printf '0\\n1\\n'", ["0", "1"]), ("exit 9", [])])
def test_the_driver_is_asked_where_nobody_says(
    body: str, gpus: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus_here() == gpus


def test_without_a_driver_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus_here() == []
