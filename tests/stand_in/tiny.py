"""A tiny Qwen3 with random weights, as a Hugging Face directory without a tokenizer."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 64


def make_tiny_model(folder: Path, seed: int) -> Qwen3ForCausalLM:
    """Write it to ``folder`` and return it; 0.6 M parameters, spread so that its next tokens are not alike."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
        max_position_embeddings=2048,
        initializer_range=0.1,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    model = Qwen3ForCausalLM(config).float().eval()
    model.save_pretrained(folder)
    return model
