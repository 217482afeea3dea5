"""A process that compares formulas with math-verify: asked on standard input, answers on standard output, line by line.

Each request is a JSON array, ``[answer, reply]`` or ``[answer]``, and what is said to it ``true``, ``false`` or, where
``answer`` itself is neither a number nor a formula, ``null``. It is a process of its own because math-verify bounds its
time by signals, which only a main thread gets, and because some formulas take all memory or never end. It ends when
its standard input does.
"""

import contextlib
import json
import resource
import sys
from typing import Any

from math_verify import parse, verify

SECONDS = 3
"""For parsing each of the two, and for comparing them."""
MEMORY_BYTES = 2 << 30


def formulas(text: str) -> Any:
    """What math-verify finds in an answer, also where it is bare LaTeX without dollars around it."""
    ways = [text, f"\\boxed{{{text}}}"]
    # Of bare "x^2 + 1" only its last number would be found; of "50%" in LaTeX only the 50.
    latex = any(character.isalpha() or character in "\\^" for character in text)
    for way in reversed(ways) if latex else ways:
        found = parse(way, parsing_timeout=SECONDS)
        if found and not isinstance(found[0], str):
            return found
    return []


def compare(answer: str, reply: str | None = None) -> bool | None:
    expected = formulas(answer)
    if not expected:
        return None
    return reply is not None and verify(expected, parse(reply, parsing_timeout=SECONDS), timeout_seconds=SECONDS)


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    answers = sys.stdout
    sys.stdout = sys.stderr  # a library that prints must not be taken for an answer
    answers.write('"ready"\n')
    answers.flush()
    for line in sys.stdin:
        result: bool | None = False
        with contextlib.suppress(Exception):  # whatever sympy makes of a text: then it is no right answer
            result = compare(*json.loads(line))
        answers.write(json.dumps(result) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
