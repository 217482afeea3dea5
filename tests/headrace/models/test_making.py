"""The model that a configuration asks for."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.models import check_model, make_model, making
from schemas import ModelError, ModelSettings
from tests.headrace.models.model_folders import write_model


def test_model_that_is_there_is_only_checked(tmp_path: Path) -> None:
    said: list[str] = []
    summary = make_model(ModelSettings(path=str(write_model(tmp_path)), make="tiny"), say=said.append)
    assert summary == check_model(tmp_path)
    assert said == []


def test_unfit_model_is_not_made_anew(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json does not exist"):
        make_model(ModelSettings(path=str(tmp_path), make="tiny"), say=print)


def test_missing_model_that_nobody_makes_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"does not exist: correct model\.path, or make it"):
        make_model(ModelSettings(path=str(tmp_path / "none")), say=print)


def test_missing_model_is_made_by_the_command_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Importing stands in for the warm-up, which takes half a minute: the way to the command is the same.
    source = write_model(tmp_path / "source")
    monkeypatch.setitem(making.COMMANDS, "tiny", ["import", str(source)])
    said: list[str] = []
    summary = make_model(ModelSettings(path=str(tmp_path / "model"), make="tiny"), say=said.append)
    assert summary == check_model(tmp_path / "model")
    assert said == [f"{tmp_path}/model is missing: headrace model import {source} {tmp_path}/model"]


def test_who_makes_a_model_later_than_another_takes_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(making.COMMANDS, "tiny", ["import", str(write_model(tmp_path / "source"))])
    both_miss_it = threading.Barrier(2, timeout=60)

    def make() -> list[str]:
        said: list[str] = []

        def say(line: str) -> None:
            if not said:
                both_miss_it.wait()
            said.append(line)

        make_model(ModelSettings(path=str(tmp_path / "model"), make="tiny"), say=say)
        return said

    with ThreadPoolExecutor() as threads:
        told = [future.result() for future in [threads.submit(make) for _ in range(2)]]
    taken = f"{tmp_path}/model has been made by another process meanwhile: it is taken"
    assert sorted(said[-1] == taken for said in told) == [False, True]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "source"]


def test_command_that_fails_gives_its_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(making.COMMANDS, "tiny", ["import", str(tmp_path / "none")])
    with pytest.raises(ModelError, match=f"^model directory {tmp_path}/none does not exist"):
        make_model(ModelSettings(path=str(tmp_path / "model"), make="tiny"), say=lambda text: None)


def test_every_way_to_make_a_model_is_a_command() -> None:
    from headrace.models.fetching import PACKAGES

    assert set(making.COMMANDS) == {"tiny", *PACKAGES}
