"""A verifiers taskset of several turns with a tool that counts its calls in the rollout's state."""

from .taskset import CalculatorTaskset

__all__ = ["CalculatorTaskset"]
