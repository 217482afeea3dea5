"""Hugging Face directories with small random models, and documents to train them on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from consumers.trainer.packing import Document, runs_of

VOCABULARY = 64
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,  # large enough that attention, and so positions, matters
}
_ROPE = {"rope_type": "default", "rope_theta": 5000.0}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

_EXPERTS: dict[str, Any] = {
    "head_dim": 32, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "rope_parameters": _ROPE,
}  # fmt: skip

# Each differs from the others in something that is read from config.json.
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 32, "tie_word_embeddings": True, "rms_norm_eps": 1e-4, "rope_parameters": _ROPE},
    "qwen3-untied": {"head_dim": 16, "tie_word_embeddings": False, "rms_norm_eps": 1e-6, "rope_parameters": _ROPE},
    "llama": {"tie_word_embeddings": True, "rms_norm_eps": 1e-5, "rope_parameters": _ROPE},
    "llama-untied": {"tie_word_embeddings": False, "rms_norm_eps": 1e-4, "rope_parameters": _ROPE},
    "llama-head-dim": {"head_dim": 32, "tie_word_embeddings": True, "rms_norm_eps": 1e-5, "rope_parameters": _ROPE},
    "llama-scaled": {
        "head_dim": 32,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
        "rope_parameters": _LLAMA3_ROPE,
    },
    "llama-scaled-untied": {"tie_word_embeddings": False, "rms_norm_eps": 1e-6, "rope_parameters": _LLAMA3_ROPE},
    "qwen3-moe": _EXPERTS | {"tie_word_embeddings": False, "rms_norm_eps": 1e-6, "norm_topk_prob": True},
    "qwen3-moe-tied": _EXPERTS | {"tie_word_embeddings": True, "rms_norm_eps": 1e-4, "norm_topk_prob": False},
    "qwen3-moe-mixed": _EXPERTS | {"num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [1]},
}


def make_model(folder: Path, name: str = "qwen3", seed: int = 0) -> Path:
    """A random model of CONFIGS in ``folder``/``name``, float32."""
    import transformers

    torch.manual_seed(seed)
    family = "Qwen3Moe" if name.startswith("qwen3-moe") else "Qwen3" if name.startswith("qwen3") else "Llama"
    config = getattr(transformers, f"{family}Config")(**_SHAPE | CONFIGS[name])
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms: ones would hide that they are mixed up
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(folder / name)
    return folder / name


def sharded(model_dir: Path, folder: Path, files: int) -> Path:
    """A copy of ``model_dir`` with its weights in several files and an index."""
    shutil.copytree(model_dir, folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    members = {f"model-{n + 1:05}-of-{files:05}.safetensors": names[n::files] for n in range(files)}
    for file, own in members.items():
        save_file({name: weights[name] for name in own}, folder / file)
    index = {"metadata": {}, "weight_map": {name: file for file, own in members.items() for name in own}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def random_documents(count: int, *, shortest: int = 4, longest: int = 20, seed: int = 0) -> list[Document]:
    """Documents of random tokens, of which a random later part is trained; every other one is exact."""
    random = np.random.default_rng(seed)
    documents = []
    for number in range(count):
        length = int(random.integers(shortest, longest + 1))
        trained = np.arange(length) >= random.integers(1, length)
        documents.append(
            Document(
                tokens=random.integers(0, VOCABULARY, length).astype(np.int32),
                trained=runs_of(trained),
                exact=number % 2 == 0,
                logprobs=random.normal(-4.0, 0.3, length)[trained].astype(np.float32),
                advantage=float(random.normal()),
            )
        )
    return documents
