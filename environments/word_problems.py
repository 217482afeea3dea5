"""Problems in words with one whole number as the answer, that are easy with a calculator or a program."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

NAMES = ("Ada", "Ben", "Chidi", "Dana", "Elif", "Femi", "Goran", "Hana", "Iris", "Jonas")
THINGS = ("apples", "books", "coins", "marbles", "stamps", "tickets")


def word_problem(rng: random.Random, difficulty: int) -> tuple[str, int]:
    """A question and its answer. ``difficulty`` 1 to 3: more digits and, from 2 on, kinds that want a program."""
    kinds: list[Callable[[random.Random, int], tuple[str, int]]] = [_sum, _boxes, _change]
    if difficulty > 1:
        kinds += [_divisors, _digits, _remainder]
    return rng.choice(kinds)(rng, 10**difficulty)


def _sum(rng: random.Random, size: int) -> tuple[str, int]:
    a, b, c = (rng.randrange(size // 10, size * 10) for _ in range(3))
    return f"What is {a} * {b} + {c}?", a * b + c


def _boxes(rng: random.Random, size: int) -> tuple[str, int]:
    name, things = rng.choice(NAMES), rng.choice(THINGS)
    boxes, each, gone = rng.randrange(2, size), rng.randrange(2, size * 2), rng.randrange(1, 4)
    text = f"{name} has {boxes} boxes with {each} {things} in each, and gives {gone} {things} away."
    return f"{text} How many {things} are left?", boxes * each - gone


def _change(rng: random.Random, size: int) -> tuple[str, int]:
    name, things = rng.choice(NAMES), rng.choice(THINGS)
    count, price = rng.randrange(2, size), rng.randrange(2, size)
    paid = count * price + rng.randrange(1, size)
    text = f"{name} buys {count} {things} for {price} dollars each and pays with {paid} dollars."
    return f"{text} How many dollars does {name} get back?", paid - count * price


def _divisors(rng: random.Random, size: int) -> tuple[str, int]:
    number = rng.randrange(size, size * 10)
    return f"How many whole numbers divide {number} without a remainder?", sum(
        number % n == 0 for n in range(1, number + 1)
    )


def _digits(rng: random.Random, size: int) -> tuple[str, int]:
    base, power = rng.randrange(2, 20), rng.randrange(5, 10 + int(math.log10(size)) * 5)
    return f"What is the sum of the decimal digits of {base} to the power of {power}?", sum(map(int, str(base**power)))


def _remainder(rng: random.Random, size: int) -> tuple[str, int]:
    base, power, modulus = rng.randrange(2, size), rng.randrange(10, size), rng.randrange(3, size)
    return f"What is the remainder of {base} to the power of {power}, divided by {modulus}?", pow(base, power, modulus)
