"""What is read from config.json, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from schemas import ModelError
from schemas.model import Architecture, Experts, RopeScaling, read_architecture

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
    "intermediate_size": 8192, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072, "rope_theta": 500000.0,
    "tie_word_embeddings": True, "rope_scaling": {
        "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3"},
}  # fmt: skip
"""As published: Llama 3.2 1B."""
QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 3072, "rms_norm_eps": 1e-6, "max_position_embeddings": 40960, "rope_theta": 1000000,
    "rope_scaling": None, "tie_word_embeddings": True, "attention_bias": False, "attention_dropout": 0.0,
    "hidden_act": "silu", "sliding_window": None, "use_sliding_window": False, "max_window_layers": 28,
}  # fmt: skip
"""As published: Qwen3 0.6B."""
MOE: dict[str, Any] = QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "intermediate_size": 6144, "tie_word_embeddings": False,
    "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "router_aux_loss_coef": 0.001, "output_router_logits": False,
}  # fmt: skip
"""As published: Qwen3 30B A3B."""


def read(folder: Path, config: dict[str, Any], **changes: Any) -> Architecture:
    (folder / "config.json").write_text(json.dumps(config | changes))
    return read_architecture(folder)


def test_llama_is_read_as_it_is_published(tmp_path: Path) -> None:
    assert read(tmp_path, LLAMA) == Architecture(
        name="LlamaForCausalLM", model_type="llama", vocabulary=128256, max_positions=131072, dim=2048, layers=16,
        heads=32, kv_heads=8, head_dim=64, ffn_dim=8192, norm_eps=1e-5, rope_theta=500000.0, tied=True,
        rope_scaling=RopeScaling(
            factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
        ),
    )  # fmt: skip


def test_a_mixture_is_read_as_it_is_published(tmp_path: Path) -> None:
    found = read(tmp_path, MOE)
    assert found.experts == Experts(count=128, per_token=8, ffn_dim=768, normalized=True, layers=tuple(range(48)))
    assert (found.qwen, found.head_dim, found.rope_theta, found.tied) == (True, 128, 1e6, False)


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({"num_hidden_layers": 6, "decoder_sparse_step": 2}, (1, 3, 5)),
        ({"num_hidden_layers": 4, "mlp_only_layers": [0, 3]}, (1, 2)),
        ({"num_hidden_layers": 4, "mlp_only_layers": [1], "decoder_sparse_step": 2}, (3,)),
        ({"num_hidden_layers": 4, "mlp_only_layers": None}, (0, 1, 2, 3)),
        ({"num_hidden_layers": 2, "decoder_sparse_step": 3}, None),
    ],
)
def test_layers_without_a_mixture_are_dense(
    changes: dict[str, Any], layers: tuple[int, ...] | None, tmp_path: Path
) -> None:
    experts = read(tmp_path, MOE, **changes).experts
    assert layers == (None if experts is None else experts.layers)


def test_number_of_experts_is_known_under_its_newer_name(tmp_path: Path) -> None:
    experts = read(tmp_path, {key: value for key, value in MOE.items() if key != "num_experts"}, num_local_experts=4,
                   num_experts_per_tok=4).experts  # fmt: skip
    assert experts is not None
    assert experts.count == 4


def test_newer_configurations_keep_the_rotary_settings_together(tmp_path: Path) -> None:
    newer = read(tmp_path, LLAMA, rope_theta=1.0, rope_scaling=None,
                 rope_parameters={"rope_theta": 500000.0, **LLAMA["rope_scaling"]})  # fmt: skip
    assert newer == read(tmp_path, LLAMA)


def test_sizes_that_llama_may_leave_out_follow_from_the_others(tmp_path: Path) -> None:
    left_out = {key: value for key, value in LLAMA.items() if key not in ("head_dim", "num_key_value_heads")}
    found = read(tmp_path, left_out)
    assert (found.head_dim, found.kv_heads) == (64, 32)


UNFIT: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (QWEN3, {"architectures": ["GPT2LMHeadModel"]}, "architecture GPT2LMHeadModel: use a model with one of Llama"),
    (QWEN3, {"architectures": []}, "has architecture None"),
    (QWEN3, {"architectures": "Qwen3ForCausalLM"}, "has architecture None"),
    (QWEN3, {"architectures": [["Qwen3ForCausalLM"]]}, "has architecture"),
    (QWEN3, {"architectures": ["Qwen3ForSequenceClassification"]}, "has architecture Qwen3ForSequenceClassification"),
    (QWEN3, {"model_type": "llama"}, "has model_type 'llama', and Qwen3ForCausalLM is 'qwen3'"),
    (QWEN3, {"attention_bias": True}, "has attention_bias, which is not supported: use a model without it"),
    (LLAMA, {"mlp_bias": True}, "has mlp_bias"),
    (LLAMA, {"pretraining_tp": 2}, "has pretraining_tp 2"),
    (QWEN3, {"hidden_act": "gelu"}, "has hidden_act 'gelu'"),
    (QWEN3, {"use_sliding_window": True}, "has use_sliding_window"),
    (QWEN3, {"layer_types": ["full_attention", "sliding_attention"]}, "has layers with sliding_attention"),
    (QWEN3, {"quantization_config": {"quant_method": "fp8"}}, "has quantization_config"),
    (QWEN3, {"num_key_value_heads": 3}, "num_attention_heads 16, which num_key_value_heads 3 does not divide"),
    (QWEN3, {"head_dim": None}, "lacks head_dim or num_key_value_heads"),
    (MOE, {"num_key_value_heads": None}, "lacks num_key_value_heads"),
    (QWEN3, {"hidden_size": "wide"}, "is not usable (Expected `int`, got `str` - at `$.hidden_size`)"),
    (QWEN3, {"hidden_size": 0}, "$.hidden_size"),
    (QWEN3, {"rms_norm_eps": None}, "$.rms_norm_eps"),
    (QWEN3, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "scales its rotary positions (yarn)"),
    (QWEN3, {"rope_scaling": {"type": "linear", "factor": 4.0}}, "scales its rotary positions (linear)"),
    (QWEN3, {"rope_scaling": LLAMA["rope_scaling"]}, "scales its rotary positions (llama3)"),
    (QWEN3, {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "has partial_rotary_factor"),
    (LLAMA, {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "has unusable rotary parameters"),
    (LLAMA, {"rope_theta": 0}, "$.rope_theta"),
    (MOE, {"num_experts": None}, "lacks num_experts, num_experts_per_tok or moe_intermediate_size"),
    (MOE, {"num_experts_per_tok": 200}, "has num_experts_per_tok 200 of 128 experts"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "changes", "problem"), UNFIT, ids=[problem for *_, problem in UNFIT])
def test_what_is_not_supported_is_named(
    config: dict[str, Any], changes: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError) as caught:
        read(tmp_path, config, **changes)
    assert problem in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "config.json"))
    assert len(str(caught.value).splitlines()) == 1


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none does not exist: correct model\.path, or make it with headrace model"):
        read_architecture(tmp_path / "none")
    with pytest.raises(ModelError, match=r"config\.json does not exist: model\.path must be a Hugging Face"):
        read_architecture(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"vocab_size": 1', "\udcff"])
def test_what_is_no_json_object_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelError, match=r"config\.json is not a JSON object .*: copy the model again"):
        read_architecture(tmp_path)
