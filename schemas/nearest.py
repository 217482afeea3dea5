"""The known name that an unknown one was probably meant to be: for remedies in error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """`` (did you mean 'known'?)``, to be put behind ``name``; empty where none is like it."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
