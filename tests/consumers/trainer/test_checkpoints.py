"""A learner's checkpoints are whole, or are not there; what they restore is what was saved."""

from __future__ import annotations

import errno
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from consumers.trainer import CheckpointUnusable
from consumers.trainer.checkpoint_folder import CheckpointNotWritten
from tests.consumers.trainer.tiny_learner import learner, micro_batches
from tests.consumers.trainer.tiny_models import make_model, random_documents
from tests.disks import fill, mounted
from tests.waiting import until


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models"))


def test_kl_is_still_to_the_start_after_a_checkpoint(model: Path, tmp_path: Path) -> None:
    batches = micro_batches(random_documents(10))
    policy = learner(model, tmp_path, kl_coef=0.5)
    for _ in range(2):
        policy.step(batches)
    policy.save_checkpoint(2)
    expected = policy.step(batches)
    assert expected["kl_start"] > 0
    restored = learner(model, tmp_path, kl_coef=0.5)
    restored.load_checkpoint(2)
    assert restored.step(batches) == expected
    assert restored.export() == policy.export()


def test_a_checkpoint_restores_model_optimizer_schedule_and_random_state(model: Path, tmp_path: Path) -> None:
    batches = [micro_batches(random_documents(10, seed=seed)) for seed in range(4)]
    original = learner(model, tmp_path, warmup_steps=4)
    for step in range(2):
        original.step(batches[step])
    original.save_checkpoint(2)
    expected_random = torch.rand(4)
    expected = [original.step(batches[step]) for step in (2, 3)]

    restored = learner(model, tmp_path, warmup_steps=4, seed=9)
    assert restored.checkpoints() == [2]
    restored.load_checkpoint(2)
    assert torch.equal(torch.rand(4), expected_random)
    assert [restored.step(batches[step]) for step in (2, 3)] == expected
    assert restored.export() == original.export()


def test_a_checkpoint_made_while_training_goes_on_is_of_its_step(model: Path, tmp_path: Path) -> None:
    batches = [micro_batches(random_documents(10, seed=seed)) for seed in range(3)]
    original = learner(model, tmp_path, warmup_steps=4)
    original.step(batches[0])
    make = original.begin_checkpoint(1)
    assert original.checkpoints() == [], "nothing has its name before it is complete"
    expected_random = torch.rand(4)
    expected = [original.step(batches[step]) for step in (1, 2)]
    make()
    restored = learner(model, tmp_path, warmup_steps=4, seed=9)
    assert restored.checkpoints() == [1]
    restored.load_checkpoint(1)
    assert torch.equal(torch.rand(4), expected_random)
    assert [restored.step(batches[step]) for step in (1, 2)] == expected
    assert restored.export() == original.export()


def test_checkpoint_0_restores_the_start_whole(model: Path, tmp_path: Path) -> None:
    batches = micro_batches(random_documents(10))
    policy = learner(model, tmp_path)
    start = policy.export()
    policy.save_checkpoint(0)
    assert policy.export() == start
    first = policy.step(batches), policy.export()
    policy.step(batches)
    policy.load_checkpoint(0)
    assert policy.export() == start
    assert (policy.step(batches), policy.export()) == first


def test_checkpoint_0_does_not_count_as_a_step(model: Path, tmp_path: Path) -> None:
    batches = [micro_batches(random_documents(10, seed=seed)) for seed in range(2)]
    plain, saved = learner(model, tmp_path / "none"), learner(model, tmp_path / "some")
    saved.save_checkpoint(0)
    for batch in batches:
        assert saved.step(batch) == plain.step(batch)
        assert saved.export() == plain.export()


def test_settings_that_changed_since_a_checkpoint_count_as_they_are_now(model: Path, tmp_path: Path) -> None:
    batches = micro_batches(random_documents(10))
    policy = learner(model, tmp_path)
    policy.step(batches)
    policy.save_checkpoint(1)
    changed = learner(model, tmp_path, lr=1e-9, weight_decay=0.5, betas=(0.5, 0.6))
    changed.load_checkpoint(1)
    assert changed.step(batches)["lr"] == pytest.approx(1e-9)
    before, after = load(policy.export()), load(changed.export())
    assert max(float((after[name] - before[name]).abs().max()) for name in before) < 1e-7
    (group,) = changed._optimizer.containers[0].optimizers[0].param_groups
    assert (group["betas"], group["weight_decay"]) == ((0.5, 0.6), 0.5)


def test_loaded_weights_leave_the_optimizer_alone(model: Path, tmp_path: Path) -> None:
    batches = micro_batches(random_documents(10))
    policy, other = learner(model, tmp_path), learner(model, tmp_path)
    for either in (policy, other):
        either.step(batches)
    (tmp_path / "model.safetensors").write_bytes(policy.export())
    other.load_weights(tmp_path)
    assert other.export() == policy.export()
    policy.step(batches)
    other.step(batches)
    assert other.export() == policy.export()
    # and the parameters do come from the file
    other.load_weights(model)
    assert other.export() == learner(model, tmp_path).export()


def test_checkpoints_beyond_the_newest_go_but_checkpoint_0_stays(model: Path, tmp_path: Path) -> None:
    policy = learner(model, tmp_path / "kept", keep_checkpoints=2)
    for step in (0, 2, 4, 6):
        policy.save_checkpoint(step)
    assert policy.checkpoints() == [0, 4, 6]
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["step-0", "step-4", "step-6"]


def test_a_checkpoint_can_be_made_again(model: Path, tmp_path: Path) -> None:
    policy = learner(model, tmp_path)
    policy.save_checkpoint(1)
    policy.step(micro_batches(random_documents(4)))
    policy.save_checkpoint(1)
    after = policy.export()
    fresh = learner(model, tmp_path)
    fresh.load_checkpoint(1)
    assert fresh.export() == after


def test_an_interrupted_checkpoint_is_not_there(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = learner(model, tmp_path)
    policy.save_checkpoint(1)

    def interrupt(_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("consumers.trainer.checkpoint_folder._write_manifest", interrupt)
        with pytest.raises(KeyboardInterrupt):
            policy.save_checkpoint(2)
    assert policy.checkpoints() == [1]
    with pytest.raises(CheckpointUnusable, match=r"no checkpoint .*step-2: complete ones are of steps \[1\]"):
        policy.load_checkpoint(2)
    policy.save_checkpoint(2)
    assert policy.checkpoints() == [1, 2]
    policy.load_checkpoint(2)


def test_a_full_disk_is_waited_for_until_there_is_room(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with mounted(tmp_path / "disk", 8) as disk:
        policy = learner(model, disk / "checkpoints")
        policy.save_checkpoint(1)
        ballast = fill(disk)
        make = policy.begin_checkpoint(2)
        with ThreadPoolExecutor() as beside:
            made = beside.submit(make)
            until(lambda: "checkpoint 2 does not fit on the disk" in caplog.text)
            assert policy.checkpoints() == [1]
            ballast.unlink()
            made.result(30)
        assert policy.checkpoints() == [1, 2]
        policy.load_checkpoint(2)


def test_a_disk_that_refuses_for_another_reason_is_an_error_with_its_words(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = learner(model, tmp_path)

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("consumers.trainer.checkpoint_folder._write_manifest", refuse)
    with pytest.raises(CheckpointNotWritten, match=r"checkpoint 1 cannot be written to .*Input/output error"):
        policy.save_checkpoint(1)
    assert policy.checkpoints() == []


@pytest.mark.parametrize("damage", ["cut", "flipped", "lost", "manifest"])
def test_a_damaged_checkpoint_is_named_and_touches_nothing(damage: str, model: Path, tmp_path: Path) -> None:
    policy = learner(model, tmp_path)
    policy.save_checkpoint(1)
    policy.step(micro_batches(random_documents(4)))
    before = policy.export()
    folder = tmp_path / "step-1"
    largest = max(folder.iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    if damage == "cut":
        largest.write_bytes(content[:-1])
    elif damage == "flipped":
        content[len(content) // 2] ^= 1
        largest.write_bytes(content)
    elif damage == "lost":
        largest.unlink()
    else:
        (folder / "manifest.json").write_text("{")
    with pytest.raises(CheckpointUnusable, match=r"step-1 is damaged \(.*\): an older one serves"):
        policy.load_checkpoint(1)
    assert policy.export() == before


def test_a_checkpoint_of_another_model_is_refused(model: Path, tmp_path: Path) -> None:
    learner(model, tmp_path).save_checkpoint(1)
    other = make_model(tmp_path, "llama")
    with pytest.raises(CheckpointUnusable, match="step-1 is not of this model"):
        learner(other, tmp_path).load_checkpoint(1)


def test_a_checkpoint_moved_elsewhere_still_loads(model: Path, tmp_path: Path) -> None:
    original = learner(model, tmp_path / "here")
    original.step(micro_batches(random_documents(4)))
    original.save_checkpoint(1)
    shutil.move(tmp_path / "here", tmp_path / "there")
    moved = learner(model, tmp_path / "there")
    moved.load_checkpoint(1)
    assert moved.export() == original.export()
