"""The picture of a run's evaluations."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.view import RunView
from schemas import Evaluated, RunError, Span
from tests import examples
from tests.headrace import recorded
from tests.logs import logged
from tools.curve import draw, main, points

PNG = b"\x89PNG\r\n"


def evaluated() -> list[Evaluated]:
    return [
        examples.evaluated(
            task=task, sample=0, version=version, reward=float(task < version), spans=[Span(version, 0, 4)]
        )
        for version in (0, 2, 4)
        for task in range(5)
    ]


def view() -> RunView:
    found = RunView("demo")
    for event in [*evaluated(), *recorded.events("demo", 3)]:
        found.apply(logged(event))
    return found


def test_points_are_the_versions_of_one_environment() -> None:
    scores = points(view().scores, None, None)
    assert [(score.version, score.reward and score.reward.mean) for score in scores] == [(0, 0.0), (2, 0.4), (4, 0.8)]
    assert [score.version for score in points(view().scores, "reverse", "exact")] == [0, 2, 4]


def test_what_was_not_evaluated_is_named() -> None:
    with pytest.raises(RunError, match=r"environment 'guess', metric None \(evaluated: reverse\)"):
        points(view().scores, "guess", None)
    with pytest.raises(RunError, match=r"none: set evaluation\.every_steps"):
        points([], None, None)


def test_a_picture_of_an_ended_run_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = recorded.make_run(tmp_path)
    recorded.add(folder, evaluated())
    png = tmp_path / "curve.png"
    assert main(["demo", str(png), "--dir", str(tmp_path)]) == 0
    assert png.read_bytes().startswith(PNG)
    assert main(["demo", str(png), "--dir", str(tmp_path), "--env", "guess"]) == 1
    assert "there is nothing to draw of environment 'guess'" in capsys.readouterr().err


def test_one_play_that_says_nothing_of_the_spread_can_be_drawn(tmp_path: Path) -> None:
    found = RunView("demo")
    found.apply(logged(examples.evaluated(reward=0.5)))
    draw(found, tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes().startswith(PNG)
