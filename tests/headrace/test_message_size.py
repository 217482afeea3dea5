"""A server that takes no message as large as a rollout may be is named at the start, not by the first that is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bus import Address, connect
from headrace.config import load
from headrace.message_size import require_room_for_rollouts
from schemas import ConfigError
from tests.stand_in.open_server import open_server

DEMO = Path(__file__).resolve().parents[2] / "configs" / "demo.toml"


def test_the_server_s_limit_is_compared_with_the_longest_rollout(tmp_path: Path) -> None:
    short, long = load(DEMO), load(DEMO, ["generator.max_model_len=200000", "trainer.too_long=cut"])

    async def look(url: str) -> None:
        bus = await connect(Address(url), run="own", role="admin", id="a")
        try:
            require_room_for_rollouts(bus, short)
            with pytest.raises(ConfigError, match=r"max_model_len 200000 has up to 1622048 bytes, .* takes 1048576 in"):
                require_room_for_rollouts(bus, long)
        finally:
            await bus.close()

    with open_server(tmp_path / "own") as url:
        asyncio.run(look(url))
