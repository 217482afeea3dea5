"""What commands print: text for people, JSON for programs."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
from rich.console import Console

PIPED_COLUMNS = 200
"""Width where nobody says how wide the place is; tables take only what they need."""


def console() -> Console:
    """Standard output; text is printed as it is, whatever it looks like."""
    return Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else PIPED_COLUMNS)


def print_json(value: Any) -> None:
    """One line of JSON."""
    print(msgspec.json.encode(value).decode())
