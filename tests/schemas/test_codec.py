from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import (
    JSON,
    MESSAGE_ID,
    MSGPACK,
    Event,
    EventInvalid,
    Failure,
    Rollout,
    Span,
    Task,
    Term,
    Turn,
    as_json,
    content_type,
    decode,
    decode_as,
    encode,
    headers_of,
    message_id,
)
from tests import examples
from tests.schemas.strategies import names, rollouts

EVERY = pytest.mark.parametrize("event", examples.every_event(), ids=lambda event: type(event).__name__)


@EVERY
def test_event_comes_back_equal(event: Event) -> None:
    assert decode(encode(event)) == event


@given(rollouts())
def test_any_rollout_comes_back_equal(rollout: Rollout) -> None:
    assert decode(encode(rollout)) == rollout


@given(names, st.dictionaries(st.text(max_size=5), st.recursive(st.none() | st.booleans() | st.text(), st.lists)))
def test_any_task_comes_back_equal(prompt: str, data: dict[str, Any]) -> None:
    event = examples.task(task=Task(prompt=prompt, data=data))
    assert decode(encode(event)) == event


@EVERY
def test_event_in_the_other_encoding_is_read_too(event: Event) -> None:
    other = msgspec.json.encode if content_type(event) == MSGPACK else msgspec.msgpack.encode
    assert decode(other(event)) == event


@EVERY
def test_only_events_with_bytes_are_messagepack(event: Event) -> None:
    has_bytes = any(isinstance(value, bytes) for value in msgspec.structs.asdict(event).values())
    assert content_type(event) == content_type(type(event)) == (MSGPACK if has_bytes else JSON)
    assert encode(event).startswith(b"{") is not has_bytes


@EVERY
def test_payload_cut_anywhere_is_refused(event: Event) -> None:
    payload = encode(event)
    for length in range(len(payload)):
        with pytest.raises(EventInvalid):
            decode(payload[:length])


@given(st.binary(max_size=200))
def test_any_bytes_are_an_event_or_refused(payload: bytes) -> None:
    with contextlib.suppress(EventInvalid):
        decode(payload)


@given(st.data())
def test_payload_with_a_flipped_byte_is_an_event_or_refused(data: st.DataObject) -> None:
    payload = bytearray(encode(data.draw(st.sampled_from(examples.every_event()))))
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        event = decode(bytes(payload))
    except EventInvalid:
        return
    assert decode(encode(event)) == event


@given(st.data())
def test_payload_that_was_cut_and_pasted_is_an_event_or_refused(data: st.DataObject) -> None:
    """Pieces of two payloads, and bytes of anything, in any order."""
    payloads = [encode(event) for event in examples.every_event()]
    pieces = []
    for _ in range(data.draw(st.integers(1, 4))):
        payload = data.draw(st.sampled_from(payloads) | st.binary(max_size=9))
        begin = data.draw(st.integers(0, len(payload)))
        pieces.append(payload[begin : data.draw(st.integers(begin, len(payload)))])
    event_or_refused(b"".join(pieces))


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(st.data())
def test_event_with_anything_in_a_field_is_an_event_or_refused(data: st.DataObject) -> None:
    event = data.draw(st.sampled_from(examples.every_event()))
    fields = msgspec.to_builtins(event, builtin_types=(bytes,))
    for _ in range(data.draw(st.integers(1, 3))):
        fields[data.draw(st.sampled_from([*fields, "unheard_of"]))] = data.draw(ANYTHING)
    event_or_refused(msgspec.msgpack.encode(fields))


@given(st.data())
def test_event_with_anything_within_a_field_is_an_event_or_refused(data: st.DataObject) -> None:
    """One level down: turns, spans, timings, groups of a step, the task of a group."""
    event = data.draw(st.sampled_from(examples.every_event()))
    fields = msgspec.to_builtins(event, builtin_types=(bytes,))
    nested = [value for value in fields.values() if isinstance(value, dict | list) and value]
    if nested:
        inner = data.draw(st.sampled_from(nested))
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        inner[data.draw(st.sampled_from(keys))] = data.draw(ANYTHING)
    event_or_refused(msgspec.msgpack.encode(fields))


def event_or_refused(payload: bytes) -> None:
    """An event can be sent on and shown; anything else is refused, with a reason that fits a dead letter."""
    reason, event = "", None
    try:
        event = decode(payload)
    except EventInvalid as error:
        reason = error.reason
    if event is None:
        assert 0 < len(reason) < 1100
        return
    assert decode(encode(event)) == event
    headers_of(event, source="generator/gen-0")
    as_json(event)


def test_deeply_nested_payload_is_refused_and_not_a_crash() -> None:
    payload = encode(examples.task()).replace(b"null", b"[" * 100_000 + b"]" * 100_000)
    with pytest.raises(EventInvalid, match="recursion"):
        decode(payload)


def test_sender_hears_what_every_reader_would_refuse() -> None:
    """Constructors check neither types nor bounds: the codec does, on this side as well."""
    with pytest.raises(EventInvalid, match=r"length <= 4096 - at `\$.error.message`"):
        encode(examples.failed_rollout(error=Failure(kind="environment", message="x" * 5000)))
    with pytest.raises(EventInvalid, match=r"Expected `int`, got `str` - at `\$.pid`"):
        encode(Term(run="demo", instance="trainer", committed=0, host="mill", pid="4242"))  # type: ignore[arg-type]
    with pytest.raises(EventInvalid, match=r"cannot be encoded: .*surrogates"):
        encode(examples.term(host="\ud800"))


def test_decode_as_names_both_types() -> None:
    assert decode_as(encode(examples.term()), Term) == examples.term()
    with pytest.raises(EventInvalid, match=r"expected rollout.v1, got term.v1"):
        decode_as(encode(examples.term()), Rollout)


@pytest.mark.parametrize("tokens", [1, 100, 32_768])
@pytest.mark.parametrize("turns", [1, 16])
def test_rollout_takes_at_most_8_1_bytes_a_token_and_1_kib(tokens: int, turns: int) -> None:
    """With the longest names that a configuration allows, sixteen turns, and a swap within each of them."""
    longest = "n" * 64
    rollout = examples.rollout(
        run=longest,
        env=longest,
        generator=longest,
        group=2**31,
        index=2**31,
        tokens=examples.packed_tokens([151_935] * tokens * turns),
        logprobs=examples.packed_logprobs([-1.5] * tokens * turns),
        turns=[Turn(context=0, sampled=tokens, cached=tokens * turns, finish="length")] * turns,
        spans=[Span(1000 + i, i * tokens, (i + 1) * tokens) for i in range(turns)],
        metrics={f"metric_{i}": 0.5 for i in range(8)},
    )
    assert len(encode(rollout)) <= 8.1 * tokens * turns + 1024


def test_message_id_is_that_of_the_same_thing_said_again() -> None:
    assert message_id(examples.task()) == "task.demo.12"
    assert message_id(examples.rollout(reward=0.1)) == message_id(examples.rollout()) == "rollout.demo.12.3"
    assert message_id(examples.dead()) == "dead.demo.ROLLOUTS.41"


@pytest.mark.parametrize("event", [examples.term(), examples.closed(), examples.step(), examples.weights()])
def test_ledger_events_have_no_message_id(event: Event) -> None:
    assert message_id(event) is None
    assert MESSAGE_ID not in headers_of(event, source="trainer/trainer")


def test_dead_letter_of_something_unpublished_has_no_message_id() -> None:
    assert message_id(examples.dead(sequence=0)) is None


@EVERY
def test_headers_carry_the_cloudevents_attributes(event: Event) -> None:
    now = datetime(2026, 11, 29, 12, 0, 0, 123456, tzinfo=UTC)
    headers = headers_of(event, source="generator/gen-0", now=now)
    kind = event.__struct_config__.tag
    assert headers["ce-specversion"] == "1.0"
    assert headers["ce-type"] == f"headrace.{kind}"
    assert headers["ce-source"] == "/demo/generator/gen-0"
    assert headers["ce-time"] == "2026-11-29T12:00:00.123Z"
    assert headers["ce-datacontenttype"] == content_type(event)
    assert headers["ce-id"].startswith(f"{str(kind).partition('.')[0]}.demo.")
    assert headers["hr-run"] == "demo"
    assert headers.get(MESSAGE_ID) == message_id(event)


@EVERY
def test_header_values_are_one_line_and_not_empty(event: Event) -> None:
    for value in headers_of(event, source="sink/x").values():
        assert value
        assert value == value.strip()
        assert len(value.splitlines()) == 1


def test_rollout_headers_repeat_what_filters_need() -> None:
    headers = headers_of(examples.rollout(), source="generator/gen-0")
    hints = {name: value for name, value in headers.items() if name.startswith("hr-")}
    assert hints == {
        "hr-run": "demo",
        "hr-env": "reverse",
        "hr-group": "12",
        "hr-member": "3",
        "hr-tokens": "14",
        "hr-generator": "gen-0",
        "hr-version-min": "4",
        "hr-version-max": "5",
        "hr-reward": "0.8000",
    }
    failed = headers_of(examples.failed_rollout(), source="generator/gen-0")
    assert failed["hr-error"] == "environment"
    assert not {"hr-reward", "hr-version-min", "hr-version-max"} & failed.keys()


def test_dead_letters_header_has_the_reason_on_one_line() -> None:
    assert headers_of(examples.dead(reason="first\r\n  second"), source="sink/x")["hr-reason"] == "first second"
    for nothing in ("", "\n", "  \n\t"):
        assert "hr-reason" not in headers_of(examples.dead(reason=nothing), source="sink/x")


def test_generator_that_would_break_a_header_is_refused() -> None:
    with pytest.raises(EventInvalid, match="cannot be a header"):
        encode(examples.rollout(generator="gen-0\r\nhr-reward: 1"))


def test_json_for_people_has_lists_in_place_of_packed_arrays() -> None:
    line = as_json(examples.rollout(), headers={"ce-type": "headrace.rollout.v1"})
    fields = msgspec.json.decode(line)
    assert b"\n" not in line
    assert fields["tokens"] == list(range(10, 24))
    assert fields["logprobs"] == [-0.5, -0.25, -1.0, -0.125, -2.0, -0.0625]
    assert fields["type"] == "rollout.v1"
    assert fields["headers"] == {"ce-type": "headrace.rollout.v1"}


def test_json_for_people_has_a_dead_payload_as_hexadecimal() -> None:
    fields = msgspec.json.decode(as_json(examples.dead()))
    assert bytes.fromhex(fields["payload"]) == examples.dead().payload


def test_a_reason_that_quotes_a_large_payload_is_cut_so_that_its_dead_letter_fits() -> None:
    with pytest.raises(EventInvalid) as caught:
        decode(b'{"type": "%s"}' % (b"x" * 5_000_000))
    assert len(caught.value.reason) < 1100
    assert caught.value.reason.startswith("not a known event: Invalid value 'xxx")
