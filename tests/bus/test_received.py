"""What a delivered message says of itself, as nats-py reads it."""

from __future__ import annotations

import pytest
from nats.aio.msg import Msg

from bus.received import origin_of


@pytest.mark.parametrize(
    "reply",
    [
        "$JS.ACK.demo_ROLLOUTS.trainer.1.25.24.1796000000123456789.7",
        "$JS.ACK._.hash.demo_TASKS.generators.3.9.31.1796000000123456789.0",
        "$JS.ACK.domain.hash.demo_TASKS.generators.3.9.31.1796000000123456789.0.token",
    ],
)
def test_origin_is_what_nats_py_says(reply: str) -> None:
    expected, origin = Msg.Metadata._from_reply(reply), origin_of(reply)
    assert (origin.sequence, origin.consumer_sequence) == (expected.sequence.stream, expected.sequence.consumer)
    assert origin.delivered == expected.num_delivered
    assert origin.time == pytest.approx(expected.timestamp.timestamp(), abs=1e-5)
