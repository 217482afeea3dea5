"""Tests of what only an optional package can do."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(package: str) -> pytest.MarkDecorator:
    """Skip where ``package`` is not installed, which `make setup` says when it leaves it out."""
    reason = f"{package} is not installed: pip install -e '.[environments]' (it needs a C compiler)"
    return pytest.mark.skipif(find_spec(package) is None, reason=reason)
