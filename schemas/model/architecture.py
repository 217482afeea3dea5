"""What a Hugging Face directory's config.json says of a model, as far as a run can train it and sample from it. Pure.

The only place that knows which models are supported: the check before a run starts and the model that the trainer
builds both go by it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec

from schemas.errors import ModelError

FAMILIES = {"LlamaForCausalLM": "llama", "Qwen3ForCausalLM": "qwen3", "Qwen3MoeForCausalLM": "qwen3_moe"}
"""Architectures that are supported, each with its ``model_type``."""
_Size = Annotated[int, msgspec.Meta(ge=1)]
_Positive = Annotated[float, msgspec.Meta(gt=0)]


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """Llama 3's stretching of the rotary frequencies."""

    factor: _Positive
    low_freq_factor: _Positive
    high_freq_factor: _Positive
    original_max_position_embeddings: _Size


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    """The experts of a mixture, of which a router chooses some for each token."""

    count: int
    per_token: int
    ffn_dim: int
    """Of one expert."""
    normalized: bool
    """Whether the shares of the chosen ones are scaled to add up to 1."""
    layers: tuple[int, ...]
    """Numbers of the layers that have them; the others are dense."""


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder: everything that its shape and its forward pass depend on."""

    name: str
    """As config.json names it: ``LlamaForCausalLM``."""
    model_type: str
    """``llama``, ``qwen3`` or ``qwen3_moe``."""
    vocabulary: int
    max_positions: int
    """Most tokens of a sequence."""
    dim: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_dim: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tied: bool
    """Whether embedding and output share one matrix."""
    experts: Experts | None = None

    @property
    def qwen(self) -> bool:
        """Whether queries and keys are normed by head, and rotated by halves of a head; Llama does neither."""
        return self.model_type != "llama"


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of config.json that are read; all others are ignored. Defaults are those of transformers."""

    architectures: list[str]
    model_type: str
    vocab_size: _Size
    hidden_size: _Size
    num_hidden_layers: _Size
    num_attention_heads: _Size
    intermediate_size: _Size
    rms_norm_eps: _Positive
    max_position_embeddings: _Size
    num_key_value_heads: _Size | None = None
    head_dim: _Size | None = None
    tie_word_embeddings: bool = False
    rope_theta: _Positive = 10000.0
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    """transformers 5 keeps theta and scaling together here."""
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    pretraining_tp: int | None = 1
    use_sliding_window: bool = False
    layer_types: list[str] | None = None
    quantization_config: Any = None
    num_experts: _Size | None = None
    num_local_experts: _Size | None = None
    """What transformers 5 calls ``num_experts``."""
    num_experts_per_tok: _Size | None = None
    moe_intermediate_size: _Size | None = None
    norm_topk_prob: bool = False
    decoder_sparse_step: _Size = 1
    mlp_only_layers: list[int] | None = None


def read_architecture(folder: Path) -> Architecture:
    """The architecture of the model in ``folder``.

    Raises ModelError where the directory or its config.json is missing or unreadable, and for a model that is not
    supported, naming what it has that is not.
    """
    path = folder / "config.json"
    raw = _read(folder, path)
    _check_family(path, raw)
    try:
        config = msgspec.convert(raw, _Config)
    except msgspec.ValidationError as error:
        raise ModelError(f"{path} is not usable ({error}): copy the model again") from None
    _refuse_variants(path, config)
    theta, scaling = _rope(path, config)
    return Architecture(
        name=config.architectures[0],
        model_type=config.model_type,
        vocabulary=config.vocab_size,
        max_positions=config.max_position_embeddings,
        dim=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads or config.num_attention_heads,
        head_dim=config.head_dim or config.hidden_size // config.num_attention_heads,
        ffn_dim=config.intermediate_size,
        norm_eps=config.rms_norm_eps,
        rope_theta=theta,
        rope_scaling=scaling,
        tied=config.tie_word_embeddings,
        experts=_experts(path, config) if config.model_type == "qwen3_moe" else None,
    )


def _read(folder: Path, path: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise ModelError(
            f"model directory {folder} does not exist: correct model.path, or make it with headrace model tiny {folder}"
        )
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist: model.path must be a Hugging Face model directory") from None
    except (OSError, msgspec.DecodeError) as error:
        raise ModelError(f"{path} is not a JSON object ({error}): copy the model again") from None


def _check_family(path: Path, raw: dict[str, Any]) -> None:
    """Generators go by the name of the architecture, transformers by the type: both must say the same."""
    named = raw.get("architectures")
    name = named[0] if isinstance(named, list) and named else None
    if not isinstance(name, str) or name not in FAMILIES:
        raise ModelError(f"{path} has architecture {name}: use a model with one of {', '.join(sorted(FAMILIES))}")
    if raw.get("model_type") != FAMILIES[name]:
        raise ModelError(
            f"{path} has model_type {raw.get('model_type')!r}, and {name} is {FAMILIES[name]!r}: copy the model again"
        )


def _refuse_variants(path: Path, config: _Config) -> None:
    """Raise ModelError for a variant whose forward pass would differ from the one that is built."""
    kinds = sorted(set(config.layer_types or ()) - {"full_attention"})
    variants = {
        f"hidden_act {config.hidden_act!r}": config.hidden_act != "silu",
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        f"pretraining_tp {config.pretraining_tp}": config.pretraining_tp not in (None, 1),
        "use_sliding_window": config.use_sliding_window,
        f"layers with {', '.join(kinds)}": bool(kinds),
        "quantization_config": config.quantization_config is not None,
    }
    for variant, found in variants.items():
        if found:
            raise ModelError(f"{path} has {variant}, which is not supported: use a model without it")
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if heads % (kv_heads or heads):
        raise ModelError(
            f"{path} has num_attention_heads {heads}, which num_key_value_heads {kv_heads} does not divide: "
            "copy the model again"
        )
    # The class of Qwen3 has defaults for these two that do not follow from its size.
    if config.model_type == "qwen3" and (config.head_dim is None or kv_heads is None):
        raise ModelError(f"{path} lacks head_dim or num_key_value_heads: write them out, as its authors do")
    if config.model_type == "qwen3_moe" and kv_heads is None:
        raise ModelError(f"{path} lacks num_key_value_heads: write it out, as its authors do")


def _rope(path: Path, config: _Config) -> tuple[float, RopeScaling | None]:
    rope = config.rope_parameters or {"rope_theta": config.rope_theta, **(config.rope_scaling or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "llama3") or (kind == "llama3" and config.model_type != "llama"):
        raise ModelError(
            f"{path} scales its rotary positions ({kind}): only plain positions and, for Llama, llama3 are supported, "
            "use another model"
        )
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError(f"{path} has partial_rotary_factor, which is not supported: use a model without it")
    try:
        theta = msgspec.convert(rope.get("rope_theta", config.rope_theta), _Positive)
        return theta, msgspec.convert(rope, RopeScaling) if kind == "llama3" else None
    except msgspec.ValidationError as error:
        raise ModelError(f"{path} has unusable rotary parameters ({error}): copy the model again") from None


def _experts(path: Path, config: _Config) -> Experts | None:
    count, step = config.num_experts or config.num_local_experts, config.decoder_sparse_step
    if count is None or config.num_experts_per_tok is None or config.moe_intermediate_size is None:
        raise ModelError(
            f"{path} lacks num_experts, num_experts_per_tok or moe_intermediate_size: write them out, as its authors do"
        )
    if config.num_experts_per_tok > count:
        raise ModelError(
            f"{path} has num_experts_per_tok {config.num_experts_per_tok} of {count} experts: copy the model again"
        )
    dense = set(config.mlp_only_layers or ())
    layers = tuple(i for i in range(config.num_hidden_layers) if i not in dense and (i + 1) % step == 0)
    if not layers:
        return None
    return Experts(
        count=count,
        per_token=config.num_experts_per_tok,
        ffn_dim=config.moe_intermediate_size,
        normalized=config.norm_topk_prob,
        layers=layers,
    )
