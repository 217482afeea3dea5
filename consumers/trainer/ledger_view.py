"""What the ledger says, folded into what a trainer needs to know when it starts."""

from __future__ import annotations

from bus import Logged
from schemas import Closed, LogGap, RunError, Step, Term, Weights


class LedgerView:
    """State of the run as a function of its LEDGER, message by message from the first one on.

    Raises LogGap from ``apply`` when messages are missing, or steps do not follow one another.
    """

    def __init__(self) -> None:
        self.sequence = 0
        """Of the last message that was applied."""
        self.committed = 0
        self.step_sequences: dict[int, int] = {}
        """Step number to its position in LEDGER."""
        self.low_waters: dict[int, int] = {}
        """Step number to the low-water mark of ROLLOUTS that it recorded."""
        self.last_step: Step | None = None
        self.term: Term | None = None
        self.first_weights: Weights | None = None
        """Weights 0: what the run started from."""
        self.weights: Weights | None = None
        """The newest weights announced."""
        self.settled: set[int] = set()
        """Groups that were trained or closed."""
        self.closed_since_step: list[Closed] = []

    def apply(self, logged: Logged) -> None:
        """Take one message of LEDGER into account. Raises LogGap, and RunError for one that no trainer has written."""
        if logged.sequence != self.sequence + 1:
            raise LogGap(
                f"LEDGER has no messages {self.sequence + 1} to {logged.sequence - 1}, and nothing purges it: "
                "restore it from a backup, or start a new run"
            )
        self.sequence = logged.sequence
        match logged.event:
            case None:
                raise _foreign(logged, logged.invalid or "it is no event")
            case Term() as term:
                self.term = term
            case Closed() as closed:
                self.settled.add(closed.group)
                self.closed_since_step.append(closed)
            case Weights() as weights:
                self._check_announced(weights, logged)
                self.weights = weights
                if weights.version == 0:
                    self.first_weights = weights
            case Step() as step:
                self._commit(step, logged.sequence)

    def _check_announced(self, weights: Weights, logged: Logged) -> None:
        again = self.weights is not None and self.weights.version >= weights.version
        if again or weights.version != self.committed:
            raise _foreign(
                logged, f"it announces weights {weights.version}{' again' * again} after step {self.committed}"
            )

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


def _foreign(logged: Logged, why: str) -> RunError:
    """Nothing can be decided on such a ledger: it has one writer, and whoever else wrote may have written more."""
    writer = logged.headers.get("ce-source", "unknown")
    return RunError(
        f"message {logged.sequence} of LEDGER (subject {logged.subject}, source {writer}) was written by no trainer of "
        f"this run: {why}. Find who has the trainer's credentials; restore the ledger from a backup, or start a new run"
    )
