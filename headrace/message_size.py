"""Whether a run's rollouts fit into one message of its server."""

from __future__ import annotations

from bus import Bus
from schemas import ConfigError

from .config import RunConfig, largest_rollout_bytes


def require_room_for_rollouts(bus: Bus, config: RunConfig) -> None:
    """Raise ConfigError where a rollout that may be sampled is larger than a message may be: it could not be stored."""
    needed, most = largest_rollout_bytes(config.generator.max_model_len), bus.wire.max_payload_bytes
    if needed > most:
        raise ConfigError(
            f"a rollout of generator.max_model_len {config.generator.max_model_len} has up to {needed} bytes, and the "
            f"server at {bus.wire.address.url} takes {most} in one message: raise max_payload in its configuration to "
            "8 MiB, or lower generator.max_model_len"
        )
