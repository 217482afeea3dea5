from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace import config as configuration
from headrace.engine import build_engine, check_engine
from schemas import ConfigError

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "configs" / "demo.toml"


@pytest.mark.parametrize("name", ["vlm", "", ":", "vllm:", "no.such_package:Engine", "a b:Engine", "tests..x:Engine"])
def test_engine_that_is_not_there_is_named_without_loading_any(name: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be loaded .*: use vllm, or module:Class"):
        check_engine(name)


@pytest.mark.parametrize("name", ["vllm", "tests.stand_in.engine:StandInEngine"])
def test_installed_engines_are_accepted(name: str) -> None:
    check_engine(name)


def test_engine_beside_the_working_directory_is_found_as_roles_find_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").touch()
    program = (
        "import sys; sys.path = [p for p in sys.path if p]; from headrace.engine import check_engine as c; c('mine:E')"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)


@pytest.mark.parametrize("name", ["os:path", "os:no_such", "headrace.no_such:Engine"])
def test_what_is_no_engine_class_is_a_configuration_error(name: str) -> None:
    config = configuration.load(DEMO, [f"generator.engine={name}"])
    with pytest.raises(ConfigError, match=r"generator\.engine"):
        build_engine(config)
