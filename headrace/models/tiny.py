"""The demo's model: Qwen3 with 0.6 M parameters and a token for each character, ready for reinforcement learning."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from environments import load_environment, load_tokenizer
from schemas import EnvironmentSettings, ModelError

from .characters import SIZE, save_tokenizer
from .directory import new_directory

DEFAULT_ENVIRONMENTS = ("reverse", "guess")
WARM_UP_SEED = 1_000_003
"""Added to the model's seed, so that a run with the same seed meets other tasks than the warm-up showed."""
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "dtype": "float32",
    "vocab_size": SIZE,
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 384,
    "tie_word_embeddings": True,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.02,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 2,
}


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """What was made, and how able it is."""

    path: str
    parameters: int
    steps: int
    """Of the supervised warm-up."""
    likelihood: dict[str, float]
    """Environment to mean probability of sampling a whole demonstration; for ``reverse`` that is the exact match."""
    seconds: float


def make_tiny(
    folder: Path,
    *,
    seed: int = 0,
    environments: Sequence[str] = DEFAULT_ENVIRONMENTS,
    report: Callable[[str], None] = lambda text: None,
) -> Made:
    """Make the model in ``folder``, which must not exist yet. On one machine, the same seed gives the same bytes.

    Takes about 15 s and one thread. Raises ModelError where ``folder`` exists, EnvironmentFault for an unknown
    environment.
    """
    if not environments or len(set(environments)) < len(environments):
        raise ModelError(f"environments {list(environments)}: name at least one, and each once")
    played = {name: load_environment(EnvironmentSettings(name=name), seed=seed + WARM_UP_SEED) for name in environments}
    began = time.monotonic()
    with new_directory(folder) as aside:
        report("loading torch")
        import torch
        from safetensors.torch import save
        from transformers import Qwen3Config, Qwen3ForCausalLM

        from .warmup import warm_up

        save_tokenizer(aside)
        (aside / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "pad_token_id": 0}) + "\n")
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = Qwen3ForCausalLM(Qwen3Config(**CONFIG))  # type: ignore[no-untyped-call]
            done = warm_up(model, load_tokenizer(aside), played, seed=seed, report=report)
        model.config.save_pretrained(aside)
        # The head is the embedding; safetensors refuses to store one memory under two names.
        weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
        (aside / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
    return Made(
        path=str(folder),
        parameters=sum(tensor.numel() for tensor in weights.values()),
        steps=done.steps,
        likelihood=done.likelihood,
        seconds=time.monotonic() - began,
    )
