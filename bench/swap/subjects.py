"""The models that are swapped, from tiny to half a billion parameters."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from headrace.models import make_model, make_tiny
from schemas import ModelSettings

SMOLLM2 = Path("models/smollm2-135m")
HALF_A_BILLION = {
    "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
    "num_key_value_heads": 2, "vocab_size": 151_936, "max_position_embeddings": 2048, "tie_word_embeddings": True,
}  # fmt: skip
"""Shapes of Qwen2.5-0.5B, as a Llama: 494 million parameters."""


class Subject(NamedTuple):
    """A model, and the load under which it is swapped."""

    name: str
    folder: Path
    dtype: str
    in_flight: int
    tokens: int
    """Of a request; in fact half of it to one and a half."""


def subject(name: str, root: Path) -> Subject:
    """``tiny``, ``135m`` or ``500m``; what has to be made is made in ``root``."""
    match name:
        case "tiny":
            make_tiny(root / "tiny")
            return Subject("demo, 0.6 M", root / "tiny", "float32", 64, 200)
        case "135m":
            settings = ModelSettings(path=str(SMOLLM2), make="smollm2-135m")
            make_model(settings, tokens=512, say=lambda text: print(text, flush=True))
            return Subject("SmolLM2, 135 M", SMOLLM2, "bfloat16", 16, 100)
        case "500m":
            _random_llama(root / "500m")
            return Subject("random, 494 M", root / "500m", "bfloat16", 8, 60)
    raise SystemExit(f"python -m bench.swap [tiny|135m|500m|prefix ...]: {name} is none of them")


def _random_llama(folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**HALF_A_BILLION)).to(torch.bfloat16)
    model.save_pretrained(folder)
