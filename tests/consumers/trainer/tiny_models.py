"""Hugging Face directories with small random models, and documents to train them on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from consumers.trainer.packing import Document

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

# Each differs from the others in something that is read from config.json.
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 32, "tie_word_embeddings": True, "rms_norm_eps": 1e-4, "rope_parameters": _ROPE},
    "qwen3-untied": {"head_dim": 16, "tie_word_embeddings": False, "rms_norm_eps": 1e-6, "rope_parameters": _ROPE},
    "llama": {"tie_word_embeddings": True, "rms_norm_eps": 1e-5, "rope_parameters": _ROPE},
    "llama-untied": {"tie_word_embeddings": False, "rms_norm_eps": 1e-4, "rope_parameters": _ROPE},
    "llama-head-dim": {"head_dim": 32, "tie_word_embeddings": True, "rms_norm_eps": 1e-5, "rope_parameters": _ROPE},
    "llama-scaled": {"tie_word_embeddings": True, "rms_norm_eps": 1e-5, "rope_parameters": _LLAMA3_ROPE},
}


def make_model(folder: Path, name: str = "qwen3", seed: int = 0) -> Path:
    """A random model of CONFIGS in ``folder``/``name``, float32."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    if name.startswith("qwen3"):
        model = Qwen3ForCausalLM(Qwen3Config(**_SHAPE, **CONFIGS[name]))
    else:
        model = LlamaForCausalLM(LlamaConfig(**_SHAPE, **CONFIGS[name]))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms: ones would hide that they are mixed up
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(folder / name)
    return folder / name


def random_documents(count: int, *, shortest: int = 4, longest: int = 20, seed: int = 0) -> list[Document]:
    """Documents of random tokens, of which a random later part is trained."""
    random = np.random.default_rng(seed)
    documents = []
    for _ in range(count):
        length = int(random.integers(shortest, longest + 1))
        trained = np.arange(length) >= random.integers(1, length)
        documents.append(
            Document(
                tokens=random.integers(0, VOCABULARY, length).astype(np.int32),
                trained=trained,
                exact=trained & (np.arange(length) % 2 == 0),
                logprobs=np.where(trained, random.normal(-4.0, 0.3, length), 0.0).astype(np.float32),
                advantage=float(random.normal()),
            )
        )
    return documents
