"""The torchtitan model computes what transformers computes, packed or not, and gives back what it was given."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load, load_file, save_file

from consumers.trainer.micro_batch import MicroBatch
from consumers.trainer.packing import Document, build_micro_batches, pack
from consumers.trainer.settings import TrainerSettings
from consumers.trainer.titan import Learner
from consumers.trainer.titan.model import build_config
from schemas import ModelError, WeightsError
from schemas.model import read_architecture
from tests.consumers.trainer.tiny_models import CONFIGS, VOCABULARY, make_model, sharded

SETTINGS = TrainerSettings(row_tokens=160, micro_batch_tokens=320)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: make_model(folder, name) for name in CONFIGS}


def learner(model_dir: Path, checkpoints: Path, *, temperature: float = 1.0, dtype: str = "float32") -> Learner:
    return Learner(
        model_dir,
        SETTINGS,
        temperature=temperature,
        dtype=dtype,  # type: ignore[arg-type]
        seed=0,
        steps=10,
        checkpoints=checkpoints,
    )


def whole_documents(lengths: list[int]) -> list[Document]:
    """Random documents of which all but the first token is trained."""
    random = np.random.default_rng(1)
    return [
        Document(
            tokens=random.integers(0, VOCABULARY, length).astype(np.int32),
            trained=[slice(1, length)],
            exact=False,
            logprobs=np.zeros(length - 1, np.float32),
            advantage=1.0,
        )
        for length in lengths
    ]


def transformers_logprobs(model_dir: Path, tokens: np.ndarray, temperature: float) -> np.ndarray:
    """float32 [T]: of each token given those before it, from a forward pass of this document alone; 0 for the first."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    ids = torch.from_numpy(tokens.astype(np.int64))
    with torch.no_grad():
        logprobs = torch.log_softmax(model(ids[None]).logits[0] / temperature, -1)
    return np.concatenate([[0], logprobs[:-1].gather(-1, ids[1:, None])[:, 0].numpy()]).astype(np.float32)


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("name", list(CONFIGS))
def test_packed_logprobs_are_those_of_each_document_alone(
    name: str, files: int, models: dict[str, Path], tmp_path: Path
) -> None:
    model = models[name] if files == 1 else sharded(models[name], tmp_path / "model", files)
    documents = whole_documents([20, 11, 9, 130])
    # Two documents to a row, and a row with padding; the last is longer than what llama3's positions are scaled from.
    (batch,) = build_micro_batches([[[0, 1], [2, 3]]], documents)
    found = learner(model, tmp_path / "checkpoints", temperature=0.8).logprobs(batch)
    expected = np.zeros_like(found)
    for r, row in enumerate([[0, 1], [2, 3]]):
        parts = [transformers_logprobs(model, documents[p].tokens, 0.8) for p in row]
        joined = np.concatenate(parts)
        expected[r, : len(joined)] = joined
    assert expected.min() < -3  # not a flat distribution: attention and positions matter
    np.testing.assert_allclose(found, expected, atol=5e-5)


@pytest.mark.parametrize("name", ["qwen3", "qwen3-moe"])
def test_packing_does_not_change_a_logprob(name: str, models: dict[str, Path], tmp_path: Path) -> None:
    documents = whole_documents([5, 17, 9, 30, 12, 3])
    policy = learner(models[name], tmp_path)
    packing = pack([len(d.tokens) for d in documents], row_tokens=64, micro_batch_tokens=64)
    packed = [policy.logprobs(batch) for batch in build_micro_batches(packing, documents)]
    for rows, logprobs in zip(packing, packed, strict=True):
        for r, row in enumerate(rows):
            start = 0
            for p in row:
                (alone,) = build_micro_batches([[[p]]], documents)
                n = len(documents[p].tokens)
                np.testing.assert_allclose(logprobs[r, start : start + n], policy.logprobs(alone)[0, :n], atol=2e-5)
                start += n


def test_only_trained_tokens_get_a_logprob(models: dict[str, Path], tmp_path: Path) -> None:
    (batch,) = build_micro_batches([[[0, 1]]], whole_documents([6, 5]))
    all_of_them = learner(models["qwen3"], tmp_path).logprobs(batch)
    fewer = batch.trained_RL & (np.arange(batch.trained_RL.shape[1]) % 2 == 1)
    some = MicroBatch(
        tokens_RL=batch.tokens_RL,
        positions_RL=batch.positions_RL,
        trained_RL=fewer,
        exact_RL=batch.exact_RL,
        advantages_RL=batch.advantages_RL,
        logprobs_RL=batch.logprobs_RL,
    )
    found = learner(models["qwen3"], tmp_path).logprobs(some)
    assert (found[~fewer] == 0).all()
    np.testing.assert_allclose(found[fewer], all_of_them[fewer], atol=1e-6)


@pytest.mark.parametrize("name", list(CONFIGS))
def test_export_is_bit_for_bit_what_was_loaded(name: str, models: dict[str, Path], tmp_path: Path) -> None:
    exported = load(learner(models[name], tmp_path).export())
    original = load_file(models[name] / "model.safetensors")
    assert exported.keys() == original.keys()
    assert all(torch.equal(exported[key], original[key]) for key in original)


def test_export_in_bfloat16_is_the_rounded_original(models: dict[str, Path], tmp_path: Path) -> None:
    exported = load(learner(models["llama"], tmp_path, dtype="bfloat16").export())
    original = load_file(models["llama"] / "model.safetensors")
    assert all(torch.equal(exported[key], original[key].bfloat16()) for key in original)


@pytest.mark.parametrize("name", list(CONFIGS))
def test_transformers_scores_an_export_the_same(name: str, models: dict[str, Path], tmp_path: Path) -> None:
    policy = learner(models[name], tmp_path)
    documents = whole_documents([20])
    (batch,) = build_micro_batches([[[0]]], documents)
    before = policy.logprobs(batch)
    for _ in range(2):  # the first step of the warm-up has a learning rate of next to nothing
        policy.step([batch])
    shutil.copytree(models[name], tmp_path / "exported")
    (tmp_path / "exported" / "model.safetensors").write_bytes(policy.export())
    expected = transformers_logprobs(tmp_path / "exported", documents[0].tokens, 1.0)
    found = policy.logprobs(batch)
    assert np.abs(found - before).max() > 1e-4
    np.testing.assert_allclose(found[0, :20], expected, atol=2e-5)


def test_every_weight_of_a_mixture_is_trained(models: dict[str, Path], tmp_path: Path) -> None:
    """Its routers too, and no state but its weights decides where a token goes."""
    policy = learner(models["qwen3-moe"], tmp_path)
    before = load(policy.export())
    (batch,) = build_micro_batches([[[0, 1]]], whole_documents([60, 60]))
    for _ in range(3):
        policy.step([batch])
    after, again = load(policy.export()), learner(models["qwen3-moe"], tmp_path / "again")
    assert [name for name in before if torch.equal(before[name], after[name])] == []
    (tmp_path / "model.safetensors").write_bytes(policy.export())
    again.load_weights(tmp_path)
    assert np.array_equal(again.logprobs(batch), policy.logprobs(batch))


def test_a_router_has_no_bias_that_balances_its_load(models: dict[str, Path]) -> None:
    """The published models have none, and a generator would not know it."""
    mixtures = [layer.moe for layer in build_config(read_architecture(models["qwen3-moe"]), max_positions=8).layers]
    assert [mixture.load_balance_coeff for mixture in mixtures] == [None, None]


def edited(model_dir: Path, folder: Path, **changes: object) -> Path:
    """A copy of ``model_dir`` with other values in its config.json."""
    shutil.copytree(model_dir, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def test_older_configurations_with_top_level_theta_are_read_the_same(models: dict[str, Path], tmp_path: Path) -> None:
    old = edited(models["qwen3"], tmp_path / "old", rope_theta=5000.0, rope_parameters=None)
    (batch,) = build_micro_batches([[[0]]], whole_documents([30]))
    expected = learner(models["qwen3"], tmp_path).logprobs(batch)
    assert np.array_equal(learner(old, tmp_path).logprobs(batch), expected)


def test_an_unfit_configuration_is_named(models: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has use_sliding_window, which is not supported"):
        learner(edited(models["qwen3"], tmp_path / "model", use_sliding_window=True), tmp_path / "checkpoints")


def test_a_directory_without_weights_is_named(models: dict[str, Path], tmp_path: Path) -> None:
    folder = edited(models["qwen3"], tmp_path / "model")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no model\.safetensors"):
        learner(folder, tmp_path)


def test_weights_that_do_not_fit_the_configuration_are_named(models: dict[str, Path], tmp_path: Path) -> None:
    wider = edited(models["qwen3"], tmp_path / "model", intermediate_size=128)
    with pytest.raises(ModelError, match=r"mlp\.down_proj\.weight of shape \[64, 96\], .* asks for \[64, 128\]"):
        learner(wider, tmp_path)


@pytest.mark.parametrize("damage", ["cut", "garbage", "lacking", "foreign"])
def test_weights_that_cannot_be_taken_leave_the_old_ones(damage: str, models: dict[str, Path], tmp_path: Path) -> None:
    policy = learner(models["qwen3"], tmp_path / "checkpoints")
    before = policy.export()
    path = tmp_path / "model.safetensors"
    weights = {key: value + 1 for key, value in load_file(models["qwen3"] / "model.safetensors").items()}
    if damage == "lacking":
        del weights["model.norm.weight"]
    elif damage == "foreign":
        weights["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(3)
    save_file(weights, path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-1000])
    elif damage == "garbage":
        path.write_bytes(b"not a safetensors file")
    with pytest.raises(WeightsError, match=str(tmp_path)):
        policy.load_weights(tmp_path)
    assert policy.export() == before
