"""What counts as a checkpoint: whole, under its name, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from consumers.trainer import CheckpointDamaged, checkpoint_steps
from consumers.trainer.checkpoint_folder import KEEP_DAMAGED, CheckpointFolder
from tests.consumers.trainer.digest_learner import FILE, DigestLearner

ROOT = Path(__file__).parents[3]


def cut(folder: Path) -> None:
    (folder / FILE).write_bytes((folder / FILE).read_bytes()[:-1])


def flip(folder: Path, name: str = FILE) -> None:
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)


def flip_manifest(folder: Path) -> None:
    flip(folder, "manifest.json")


def cut_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_bytes((folder / "manifest.json").read_bytes()[:-5])


def lose(folder: Path) -> None:
    (folder / FILE).unlink()


def half_write(folder: Path) -> None:
    (folder / "manifest.json").unlink()


DAMAGES = [cut, flip, flip_manifest, cut_manifest, lose, half_write]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A folder with checkpoints 0, 2 and 4."""
    learner = DigestLearner(tmp_path, keep=9)
    for step in (0, 2, 4):
        learner.save_checkpoint(step)
    return tmp_path


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_damage_is_found_and_named(damage: Callable[[Path], None], path: Path) -> None:
    damage(path / "step-4")
    folder = CheckpointFolder(path)
    ((step, fault),) = folder.faults().items()
    assert step == 4
    assert f"{path}/step-4 is damaged" in str(fault)
    with pytest.raises(CheckpointDamaged):
        folder.verify(4)
    assert folder.verify(2) == path / "step-2"


def test_every_single_byte_counts(path: Path) -> None:
    for name in (FILE, "manifest.json"):
        whole = (path / "step-4" / name).read_bytes()
        for position in range(len(whole)):
            flipped = bytearray(whole)
            flipped[position] ^= 1 << position % 8
            (path / "step-4" / name).write_bytes(flipped)
            assert list(CheckpointFolder(path).faults()) == [4], (name, position)
        (path / "step-4" / name).write_bytes(whole)
    assert CheckpointFolder(path).faults() == {}


def test_what_is_set_aside_is_no_checkpoint_any_more(path: Path) -> None:
    folder = CheckpointFolder(path, keep=1)
    assert folder.set_aside(4) == path / "step-4.damaged"
    assert folder.steps() == checkpoint_steps(path) == [0, 2]
    assert folder.faults() == {}
    DigestLearner(path, keep=2).save_checkpoint(6)
    assert folder.steps() == [0, 2, 6], "it does not count among those that are kept"


def test_few_damaged_checkpoints_stay_and_the_newest_is_one_of_them(path: Path) -> None:
    learner = DigestLearner(path, keep=9)
    for step in (6, 8, 10, 12):
        learner.save_checkpoint(step)
    for step in (12, 10, 8, 6, 2):
        assert learner.set_checkpoint_aside(step).exists()
    damaged = sorted(each.name for each in path.glob("*.damaged"))
    assert damaged == ["step-12.damaged", "step-2.damaged"]
    assert len(damaged) == KEEP_DAMAGED
    learner.save_checkpoint(12)
    assert learner.set_checkpoint_aside(12).exists(), "it is not the first of its step"
    assert learner.checkpoints() == [0, 4]


def test_what_a_dead_process_was_writing_is_deleted_and_a_live_one_s_is_not(path: Path) -> None:
    program = """if True:
        import sys, time
        from pathlib import Path
        from consumers.trainer.checkpoint_folder import CheckpointFolder
        folder = CheckpointFolder(Path(sys.argv[1]))
        with folder.writing("other"):
            (folder.aside("other") / "step-6").mkdir()
            print("writing", flush=True)
            sys.stdin.read()
    """
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    assert other.stdout.readline() == b"writing\n"
    learner = DigestLearner(path, keep=9)
    learner.save_checkpoint(8)
    assert (path / ".aside" / "other" / "step-6").exists()
    other.kill()
    other.communicate()
    learner.save_checkpoint(10)
    assert not (path / ".aside").exists()
    assert learner.checkpoints() == [0, 2, 4, 8, 10]


def test_a_checkpoint_of_the_same_step_replaces_one_that_another_process_has_just_named(path: Path) -> None:
    first, second = CheckpointFolder(path), CheckpointFolder(path)
    with first.writing("first"), second.writing("second"):
        for folder, name in ((first, "first"), (second, "second")):
            shutil.copytree(path / "step-2", folder.aside(name) / "step-6")
            (folder.aside(name) / "step-6" / FILE).write_text(name)
            (folder.aside(name) / "step-6" / "manifest.json").unlink()
        first.publish("first", 6)
        second.publish("second", 6)
    assert (path / "step-6" / FILE).read_text() == "second"
    assert CheckpointFolder(path).faults() == {}


def test_links_are_replaced_and_pruned_but_never_what_they_lead_to(path: Path, tmp_path: Path) -> None:
    links = tmp_path / "links"
    links.mkdir()
    for step in (0, 2, 4):
        (links / f"step-{step}").symlink_to(path / f"step-{step}")
    learner = DigestLearner(links, keep=1)
    learner.save_checkpoint(4)
    learner.save_checkpoint(6)
    assert learner.checkpoints() == [0, 6]
    assert checkpoint_steps(path) == [0, 2, 4]
    assert CheckpointFolder(path).faults() == {}
