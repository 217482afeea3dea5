from __future__ import annotations

import fnmatch

import pytest

from schemas import (
    EVENT_TYPES,
    ConfigError,
    Event,
    EventInvalid,
    check_name,
    subject_filter,
    subject_of,
    validate,
)
from tests import examples


def test_subjects_are_those_of_the_design() -> None:
    assert [subject_of(event) for event in examples.every_event()] == [
        "hr.demo.task.reverse",
        "hr.demo.rollout.reverse",
        "hr.demo.evaluated.reverse",
        "hr.demo.term",
        "hr.demo.closed",
        "hr.demo.step",
        "hr.demo.weights",
        "hr.demo.lifecycle.generator.gen-0",
        "hr.demo.metric.generator.gen-0",
        "hr.demo.control",
        "hr.demo.dead.ROLLOUTS",
    ]


@pytest.mark.parametrize("event", examples.every_event(), ids=lambda event: type(event).__name__)
def test_filter_of_a_type_takes_its_events_and_no_other(event: Event) -> None:
    matching = [
        kind
        for kind in EVENT_TYPES
        if fnmatch.fnmatchcase(subject_of(event), subject_filter("demo", kind).replace(">", "*"))
    ]
    assert matching == [type(event)]
    assert not fnmatch.fnmatchcase(subject_of(event), subject_filter("demo2", type(event)).replace(">", "*"))


@pytest.mark.parametrize("name", ["a", "A9", "run_1", "2026-11-29", "x" * 64])
def test_name_of_letters_digits_underscores_and_hyphens_is_taken(name: str) -> None:
    assert check_name(name, "run.name") == name


@pytest.mark.parametrize("name", ["", "a.b", "a b", "*", ">", "a>", "-a", "_a", "ä", "x" * 65, "a\n", "a/b"])
def test_other_name_is_refused_with_the_rule(name: str) -> None:
    with pytest.raises(ConfigError, match=r"run.name .* cannot be used in a subject: use 1 to 64 letters"):
        check_name(name, "run.name")


@pytest.mark.parametrize(
    "event",
    [
        examples.term(run="a.b"),
        examples.task(env="two words"),
        examples.rollout(env="*"),
        examples.metric(id="gen.0"),
        examples.lifecycle(id=">"),
        examples.dead(stream="a\r\nb"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_event_whose_subject_would_mean_something_else_is_invalid(event: Event) -> None:
    with pytest.raises(EventInvalid, match="cannot be a part of a subject"):
        validate(event)


def test_dead_letter_may_name_a_stream_whole() -> None:
    stream = f"{'x' * 64}_ROLLOUTS"
    assert subject_of(examples.dead(stream=stream)) == f"hr.demo.dead.{stream}"
