"""The tiny model's tokenizer: one token for each character, saved as any Hugging Face tokenizer is."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

PAD, START, END, UNKNOWN = "<pad>", "<|im_start|>", "<|im_end|>", "<unk>"
CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz+=:>?<! \n-"
SIZE = 64
"""Vocabulary, filled up with tokens that no text has: a round size suits every engine."""


def character_tokenizer() -> tokenizers.Tokenizer:
    """SIZE tokens: padding, start, end, the characters, unknown, and fillers, in this order."""
    named = [PAD, START, END, *CHARACTERS, UNKNOWN]
    tokens = named + [f"<filler_{i}>" for i in range(SIZE - len(named))]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    any_character = tokenizers.Regex(r"[\s\S]")  # "." would leave out the newline
    tokenizer.pre_tokenizer = pre_tokenizers.Split(any_character, behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in (PAD, START, END, UNKNOWN)])
    return tokenizer


def save_tokenizer(folder: Path) -> None:
    """Write tokenizer.json and the tokenizer_config.json that ``AutoTokenizer`` goes by."""
    character_tokenizer().save(str(folder / "tokenizer.json"))
    # The class is named because AutoTokenizer would otherwise take the one that usually goes with the architecture.
    configuration = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "bos_token": None,
        "eos_token": END,
        "unk_token": UNKNOWN,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(configuration, indent=2) + "\n", encoding="utf-8")
