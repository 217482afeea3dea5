"""A torchtitan model of a Hugging Face architecture; its weights are in ``hf_weights.py``.

Shape legend: R rows, L columns, N trained tokens, D model dimension, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from schemas.model import Architecture

from . import device  # noqa: F401
from .attention import PackedAttention

# isort: split
from torchtitan.models.common import ComplexRoPE, CosSinRoPE, Embedding, Linear, RMSNorm, RoPE
from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config
from torchtitan.models.common.decoder import Decoder
from torchtitan.models.common.param_init import skip_param_init
from torchtitan.models.llama3 import Llama3Model, parallelize_llama
from torchtitan.models.llama3.model import Llama3TransformerBlock
from torchtitan.models.qwen3 import Qwen3Model, parallelize_qwen3
from torchtitan.models.qwen3.model import Qwen3TransformerBlock

from .execution import Execution
from .experts import moe_config
from .sharding import prepare, shard
from .world import World

# Every parameter is loaded from a file: nothing is initialized first.
_NO_INIT = {"weight": skip_param_init}


def build_config(architecture: Architecture, *, max_positions: int) -> Any:
    """The configuration that torchtitan builds the model from, with rotary tables of ``max_positions``."""
    a = architecture
    model, block = (Qwen3Model, Qwen3TransformerBlock) if a.qwen else (Llama3Model, Llama3TransformerBlock)
    return model.Config(
        dim=a.dim,
        vocab_size=a.vocabulary,
        enable_weight_tying=a.tied,
        tok_embeddings=Embedding.Config(num_embeddings=a.vocabulary, embedding_dim=a.dim, param_init=_NO_INIT),
        norm=_norm(a, a.dim),
        lm_head=Linear.Config(in_features=a.dim, out_features=a.vocabulary, param_init=_NO_INIT),
        layers=[_layer(block, a, _rope(a, max_positions), _feed_forward(a, layer)) for layer in range(a.layers)],
    )


def _layer(block: Any, a: Architecture, rope: RoPE.Config, feed_forward: dict[str, Any]) -> Any:
    return block.Config(
        attention_norm=_norm(a, a.dim),
        ffn_norm=_norm(a, a.dim),
        attention=make_gqa_config(
            dim=a.dim,
            n_heads=a.heads,
            n_kv_heads=a.kv_heads,
            head_dim=a.head_dim,
            wqkv_param_init=_NO_INIT,
            wo_param_init=_NO_INIT,
            inner_attention=PackedAttention.Config(),  # on a GPU replaced by prepare()
            fuse_qkv=True,
            rope=rope,
            qk_norm=_norm(a, a.head_dim) if a.qwen else None,
        ),
        **feed_forward,
    )


def _feed_forward(a: Architecture, layer: int) -> dict[str, Any]:
    """What follows the attention, under the name that a layer's configuration has for it."""
    if a.experts is not None and layer in a.experts.layers:
        return {"moe": moe_config(a.dim, a.experts)}
    dense = make_ffn_config(dim=a.dim, hidden_dim=a.ffn_dim, w1_param_init=_NO_INIT, w2w3_param_init=_NO_INIT)
    return {"feed_forward": dense}


def _norm(a: Architecture, size: int) -> Any:
    return RMSNorm.Config(normalized_shape=size, eps=a.norm_eps, param_init=_NO_INIT)


def _rope(a: Architecture, max_positions: int) -> Any:
    if a.qwen:
        return CosSinRoPE.Config(dim=a.head_dim, max_seq_len=max_positions, theta=a.rope_theta)
    if a.rope_scaling is None:
        return ComplexRoPE.Config(dim=a.head_dim, max_seq_len=max_positions, theta=a.rope_theta, scaling="none")
    return ComplexRoPE.Config(
        dim=a.head_dim,
        max_seq_len=max_positions,
        theta=a.rope_theta,
        scaling="llama",
        scaling_factor=a.rope_scaling.factor,
        low_freq_factor=a.rope_scaling.low_freq_factor,
        high_freq_factor=a.rope_scaling.high_freq_factor,
        original_max_position_embeddings=a.rope_scaling.original_max_position_embeddings,
    )


def build_model(config: Any, architecture: Architecture, world: World, execution: Execution) -> Decoder:
    """The model on the world's device, sharded over its ranks where there are several; its weights are undefined."""
    prepare(config, world)
    with torch.device("meta"):
        model = config.build()
    if world.sharded:
        model = shard(model, parallelize_qwen3 if architecture.qwen else parallelize_llama, world, execution)
    else:
        execution.apply(model)
    model.to_empty(device=world.device)
    with torch.no_grad():
        model.init_states(buffer_device=None)  # the rotary tables; see _NO_INIT
    model.train()
    return model


class TrainedLogits:
    """The model's logits, computed only where the next token is trained.

    Most tokens are prompts or padding, and the output matrix is a good part of a small model: the rows
    that are not needed are left out before it.
    """

    def __init__(self, model: Decoder) -> None:
        self._model = model
        self._sources_N = torch.empty(0, dtype=torch.int64)
        # A hook, because FSDP gathers the output matrix only for a call from within the model's forward.
        model.lm_head.register_forward_pre_hook(self._select)

    def __call__(
        self, tokens_RL: torch.Tensor, positions_RL: torch.Tensor, masks: Any, sources_N: torch.Tensor
    ) -> torch.Tensor:
        """[N, V] after the tokens at the flat indices ``sources_N`` (row * L + column)."""
        self._sources_N = sources_N
        logits: torch.Tensor = self._model(tokens_RL, attention_masks=masks, positions=positions_RL)
        return logits.full_tensor() if isinstance(logits, DTensor) else logits

    def _select(self, module: nn.Module, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        # Tensor parallelism divides the output matrix, not what goes into it.
        hidden = args[0].to_local() if isinstance(args[0], DTensor) else args[0]
        return (hidden.flatten(0, 1).index_select(0, self._sources_N),)
