"""A prefix cache that behaves like vLLM's: whole blocks, found by salt and all tokens up to their end.

Its blocks hold real keys and values, so one computed under older weights gives wrong log-probabilities, as it
would on vLLM; and each knows the versions it was computed under, so a test can ask.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

BLOCK_TOKENS = 32


@dataclass(frozen=True)
class Block:
    versions: frozenset[int]
    """Weights under which its tokens' keys and values were computed."""
    kv: Tensor
    """[layers, 2, BLOCK_TOKENS, key-value heads, head dimension]"""


@dataclass(frozen=True)
class Read:
    """One request's use of the cache."""

    request: str
    salt: str
    version: int
    """Weights under which the request began."""
    block_versions: tuple[frozenset[int], ...]
    """Of the blocks it took, in order."""


class PrefixCache:
    """Keeps the most recently used blocks."""

    def __init__(self, max_blocks: int) -> None:
        self._blocks: OrderedDict[tuple[str, tuple[int, ...]], Block] = OrderedDict()
        self._max_blocks = max_blocks

    def find(self, salt: str, tokens: Sequence[int]) -> Iterator[Block]:
        """The longest run of blocks from the start of ``tokens`` that leaves at least one token to compute."""
        for end in range(BLOCK_TOKENS, len(tokens), BLOCK_TOKENS):
            key = (salt, tuple(tokens[:end]))
            block = self._blocks.get(key)
            if block is None:
                return
            self._blocks.move_to_end(key)
            yield block

    def keep(self, salt: str, tokens: Sequence[int], block: Block) -> None:
        """``block`` ends with the last of ``tokens``. The first to come stays."""
        self._blocks.setdefault((salt, tuple(tokens)), block)
        if len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)
