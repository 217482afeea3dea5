"""Two connections to the test's run: one that may publish anything, and one with a sink's permissions."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from bus import Bus


@pytest.fixture
async def writer(connect_as: Callable[..., Coroutine[Any, Any, Bus]]) -> Bus:
    return await connect_as("admin")


@pytest.fixture
async def sink(connect_as: Callable[..., Coroutine[Any, Any, Bus]]) -> Bus:
    return await connect_as("sink")
