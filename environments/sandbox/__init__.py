"""A Python interpreter for programs that nobody trusts: a process for each, behind walls that the kernel keeps."""

from .interpreter import Interpreter, Isolation, Limits, Ran

__all__ = ["Interpreter", "Isolation", "Limits", "Ran"]
