"""An order of many things without a list of it: place ``i`` of a shuffle, in constant time and memory."""

from __future__ import annotations

import hashlib

ROUNDS = 4
"""Of the Feistel network; four make it a permutation that nobody tells from a random one."""


def shuffled(place: int, size: int, key: str) -> int:
    """Which of ``size`` things stands at ``place`` (0 to ``size`` - 1) of the order that ``key`` names.

    For each key a permutation: all places together hold each thing once. It is a Feistel network over the smallest
    even number of bits that holds ``size``, walked until it falls below ``size``: less than four steps on average.
    Source: Black and Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002.
    """
    assert 0 <= place < size
    half = ((size - 1).bit_length() + 1) // 2
    mask = (1 << half) - 1
    while True:
        left, right = place >> half, place & mask
        for turn in range(ROUNDS):
            digest = hashlib.blake2b(f"{key}:{turn}:{right}".encode(), digest_size=8).digest()
            left, right = right, left ^ int.from_bytes(digest, "big") & mask
        place = left << half | right
        if place < size:
            return place
