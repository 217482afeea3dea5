"""A Hugging Face directory from a GGUF file: configuration, tokenizer, and weights that are no longer quantized.

Weights are float32 where the file's matrices are float32 or half precision, so that nothing is lost, and otherwise
bfloat16, which is finer than any quantized kind.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas import ModelError
from schemas.model import WEIGHTS_FILE, own_tensors, read_architecture, tensor_shapes

from .gguf_file import FAMILIES, GgufFile
from .tensors import Entry, write_entries

Floats = npt.NDArray[np.float32]
_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"
_ROUTER = ".ffn_gate_inp.weight"
_NAMES = {
    _EMBEDDING: "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    _HEAD: "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
_EXPERTS = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.weight")


def convert_gguf(path: Path, folder: Path) -> None:
    """Write the model of the GGUF file ``path`` into ``folder``, which exists and is empty.

    Raises ModelError where the file is damaged, not supported, or lacks a part of the model.
    """
    file = GgufFile(path)
    dtype = "F32" if _exact(file) else "BF16"
    config = _config(file) | {"dtype": {"F32": "float32", "BF16": "bfloat16"}[dtype]}
    _write_json(folder / "config.json", config)
    ids: dict[str, Any] = {
        key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in config
    }
    _write_json(folder / "generation_config.json", ids)
    # The tensors' names before the tokenizer: that loads transformers, which takes seconds.
    entries = _entries(file, config, dtype)
    shapes = {name: entry.shape for name, entry in entries.items()}
    own_tensors(tensor_shapes(read_architecture(folder)), shapes, source=str(path))
    _write_tokenizer(path, folder)
    write_entries(folder / WEIGHTS_FILE, entries)


def _exact(file: GgufFile) -> bool:
    """Whether a matrix is float32 or half precision, a router aside: llama.cpp never quantizes those."""
    return any(
        tensor.tensor_type.name in ("F32", "F16")
        for name, tensor in file.tensors.items()
        if len(tensor.shape) > 1 and not name.endswith(_ROUTER)
    )


def _config(file: GgufFile) -> dict[str, Any]:
    """What config.json says. Raises ModelError where the file lacks something, or has heads of two sizes."""
    if _EMBEDDING not in file.tensors:
        raise ModelError(f"{file.path} lacks the tensor {_EMBEDDING}: copy it again")
    heads, dim = file.of_model("attention.head_count"), file.of_model("embedding_length")
    head_dim = file.of_model("attention.key_length", dim // heads)
    if {file.of_model(name, head_dim) for name in ("attention.value_length", "rope.dimension_count")} != {head_dim}:
        raise ModelError(f"{file.path} has heads of {head_dim} that are rotated in part, or values of another size: "
                         "use another model")  # fmt: skip
    config = {
        "architectures": [FAMILIES[file.architecture]],
        "model_type": {"qwen3moe": "qwen3_moe"}.get(file.architecture, file.architecture),
        # Not the number of tokens: some models have rows that no token uses.
        "vocab_size": int(file.tensors[_EMBEDDING].shape[1]),
        "hidden_size": dim,
        "intermediate_size": file.of_model("feed_forward_length"),
        "num_hidden_layers": file.of_model("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": file.of_model("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": file.of_model("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": file.of_model("context_length"),
        "rope_parameters": {"rope_type": "default", "rope_theta": file.of_model("rope.freq_base", 10000.0)},
        "tie_word_embeddings": _HEAD not in file.tensors,
    }
    if file.architecture == "qwen3moe":
        config |= {
            "num_experts": file.of_model("expert_count"),
            "num_experts_per_tok": file.of_model("expert_used_count"),
            "moe_intermediate_size": file.of_model("expert_feed_forward_length"),
            "norm_topk_prob": True,  # GGUF does not say: all published ones do, and llama.cpp takes it for granted
        }
    ids = {"bos": "bos_token_id", "eos": "eos_token_id", "pad": "padding_token_id"}
    named = {f"{short}_token_id": file.get(f"tokenizer.ggml.{name}") for short, name in ids.items()}
    return config | {key: value for key, value in named.items() if value is not None}


def _entries(file: GgufFile, config: dict[str, Any], dtype: str) -> dict[str, Entry]:
    """Name to what is written under it, for all tensors of the file. Raises ModelError for one that is unknown."""
    entries: dict[str, Entry] = {}
    for name, tensor in file.tensors.items():
        shape = tuple(int(size) for size in reversed(tensor.shape))
        layer = _LAYER.fullmatch(name)
        kind = layer[2] if layer else ""
        if name in _NAMES:
            entries[_NAMES[name]] = _entry(tensor, tensor.data, shape, dtype)
        elif layer and kind in _EXPERTS and len(shape) == 3:
            for expert in range(shape[0]):
                own = f"model.layers.{layer[1]}.mlp.experts.{expert}.{_EXPERTS[kind]}.weight"
                entries[own] = _entry(tensor, tensor.data[expert], shape[1:], dtype)
        elif layer and kind in _LAYER_NAMES:
            # llama.cpp pairs neighbours when it rotates a Llama's heads, Hugging Face the two halves.
            heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(kind)
            pairs = config[heads] if heads and file.architecture == "llama" else None
            entries[f"model.layers.{layer[1]}.{_LAYER_NAMES[kind]}.weight"] = _entry(
                tensor, tensor.data, shape, dtype, heads=pairs
            )
        else:
            raise ModelError(f"{file.path} has an unknown tensor {name}: use another model")
    return entries


def _entry(
    tensor: Any, data: npt.NDArray[Any], shape: tuple[int, ...], dtype: str, *, heads: int | None = None
) -> Entry:
    """``heads``: of a matrix whose rows lie in neighbouring pairs within a head, and must lie in halves."""

    def chunks() -> Iterable[bytes]:
        from gguf import dequantize

        try:
            values = dequantize(data, tensor.tensor_type).reshape(shape)
        except NotImplementedError:
            raise ModelError(
                f"{tensor.name} is of kind {tensor.tensor_type.name}, which cannot be read: take another quantization"
            ) from None
        if heads is not None:
            values = values.reshape(heads, shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(shape)
        yield (_bfloat16(values) if dtype == "BF16" else values.astype("<f4")).tobytes()

    return Entry(dtype=dtype, shape=shape, chunks=chunks)


def _bfloat16(values: Floats) -> npt.NDArray[np.uint16]:
    """The upper halves of float32, rounded to the nearest and to even; NumPy has no such type. No NaN may come."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    rounded: npt.NDArray[np.uint16] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    return rounded


def _write_tokenizer(path: Path, folder: Path) -> None:
    from transformers import AutoTokenizer

    try:
        with contextlib.redirect_stderr(io.StringIO()):  # its progress bars fill a log
            tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    except Exception as error:  # transformers raises what it likes for a tokenizer that it cannot rebuild
        raise ModelError(
            f"the tokenizer of {path} cannot be rebuilt ({error}): import the model's Hugging Face directory"
        ) from None
    tokenizer.save_pretrained(folder)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
