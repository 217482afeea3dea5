"""Small GGUF files for tests, as llama.cpp's converter writes them from a transformers model."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedModel

KINDS = {"LlamaForCausalLM": "llama", "Qwen3ForCausalLM": "qwen3", "Qwen3MoeForCausalLM": "qwen3moe"}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*SPECIAL, *sorted(ByteLevel.alphabet()), "ab", "abc"]
"""Every byte, and two merges."""
_NAMES = [
    (r"model\.embed_tokens", "token_embd"), (r"model\.norm", "output_norm"), ("lm_head", "output"),
    (r"model\.layers\.", "blk."), ("post_attention_layernorm", "ffn_norm"), ("input_layernorm", "attn_norm"),
    (r"self_attn\.([qk])_norm", r"attn_\1_norm"), (r"self_attn\.([qkv])_proj", r"attn_\1"),
    (r"self_attn\.o_proj", "attn_output"), (r"mlp\.gate\b", "ffn_gate_inp"), (r"mlp\.(\w+)_proj", r"ffn_\1"),
]  # fmt: skip


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    *,
    kind: str = "F32",
    values: dict[str, Any] | None = None,
    change: Callable[[dict[str, np.ndarray]], object] = lambda tensors: None,
) -> Path:
    """``kind``: of the matrices but a router's, which is always F32. ``values``: settings instead of the model's, None
    leaves one out.

    ``change`` may change the tensors, under GGUF's names, before they are written.
    """
    config = model.config
    architecture = KINDS[type(model).__name__]
    writer = GGUFWriter(path, architecture)
    for key, value in (_settings(config, architecture) | (values or {})).items():
        if value is not None and key != "general.architecture":
            _ADD[type(value)](writer, key, value)
    if values and "general.architecture" in values:
        writer.kv_data[0]["general.architecture"].value = values["general.architecture"]
    tensors = _tensors(model, architecture)
    change(tensors)
    for name, array in tensors.items():
        if array.ndim == 1 or kind == "F32" or "ffn_gate_inp" in name:
            writer.add_tensor(name, array)
        else:
            raw_kind = GGMLQuantizationType[kind]
            writer.add_tensor(name, quantize(array, raw_kind), raw_dtype=raw_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


_ADD: dict[type, Callable[[GGUFWriter, str, Any], None]] = {
    int: GGUFWriter.add_uint32, float: GGUFWriter.add_float32, str: GGUFWriter.add_string, list: GGUFWriter.add_array,
}  # fmt: skip


def _settings(config: Any, architecture: str) -> dict[str, Any]:
    own = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_parameters["rope_theta"],
        "rope.dimension_count": config.head_dim,
    }
    if architecture == "qwen3moe":
        own |= {"expert_count": config.num_experts, "expert_used_count": config.num_experts_per_tok,
                "expert_feed_forward_length": config.moe_intermediate_size}  # fmt: skip
    return {f"{architecture}.{key}": value for key, value in own.items()} | {
        "general.name": "Tiny",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)),
        "tokenizer.ggml.merges": ["a b", "ab c"],
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.chat_template": "{{ messages[0]['content'] }}",
    }


def _tensors(model: PreTrainedModel, architecture: str) -> dict[str, np.ndarray]:
    tensors: dict[str, np.ndarray] = {}
    config: Any = model.config
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = value.to(torch.float32).numpy()
        if name.endswith("mlp.experts.gate_up_proj"):  # transformers 5 keeps the experts stacked, and these two joined
            layer = name.split(".")[2]
            tensors[f"blk.{layer}.ffn_gate_exps.weight"], tensors[f"blk.{layer}.ffn_up_exps.weight"] = (
                np.ascontiguousarray(part) for part in np.split(array, 2, axis=1)
            )
        elif name.endswith("mlp.experts.down_proj"):
            tensors[f"blk.{name.split('.')[2]}.ffn_down_exps.weight"] = array
        else:
            for pattern, replacement in _NAMES:
                name = re.sub(pattern, replacement, name)
            heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
            if architecture == "llama" and (count := heads.get(name.split(".")[-2])):
                array = array.reshape(count, 2, array.shape[0] // count // 2, -1).swapaxes(1, 2).reshape(array.shape)
            tensors[name] = np.ascontiguousarray(array)
    return tensors
