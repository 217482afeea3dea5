from __future__ import annotations

from collections import Counter

import pytest

from schemas import DEAD, EVENT_TYPES, LEDGER, MAX_PAYLOAD_BYTES, ROLLOUTS, STREAMS, TASKS, TELEMETRY, Event, stream_for
from schemas.validation import MAX_ROLLOUT_TOKENS
from tests import examples


def test_each_event_type_is_kept_by_one_stream() -> None:
    kept = Counter(kind for spec in STREAMS for kind in spec.events)
    assert kept == Counter(EVENT_TYPES)


@pytest.mark.parametrize("event", examples.every_event(), ids=lambda event: type(event).__name__)
def test_stream_of_an_event_is_that_of_its_type(event: Event) -> None:
    assert type(event) in stream_for(event).events
    assert stream_for(event) is stream_for(type(event))


def test_streams_of_two_runs_share_no_name_and_no_subject() -> None:
    names = [spec.name(run) for run in ("a", "b") for spec in STREAMS]
    subjects = [subject for run in ("a", "b") for spec in STREAMS for subject in spec.subjects(run)]
    assert len(set(names)) == len(names)
    assert len(set(subjects)) == len(subjects)


def test_names_and_subjects_are_those_of_the_design() -> None:
    assert LEDGER.name("demo") == "demo_LEDGER"
    assert LEDGER.subjects("demo") == ["hr.demo.term", "hr.demo.closed", "hr.demo.step", "hr.demo.weights"]
    assert ROLLOUTS.subjects("demo") == ["hr.demo.rollout.>"]


def test_only_what_may_be_lost_discards_the_oldest() -> None:
    assert {spec.kind for spec in STREAMS if spec.discard == "new"} == {
        "TASKS", "ROLLOUTS", "LEDGER", "DEAD", "EVALUATIONS",
    }  # fmt: skip
    assert TELEMETRY.discard == "old"
    assert TASKS.discard == DEAD.discard == "new"


def test_largest_rollout_fits_into_a_message() -> None:
    assert 8 * MAX_ROLLOUT_TOKENS < MAX_PAYLOAD_BYTES
