"""The learning rate and weight decay of a learner's steps."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load

from consumers.trainer.titan import Learner
from tests.consumers.trainer.tiny_learner import TEMPERATURE, learner, micro_batches, settings
from tests.consumers.trainer.tiny_models import make_model, random_documents


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models"))


def test_learning_rate_rises_and_then_stays(model: Path, tmp_path: Path) -> None:
    policy = learner(model, tmp_path, warmup_steps=3)
    batches = micro_batches(random_documents(2))
    rates = [policy.step(batches)["lr"] for _ in range(13)]  # past the 10 steps that the learner was told
    assert rates[:2] == pytest.approx([1e-3 / 3, 2e-3 / 3])
    assert rates[2:] == [1e-3] * 11


@pytest.mark.parametrize(
    ("decay", "factors"),
    [
        # Of the 10 steps two warm up. Then (10 - step) / 8 is left after `step` more, and half of 1 + cos.
        ("linear", [0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]),
        ("cosine", [0.5, 1.0, 1.0, 0.96194, 0.853553, 0.691342, 0.5, 0.308658, 0.146447, 0.03806]),
    ],
)
def test_learning_rate_falls_until_the_run_s_last_step(
    decay: str, factors: list[float], model: Path, tmp_path: Path
) -> None:
    policy = learner(model, tmp_path, lr_decay=decay)
    batches = micro_batches(random_documents(2))
    rates = [policy.step(batches)["lr"] for _ in range(10)]
    assert rates == pytest.approx([1e-3 * factor for factor in factors], rel=1e-4)


def test_a_longer_run_has_its_own_decay_from_the_checkpoint_on(model: Path, tmp_path: Path) -> None:
    batches = micro_batches(random_documents(2))
    policy = learner(model, tmp_path, lr_decay="linear", warmup_steps=0)
    for _ in range(5):
        policy.step(batches)
    policy.save_checkpoint(5)
    longer = Learner(
        model,
        settings(lr_decay="linear", warmup_steps=0),
        temperature=TEMPERATURE,
        dtype="float32",
        seed=0,
        steps=20,
        checkpoints=tmp_path,
    )
    longer.load_checkpoint(5)
    assert longer.step(batches)["lr"] == pytest.approx(1e-3 * 15 / 20)
    assert policy.step(batches)["lr"] == pytest.approx(1e-3 * 5 / 10)


@pytest.mark.parametrize("steps", [1, 3, 4, 100])
def test_learning_rate_does_not_depend_on_the_length_of_the_run(steps: int, model: Path, tmp_path: Path) -> None:
    policy = Learner(
        model, settings(warmup_steps=3), temperature=1.0, dtype="float32", seed=0, steps=steps, checkpoints=tmp_path
    )
    batches = micro_batches(random_documents(2))
    assert [policy.step(batches)["lr"] for _ in range(5)] == pytest.approx([1e-3 / 3, 2e-3 / 3, *[1e-3] * 3])


def test_weight_decay_shrinks_what_the_gradient_leaves_alone(model: Path, tmp_path: Path) -> None:
    batches = micro_batches([msgspec.structs.replace(d, advantage=0.0) for d in random_documents(3)])
    policy = learner(model, tmp_path, weight_decay=0.5, warmup_steps=0)
    before = load(policy.export())
    policy.step(batches)
    for name, value in load(policy.export()).items():
        torch.testing.assert_close(value, before[name] * (1 - 1e-3 * 0.5))
