"""What a Hugging Face directory's config.json says of a model, as far as it can be trained here. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from schemas import ModelError

SUPPORTED = "Qwen3 and Llama, dense (model_type qwen3 or llama)"


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """Llama 3's stretching of the rotary frequencies."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder: everything that its shape and its forward pass depend on."""

    model_type: str
    """``qwen3`` or ``llama``."""
    vocabulary: int
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


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of config.json that are read; all others are ignored."""

    model_type: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    rms_norm_eps: float
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    tie_word_embeddings: bool = False
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    use_sliding_window: bool = False
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    """transformers 5 keeps theta and scaling together here."""
    quantization_config: dict[str, Any] | None = None


class _ModelType(msgspec.Struct, frozen=True, kw_only=True):
    model_type: str = "(none)"
    architectures: list[str] = []


def read_architecture(model_dir: Path) -> Architecture:
    """The architecture of the model in ``model_dir``.

    Raises ModelError where the directory or its config.json is missing or unreadable, and for a model
    that cannot be trained here, naming what it is and what can be.
    """
    path = model_dir / "config.json"
    if not model_dir.is_dir():
        raise ModelError(
            f"model directory {model_dir} does not exist: make it with `headrace model tiny {model_dir}`, "
            "or set model.path to a Hugging Face directory"
        )
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ModelError(
            f"{path} cannot be read ({error.strerror}): model.path needs a Hugging Face directory"
        ) from None
    try:
        kind = msgspec.json.decode(raw, type=_ModelType)
    except msgspec.DecodeError as error:
        raise ModelError(f"{path} is not a model configuration: {error}") from None
    if kind.model_type not in ("qwen3", "llama"):
        name = ", ".join(kind.architectures) or kind.model_type
        raise ModelError(f"{path} describes {name} (model_type {kind.model_type}); supported are {SUPPORTED}")
    try:
        config = msgspec.json.decode(raw, type=_Config)
    except msgspec.DecodeError as error:
        raise ModelError(f"{path} is not a usable {kind.model_type} configuration: {error}") from None
    _refuse_variants(path, config)
    theta, scaling = _rope(path, config)
    return Architecture(
        model_type=config.model_type,
        vocabulary=config.vocab_size,
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
    )


def _refuse_variants(path: Path, config: _Config) -> None:
    """Raise ModelError for a variant whose forward pass would differ from the one built here."""
    variants = {
        f"hidden_act {config.hidden_act}": config.hidden_act != "silu",
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "use_sliding_window": config.use_sliding_window,
        "quantization_config": config.quantization_config is not None,
        "num_attention_heads that num_key_value_heads does not divide": (
            config.num_attention_heads % (config.num_key_value_heads or config.num_attention_heads) != 0
        ),
    }
    for variant, found in variants.items():
        if found:
            raise ModelError(f"{path} has {variant}, which cannot be trained here; supported are {SUPPORTED}")


def _rope(path: Path, config: _Config) -> tuple[float, RopeScaling | None]:
    rope = config.rope_parameters or {"rope_theta": config.rope_theta, **(config.rope_scaling or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "llama3") or (kind == "llama3" and config.model_type != "llama"):
        raise ModelError(
            f"{path} scales rotary positions by {kind!r}; supported are 'default' and, for Llama, 'llama3'"
        )
    try:
        theta = msgspec.convert(rope.get("rope_theta", config.rope_theta), float)
        return theta, msgspec.convert(rope, RopeScaling) if kind == "llama3" else None
    except msgspec.ValidationError as error:
        raise ModelError(f"{path} has unusable rotary parameters: {error}") from None
