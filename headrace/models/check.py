"""Whether a run can start from a model directory: told from its small files and the header of its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from environments import load_tokenizer
from schemas import ModelError

from .tensors import Tensor, read_header

ARCHITECTURES = {"Qwen3ForCausalLM": "qwen3", "LlamaForCausalLM": "llama"}
DTYPES = {"F32": "float32", "BF16": "bfloat16"}
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PLAIN: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "use_sliding_window": (False,),
    "hidden_act": ("silu",),
    "quantization_config": (None,),
    "pretraining_tp": (1,),
}
"""Settings of config.json that change the computation, and the values that trainer and generator both know."""
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class ModelSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a model directory holds."""

    path: str
    architecture: str
    parameters: int
    """Numbers in the weights file; a tied head is not in it."""
    dtype: str
    """Of the weights in the file: float32 or bfloat16."""
    layers: int
    dimension: int
    vocabulary: int
    max_length: int
    """Most tokens of a sequence."""
    tied: bool
    """Whether embedding and head are one matrix."""


def check_model(folder: Path) -> ModelSummary:
    """What ``folder`` holds. Raises ModelError, with the remedy, where a run cannot start from it."""
    folder = Path(folder)
    config = read_config(folder)
    check_tokenizer(folder, config)
    if not (folder / WEIGHTS).is_file() and (folder / INDEX).is_file():
        raise ModelError(f"the weights of {folder} are in several files: headrace model import {folder} DIR joins them")
    tensors = find_weights(folder)
    unfit = sorted({tensor.dtype for tensor in tensors.values()} - set(DTYPES))
    if unfit:
        remedy = f"headrace model import {folder} DIR makes them float32" if unfit == ["F16"] else "convert them"
        raise ModelError(f"weights of {folder} are {', '.join(unfit)}, not float32 or bfloat16: {remedy}")
    check_tensors(folder, config, tensors)
    return ModelSummary(
        path=str(folder),
        architecture=config["architectures"][0],
        parameters=sum(tensor.items for tensor in tensors.values()),
        dtype=DTYPES[tensors[EMBEDDING].dtype],
        layers=config["num_hidden_layers"],
        dimension=config["hidden_size"],
        vocabulary=config["vocab_size"],
        max_length=config["max_position_embeddings"],
        tied=is_tied(config),
    )


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a dense Qwen3 or Llama. Raises ModelError for a missing directory or another architecture."""
    if not folder.is_dir():
        raise ModelError(
            f"model directory {folder} does not exist: correct model.path, or make it with headrace model tiny {folder}"
        )
    path = folder / "config.json"
    try:
        config = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist: model.path must be a Hugging Face model directory") from None
    except (OSError, msgspec.DecodeError) as error:
        raise ModelError(f"{path} is not a JSON object ({error}): copy the model again") from None
    architecture = (config.get("architectures") or [None])[0]
    if architecture not in ARCHITECTURES:
        raise ModelError(
            f"{folder} has architecture {architecture}: use a model with {' or '.join(sorted(ARCHITECTURES))}"
        )
    _check_plain(path, config)
    return config


def _check_plain(path: Path, config: dict[str, Any]) -> None:
    for key, known in PLAIN.items():
        if key in config and config[key] not in known:
            raise ModelError(f"{path} has {key} = {config[key]!r}: only {known[0]!r} is supported, use another model")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise ModelError(f"{path} scales its positions ({kind}): only plain rotary positions are supported")
    for key in ("vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings"):
        if not isinstance(config.get(key), int):
            raise ModelError(f"{path} has no whole number {key}: copy the model again")


def check_tokenizer(folder: Path, config: dict[str, Any]) -> None:
    """Raises ModelError where the tokenizer is missing, has no end token, or has tokens that the model has not."""
    end_id = load_tokenizer(folder).end_id
    if end_id >= config["vocab_size"]:
        raise ModelError(
            f"{folder}: end token {end_id} is outside the model's vocabulary of {config['vocab_size']}: "
            "take tokenizer and weights from the same model"
        )


def find_weights(folder: Path) -> dict[str, Tensor]:
    """Name to tensor: of model.safetensors, or of all files that the index names."""
    if (folder / WEIGHTS).is_file():
        return read_header(folder / WEIGHTS)
    if not (folder / INDEX).is_file():
        other = sorted(path.name for pattern in ("*.bin", "*.pt", "*.gguf") for path in folder.glob(pattern))
        beside = f" (only {other[0]}, which is not safetensors)" if other else ""
        raise ModelError(f"{folder} has no {WEIGHTS}{beside}: save the model with safetensors")
    try:
        names = msgspec.json.decode((folder / INDEX).read_bytes(), type=dict[str, Any])["weight_map"]
        files = sorted(set(names.values()))
    except (msgspec.DecodeError, KeyError, AttributeError, TypeError) as error:
        raise ModelError(f"{folder / INDEX} is not an index of weights ({error!r}): copy the model again") from None
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= read_header(folder / Path(file).name)
    missing = sorted(set(names) - set(tensors))
    if missing:
        raise ModelError(
            f"{folder} lacks {len(missing)} tensors that its index names, {missing[0]} first: copy it again"
        )
    return tensors


def check_tensors(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Raises ModelError where the weights do not belong to the configuration."""
    shape = (config["vocab_size"], config["hidden_size"])
    layers = {name.split(".")[2] for name in tensors if name.startswith("model.layers.")}
    problem = ""
    if EMBEDDING not in tensors:
        problem = f"no {EMBEDDING}"
    elif tensors[EMBEDDING].shape != shape:
        problem = f"an embedding of shape {list(tensors[EMBEDDING].shape)}, not {list(shape)}"
    elif len(layers) != config["num_hidden_layers"]:
        problem = f"{len(layers)} layers, not {config['num_hidden_layers']}"
    elif not is_tied(config) and HEAD not in tensors:
        problem = f"no {HEAD}, although embedding and head are not tied"
    if problem:
        raise ModelError(f"the weights of {folder} have {problem}: take config.json and weights from the same model")


def is_tied(config: dict[str, Any]) -> bool:
    return bool(config.get("tie_word_embeddings", False))
