from __future__ import annotations

from tests.end_to_end.conftest import model

__all__ = ["model"]
