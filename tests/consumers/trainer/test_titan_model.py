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
from schemas import ModelError, WeightsError
from tests.consumers.trainer.tiny_models import CONFIGS, VOCABULARY, make_model

SETTINGS = TrainerSettings(row_tokens=64, micro_batch_tokens=256)


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
            trained=np.arange(length) > 0,
            exact=np.zeros(length, np.bool_),
            logprobs=np.zeros(length, np.float32),
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


@pytest.mark.parametrize("name", list(CONFIGS))
def test_packed_logprobs_are_those_of_each_document_alone(name: str, models: dict[str, Path], tmp_path: Path) -> None:
    documents = whole_documents([20, 11, 9, 30])
    # Two documents to a row, and a row with padding.
    (batch,) = build_micro_batches([[[0, 1], [2, 3]]], documents)
    assert batch.tokens_RL.shape == (2, 40)
    found = learner(models[name], tmp_path, temperature=0.8).logprobs(batch)
    expected = np.zeros_like(found)
    for r, row in enumerate([[0, 1], [2, 3]]):
        parts = [transformers_logprobs(models[name], documents[p].tokens, 0.8) for p in row]
        joined = np.concatenate(parts)
        expected[r, : len(joined)] = joined
    assert expected.min() < -3  # not a flat distribution: attention and positions matter
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_packing_does_not_change_a_logprob(models: dict[str, Path], tmp_path: Path) -> None:
    documents = whole_documents([5, 17, 9, 30, 12, 3])
    policy = learner(models["qwen3"], tmp_path)
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


def test_transformers_scores_an_export_the_same(models: dict[str, Path], tmp_path: Path) -> None:
    policy = learner(models["llama"], tmp_path)
    documents = whole_documents([20])
    (batch,) = build_micro_batches([[[0]]], documents)
    policy.step([batch])
    shutil.copytree(models["llama"], tmp_path / "exported")
    (tmp_path / "exported" / "model.safetensors").write_bytes(policy.export())
    expected = transformers_logprobs(tmp_path / "exported", documents[0].tokens, 1.0)
    np.testing.assert_allclose(policy.logprobs(batch)[0, :20], expected, atol=2e-5)


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]},
            "GPT2LMHeadModel .*supported are Qwen3",
        ),
        ({"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]}, "Qwen3MoeForCausalLM"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act gelu"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}}, "'yarn'"),
        ({"hidden_size": "wide"}, r"hidden_size"),
        ({"rms_norm_eps": None}, "rms_norm_eps"),
    ],
)
def test_an_unfit_configuration_is_named(
    changes: dict[str, object], message: str, models: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        learner(edited(models["qwen3"], tmp_path / "model", **changes), tmp_path / "checkpoints")


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere does not exist"):
        learner(tmp_path / "nowhere", tmp_path)


def test_a_directory_without_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        learner(tmp_path, tmp_path)


def test_a_configuration_that_is_not_json_is_named(models: dict[str, Path], tmp_path: Path) -> None:
    folder = edited(models["qwen3"], tmp_path / "model")
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json is not a model configuration"):
        learner(folder, tmp_path)


def test_a_directory_without_weights_is_named(models: dict[str, Path], tmp_path: Path) -> None:
    folder = edited(models["qwen3"], tmp_path / "model")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model\.safetensors does not exist"):
        learner(folder, tmp_path)


def test_weights_that_do_not_fit_the_configuration_are_named(models: dict[str, Path], tmp_path: Path) -> None:
    wider = edited(models["qwen3"], tmp_path / "model", intermediate_size=128)
    with pytest.raises(ModelError, match=r"mlp\.down_proj\.weight of shape \[64, 96\].* asks for \[64, 128\]"):
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


def test_weights_in_several_files_are_read(models: dict[str, Path], tmp_path: Path) -> None:
    folder = edited(models["llama"], tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    files = {f"model-0000{n + 1}-of-00002.safetensors": names[n::2] for n in range(2)}
    for file, members in files.items():
        save_file({name: weights[name] for name in members}, folder / file)
    index = {"weight_map": {name: file for file, members in files.items() for name in members}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert learner(folder, tmp_path).export() == learner(models["llama"], tmp_path).export()
