"""Whether two texts mean the same number or formula: by math-verify, in a process of its own and in bounded time."""

from __future__ import annotations

import importlib.util
import re

from schemas import EnvironmentFault

from .worker import NoAnswer, shared_worker

PLAIN = re.compile(r"[+-]?\d+(\.\d+)?")
"""Numbers that need no library to be read."""
ANSWER_S = 15.0
"""The process bounds itself at less, except where a library computes without looking at signals."""


class Mathematics:
    """Compares texts; may be used from several threads."""

    def __init__(self) -> None:
        """Raises EnvironmentFault where math-verify is not installed."""
        if importlib.util.find_spec("math_verify") is None:
            raise EnvironmentFault(
                "numeric scoring needs the package math-verify, which is not installed: "
                "pip install 'headrace[environments]'"
            )
        self._worker = shared_worker("mathematics_worker.py")

    def equal(self, answer: str, reply: str) -> bool:
        """Whether ``reply``, a text that may hold more than that, ends in ``answer``, in whatever way it is written.

        False also where that could not be told within ANSWER_S. Raises EnvironmentFault where the process cannot run.
        """
        if PLAIN.fullmatch(reply) and PLAIN.fullmatch(answer):
            return float(answer) == float(reply)
        return self._ask([answer, reply]) is True

    def knows(self, answer: str) -> bool:
        """Whether ``answer`` is a number or a formula. Raises as ``equal``."""
        return PLAIN.fullmatch(answer) is not None or self._ask([answer]) is not None

    def _ask(self, texts: list[str]) -> bool | None:
        writable = [text.encode("utf-8", errors="replace").decode() for text in texts]  # a lone surrogate is not
        try:
            answer: bool | None = self._worker.ask(writable, within_s=ANSWER_S)
        except NoAnswer:
            return False
        return answer
