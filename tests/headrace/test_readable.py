from __future__ import annotations

from datetime import UTC

import pytest

from headrace.readable import describe, printable, ranges
from schemas import Event
from tests import examples
from tests.logs import logged, unreadable


@pytest.mark.parametrize(
    ("event", "source", "line"),
    [
        (examples.rollout(), "generator/gen-0", "rollout g12/3 reverse reward 0.80 v4-5 14 tokens by gen-0"),
        (
            examples.failed_rollout(),
            "generator/gen-0",
            "rollout g12/3 reverse error environment 0 tokens by gen-0: ZeroDivisionError: division by zero",
        ),
        (
            examples.task(),
            "dispatcher/dispatcher",
            "task g12 reverse index 12 size 8 from v3 'rev:abcde='",
        ),
        (examples.term(), "trainer/trainer", "term trainer after step 4 on mill, process 4242"),
        (examples.closed(), "trainer/trainer", "closed g13 reverse no_signal at step 5 exact 1"),
        (
            examples.step(),
            "trainer/trainer",
            "step 5 of 1 groups loss -0.01 reward_mean 0.5 staleness_max 2 staleness_mean 1.25 lr 0.0005",
        ),
        (examples.weights(), "trainer/trainer", "weights v5 float32 2.4 MB 0123456789ab"),
        (
            examples.weights(base=4, delta_bytes=12_000),
            "trainer/trainer",
            "weights v5 float32 2.4 MB, delta of 0.012 MB 0123456789ab",
        ),
        (
            examples.lifecycle(),
            "generator/gen-0",
            "swapped v5, process 4243 pause_s 0.1 load_s 0.0625 resubmitted 3",
        ),
        (examples.metric(), "generator/gen-0", "metric v5 running 64 waiting 0"),
        (examples.control(), "operator/me", "control limit 16 by someone"),
        (examples.dead(), "trainer/trainer", "dead ROLLOUTS 41 15 bytes: not a known event: Input data was truncated"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Event) else "",
)
def test_every_event_has_its_line(event: Event, source: str, line: str) -> None:
    assert describe(logged(event, source=source), zone=UTC) == f"00:53:20.250 {source:<20} {line}"


def test_message_that_is_no_event_has_a_line_too() -> None:
    line = describe(unreadable(reason="torn\nin two"), zone=UTC)
    assert line.endswith("? " + " " * 19 + "not an event: torn\\nin two (hr.demo.rollout.reverse)")


def test_line_stays_one_line_and_steers_no_terminal() -> None:
    nasty = "\x1b[2J\r\n\u202eabc"
    for event in (examples.task(task=examples.task().task), examples.control(by=nasty), examples.dead(reason=nasty)):
        line = describe(logged(event))
        assert line.isprintable()
        assert line.splitlines() == [line]
    assert printable(nasty) == "\\x1b[2J\\r\\n\\u202eabc"


def test_ranges_keep_the_order() -> None:
    assert ranges([]) == ""
    assert ranges([5]) == "5"
    assert ranges([31, 32, 33, 40, 39]) == "31-33 40 39"
