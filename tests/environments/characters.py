"""A tokenizer for tests: one token for each character of a small alphabet."""

from __future__ import annotations

from collections.abc import Sequence

from environments import Sample
from schemas import EnvironmentFault, Span

ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz+=:><! \n"
END_ID = len(ALPHABET)


class Characters:
    """Implements environments.Tokenizer."""

    end_id = END_ID
    chat_template = None
    chat_stop_ids = (END_ID,)

    def encode(self, text: str) -> list[int]:
        unknown = set(text) - set(ALPHABET)
        if unknown:
            raise EnvironmentFault(f"no token for {unknown}")
        return [ALPHABET.index(character) for character in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join("!" if id == END_ID else ALPHABET[id] for id in ids)


class Answering:
    """A sampler that returns prepared samples and keeps what it was asked."""

    def __init__(self, *samples: Sample) -> None:
        self.samples = list(samples)
        self.asked: list[tuple[list[int], int, list[int]]] = []

    async def sample(self, tokens: list[int], *, max_tokens: int, stop_ids: list[int]) -> Sample:
        self.asked.append((list(tokens), max_tokens, list(stop_ids)))
        return self.samples.pop(0)


def said(text: str, *, version: int = 0, ended: bool = True, cached: int = 0) -> Sample:
    """``text`` and the end token, all from one version."""
    tokens = Characters().encode(text) + [END_ID] * ended
    return Sample(
        tokens=tokens,
        logprobs=[-0.5] * len(tokens),
        spans=[Span(version, 0, len(tokens))],
        finish="stop" if ended else "length",
        cached=cached,
    )
