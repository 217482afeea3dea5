"""Forward pass of a small Qwen3 or Llama in plain torch, over requests of different lengths with a KV cache each.

Shape legend: T new tokens of all requests together, N of one of them, C its tokens so far, L layers, H heads,
K key-value heads, D head dimension, V vocabulary.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu


class Cache:
    """Keys and values of one sequence."""

    def __init__(self, model: Model, max_tokens: int) -> None:
        self.kv_L2CKD = torch.empty(model.layers, 2, max_tokens, model.kv_heads, model.head_dim, dtype=model.dtype)
        self.length = 0


class Model:
    """A Hugging Face directory, loaded; ``load`` replaces its weights by others of the same shapes."""

    def __init__(self, folder: Path, dtype: str, max_tokens: int) -> None:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.layers: int = config["num_hidden_layers"]
        self.heads: int = config["num_attention_heads"]
        self.kv_heads: int = config["num_key_value_heads"]
        self.head_dim: int = config.get("head_dim") or config["hidden_size"] // self.heads
        self.eps: float = config["rms_norm_eps"]
        rope = config.get("rope_parameters") or config
        frequencies_D = rope["rope_theta"] ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        angles_CD = torch.outer(torch.arange(max_tokens).float(), frequencies_D.repeat(2))
        self.cos_CD, self.sin_CD = angles_CD.cos().to(self.dtype), angles_CD.sin().to(self.dtype)
        self.load(folder)

    def load(self, folder: Path) -> None:
        weights = {name: weight.to(self.dtype) for name, weight in load_file(folder / "model.safetensors").items()}
        weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
        self.weights: dict[str, Tensor] = weights

    @torch.inference_mode()
    def forward(self, new_tokens: list[list[int]], caches: list[Cache]) -> Tensor:
        """Append each request's new tokens to its cache; float32 [requests, V] logits after the last of each."""
        counts = [len(tokens) for tokens in new_tokens]
        starts = [cache.length for cache in caches]
        positions_T = torch.cat([torch.arange(s, s + n) for s, n in zip(starts, counts, strict=True)])
        cos_T1D, sin_T1D = self.cos_CD[positions_T, None], self.sin_CD[positions_T, None]
        ids_T = torch.tensor([token for tokens in new_tokens for token in tokens])
        x = embedding(ids_T, self.weights["model.embed_tokens.weight"])
        for layer in range(self.layers):
            name = f"model.layers.{layer}."
            x = x + self._attention(
                name, layer, self._norm(name + "input_layernorm", x), cos_T1D, sin_T1D, counts, caches
            )
            x = x + self._feed_forward(name + "mlp.", self._norm(name + "post_attention_layernorm", x))
        for cache, count in zip(caches, counts, strict=True):
            cache.length += count
        last = torch.tensor(counts).cumsum(0) - 1
        return linear(self._norm("model.norm", x[last]), self.weights["lm_head.weight"]).float()

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return rms_norm(x, (x.shape[-1],), self.weights[f"{name}.weight"], self.eps)

    def _project(self, name: str, x: Tensor) -> Tensor:
        return linear(x, self.weights[f"{name}.weight"])

    def _feed_forward(self, name: str, x: Tensor) -> Tensor:
        gated = silu(self._project(name + "gate_proj", x)) * self._project(name + "up_proj", x)
        return self._project(name + "down_proj", gated)

    def _attention(
        self, name: str, layer: int, x: Tensor, cos: Tensor, sin: Tensor, counts: list[int], caches: list[Cache]
    ) -> Tensor:
        name += "self_attn."
        q_THD = self._project(name + "q_proj", x).unflatten(-1, (self.heads, self.head_dim))
        k_TKD = self._project(name + "k_proj", x).unflatten(-1, (self.kv_heads, self.head_dim))
        v_TKD = self._project(name + "v_proj", x).unflatten(-1, (self.kv_heads, self.head_dim))
        if f"{name}q_norm.weight" in self.weights:  # Qwen3 has them, Llama has not
            q_THD, k_TKD = self._norm(name + "q_norm", q_THD), self._norm(name + "k_norm", k_TKD)
        q_THD, k_TKD = _rotated(q_THD, cos, sin), _rotated(k_TKD, cos, sin)
        outputs = []
        for q_NHD, k_NKD, v_NKD, cache in zip(
            q_THD.split(counts), k_TKD.split(counts), v_TKD.split(counts), caches, strict=True
        ):
            start, end = cache.length, cache.length + len(q_NHD)
            cache.kv_L2CKD[layer, 0, start:end] = k_NKD
            cache.kv_L2CKD[layer, 1, start:end] = v_NKD
            k_KCD, v_KCD = cache.kv_L2CKD[layer, :, :end].transpose(1, 2)
            mask_NC = None if len(q_NHD) == 1 else torch.ones(len(q_NHD), end, dtype=torch.bool).tril(start)
            out_HND = scaled_dot_product_attention(
                q_NHD.transpose(0, 1)[None], k_KCD[None], v_KCD[None], attn_mask=mask_NC, enable_gqa=True
            )[0]
            outputs.append(out_HND.transpose(0, 1).flatten(1))
        return self._project(name + "o_proj", torch.cat(outputs))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding, halves against each other as in transformers."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
