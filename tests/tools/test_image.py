"""What goes into the container image, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.setup import image

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("extra", "torch"), [("cpu", "torch==2.13.0+cpu"), ("gpu", "torch==2.13.0")])
def test_image_gets_what_the_project_needs_to_run_and_no_tools(extra: str, torch: str) -> None:
    wanted = image.requirements(ROOT / "pyproject.toml", extra)
    assert torch in wanted
    names = {requirement.partition("[")[0].partition("=")[0].partition(">")[0] for requirement in wanted}
    assert {"nats-py", "torchtitan", "gguf", "math-verify", "reasoning-gym", "verifiers"} <= names
    assert not {"pytest", "mypy", "ruff", "headrace"} & names


def test_tests_and_headers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    for folder in (
        "pandas/tests",
        "pandas/core",
        "torch/test",
        "torch/lib",
        "triton/backends/nvidia/lib",
        "numpy/tests",
    ):
        (tmp_path / folder).mkdir(parents=True)
    removed = {str(each.relative_to(tmp_path)) for each in image.unread(tmp_path, "cpu")}
    assert removed == {"pandas/tests", "torch/test", "triton/backends/nvidia/lib"}


def test_gpu_keeps_what_it_compiles_kernels_with(tmp_path: Path) -> None:
    for folder in ("torch/include", "triton/backends/nvidia/bin"):
        (tmp_path / folder).mkdir(parents=True)
    assert list(image.unread(tmp_path, "gpu")) == []


def test_command_names_its_choices() -> None:
    with pytest.raises(SystemExit, match=r"cpu\|gpu"):
        image.main(["tpu"])
