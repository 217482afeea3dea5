"""Model directories for tests: complete and small, written without an engine."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from headrace.models.characters import SIZE, save_tokenizer
from schemas.model import read_architecture, tensor_shapes

Arrays = dict[str, npt.NDArray[Any]]
DIMENSION, LAYERS = 4, 2
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": SIZE,
    "hidden_size": DIMENSION,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 2,
    "intermediate_size": 6,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "hidden_act": "silu",
}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False}
MOE = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 3, "num_experts_per_tok": 2,
    "moe_intermediate_size": 5,
}  # fmt: skip
"""What a directory of another family has in CONFIG's place."""


def weights(dtype: Any = np.float32, *, head: bool = False, **config: Any) -> Arrays:
    """All tensors of the model that ``config`` makes of CONFIG; ``head``: with a copy of a tied one."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG | config), encoding="utf-8")
        shapes = tensor_shapes(read_architecture(Path(folder)))
    if head:
        shapes["lm_head.weight"] = (SIZE, DIMENSION)
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def write_model(folder: Path, arrays: Arrays | None = None, **config: Any) -> Path:
    """A directory that passes every check; ``config`` replaces settings of config.json, None removes one."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {key: value for key, value in (CONFIG | config).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "generation_config.json").write_text('{"eos_token_id": 2}', encoding="utf-8")
    save_tokenizer(folder)
    save_file(weights() if arrays is None else arrays, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def split_weights(folder: Path) -> None:
    """Two files and an index in place of the one."""
    arrays = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(arrays)
    weight_map = {}
    for number, part in enumerate((names[:2], names[2:]), start=1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: arrays[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")
