"""What the ledger says, folded into what a trainer needs to know when it starts."""

from __future__ import annotations

from bus import Logged
from schemas import Closed, LogGap, Step, Term, Weights


class LedgerView:
    """State of the run as a function of its LEDGER, event by event.

    Raises LogGap from ``apply`` when steps do not follow one another.
    """

    def __init__(self) -> None:
        self.committed = 0
        self.step_sequences: dict[int, int] = {}
        """Step number to its position in LEDGER."""
        self.low_waters: dict[int, int] = {}
        """Step number to the low-water mark of ROLLOUTS that it recorded."""
        self.last_step: Step | None = None
        self.term: Term | None = None
        self.weights: Weights | None = None
        """The newest weights announced."""
        self.settled: set[int] = set()
        """Groups that were trained or closed."""
        self.closed_since_step: list[Closed] = []

    def apply(self, logged: Logged) -> None:
        """Take one message of LEDGER into account. Raises LogGap."""
        match logged.event:
            case Term() as term:
                self.term = term
            case Closed() as closed:
                self.settled.add(closed.group)
                self.closed_since_step.append(closed)
            case Weights() as weights:
                self.weights = weights
            case Step() as step:
                self._commit(step, logged.sequence)

    def _commit(self, step: Step, sequence: int) -> None:
        if step.number != self.committed + 1:
            raise LogGap(
                f"LEDGER has step {step.number} at sequence {sequence} after step {self.committed}: "
                "the ledger is damaged; restore it from a backup"
            )
        self.committed = step.number
        self.step_sequences[step.number] = sequence
        self.low_waters[step.number] = step.low_water
        self.last_step = step
        self.settled.update(group.group for group in step.groups)
        self.closed_since_step.clear()
