"""What the policy handle records."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments import Policy, Sample, TooLong, Transcript
from schemas import EngineError, EnvironmentFault, Rollout, Span, Timings, Turn, decode, encode
from tests.environments.characters import ALPHABET, END_ID, Answering, Characters, said


def policy_of(*samples: Sample, room: int = 100) -> tuple[Policy, Answering]:
    sampler = Answering(*samples)
    return Policy(sampler, Characters(), room), sampler


def rollout_of(transcript: Transcript) -> Rollout:
    return Rollout(
        run="demo", group=0, member=0, env="test", index=0, generator="g", attempt=1, reward=1.0,
        tokens=transcript.tokens.astype("<i4").tobytes(), logprobs=transcript.logprobs.astype("<f4").tobytes(),
        turns=transcript.turns, spans=transcript.spans, timings=Timings(started_at=0.0, total_s=0.0, sampling_s=0.0),
    )  # fmt: skip


async def test_reply_is_recorded_as_sampled() -> None:
    policy, _ = policy_of(said("cba", cached=2))
    reply = await policy.say("abc=")
    assert (reply.text, reply.finish, reply.tokens) == ("cba", "stop", 4)
    transcript = policy.transcript()
    assert transcript.tokens.tolist() == [*Characters().encode("abc=cba"), END_ID]
    assert transcript.tokens.dtype == np.int32
    assert transcript.logprobs.tolist() == [-0.5] * 4
    assert transcript.logprobs.dtype == np.float32
    assert transcript.turns == [Turn(context=4, sampled=4, cached=2, finish="stop")]


async def test_each_turn_extends_the_same_sequence() -> None:
    policy, sampler = policy_of(said("5"), said("7"))
    await policy.say("a:", max_tokens=2)
    await policy.say(">", max_tokens=2)
    first, second = sampler.asked
    assert second[0] == [*first[0], *Characters().encode("5"), END_ID, *Characters().encode(">")]


async def test_context_follows_a_reply_that_met_its_limit() -> None:
    policy, _ = policy_of(said("55", ended=False), said("7"))
    assert (await policy.say("a:", max_tokens=2)).finish == "length"
    await policy.say(">", max_tokens=2)
    assert Characters().decode(policy.transcript().tokens.tolist()) == "a:55>7!"


async def test_reply_stays_as_sampled_where_encoding_it_again_would_differ() -> None:
    class Merging(Characters):
        """Would encode every text as one token; decodes as usual."""

        def encode(self, text: str) -> list[int]:
            return [1]

    sampler = Answering(said("abc"))
    policy = Policy(sampler, Merging(), 100)
    assert (await policy.say("x")).text == "abc"
    assert policy.transcript().tokens.tolist() == [1, *Characters().encode("abc"), END_ID]


async def test_spans_of_one_version_merge_over_turns() -> None:
    swapped = Sample(
        tokens=[1, 2, END_ID], logprobs=[-1.0] * 3, spans=[Span(4, 0, 1), Span(5, 1, 3)], finish="stop", cached=0
    )
    policy, _ = policy_of(said("12", version=4), swapped, said("3", version=5))
    for context in "abc":
        await policy.say(context)
    assert policy.transcript().spans == [Span(4, 0, 4), Span(5, 4, 8)]


async def test_empty_span_is_left_out() -> None:
    swapped_at_the_end = Sample(
        tokens=[END_ID], logprobs=[0.0], spans=[Span(4, 0, 1), Span(5, 1, 1)], finish="stop", cached=0
    )
    policy, _ = policy_of(swapped_at_the_end)
    await policy.say("a")
    assert policy.transcript().spans == [Span(4, 0, 1)]


async def test_version_that_decreases_is_an_engine_error() -> None:
    policy, _ = policy_of(said("1", version=5), said("2", version=4))
    await policy.say("a")
    with pytest.raises(EngineError, match="weights 4 after weights 5"):
        await policy.say("b")
    assert len(policy.transcript().turns) == 1


@pytest.mark.parametrize(
    ("sample", "problem"),
    [
        (Sample(tokens=[], logprobs=[], spans=[], finish="length", cached=0), "0 tokens"),
        (Sample(tokens=[1, 2, 3], logprobs=[0.0] * 3, spans=[Span(0, 0, 3)], finish="length", cached=0), "3 tokens"),
        (Sample(tokens=[1], logprobs=[], spans=[Span(0, 0, 1)], finish="length", cached=0), "0 log-prob"),
        (Sample(tokens=[1], logprobs=[0.0], spans=[], finish="length", cached=0), "spans"),
        (Sample(tokens=[1], logprobs=[0.0], spans=[Span(0, 0, 2)], finish="length", cached=0), "spans"),
        (Sample(tokens=[1], logprobs=[0.0], spans=[Span(0, 0, 1)], finish="stop", cached=0), "finish"),
        (Sample(tokens=[END_ID], logprobs=[0.0], spans=[Span(0, 0, 1)], finish="length", cached=0), "finish"),
    ],
)
async def test_sample_that_is_not_whole_is_an_engine_error(sample: Sample, problem: str) -> None:
    policy, _ = policy_of(sample)
    with pytest.raises(EngineError, match=problem):
        await policy.say("a", max_tokens=2)
    assert policy.transcript().turns == []


async def test_reply_may_take_the_room_that_is_left() -> None:
    policy, sampler = policy_of(said("1"), said("2"), room=10)
    await policy.say("abc")
    await policy.say("def", max_tokens=50)
    assert [asked[1] for asked in sampler.asked] == [7, 2]


async def test_full_conversation_is_too_long() -> None:
    policy, sampler = policy_of(said("1"), room=6)
    await policy.say("abc")
    with pytest.raises(TooLong, match=r"6 tokens .* within 6: .*max_model_len"):
        await policy.say("d")
    assert len(sampler.asked) == 1
    assert policy.transcript().tokens.tolist() == [*Characters().encode("abc1"), END_ID]


async def test_stop_text_ends_a_reply_like_the_end_token() -> None:
    newline = ALPHABET.index("\n")
    stopped = Sample(tokens=[7, newline], logprobs=[-1.0, -1.0], spans=[Span(0, 0, 2)], finish="stop", cached=0)
    policy, sampler = policy_of(stopped)
    reply = await policy.say("3+4=", stop="\n")
    assert sampler.asked[0][2] == [END_ID, newline]
    assert (reply.text, reply.tokens) == ("7", 2)


@pytest.mark.parametrize(
    ("text", "options", "problem"),
    [
        ("a", {"stop": "ab"}, "2 tokens"),
        ("a", {"stop": ""}, "0 tokens"),
        ("a", {"max_tokens": 0}, "max_tokens=0"),
        ("", {}, "empty"),
    ],
)
async def test_what_an_environment_may_not_ask(text: str, options: dict[str, int], problem: str) -> None:
    policy, sampler = policy_of(said("1"))
    with pytest.raises(EnvironmentFault, match=problem):
        await policy.say(text, **options)  # type: ignore[arg-type]
    assert sampler.asked == []


async def test_two_replies_at_once_are_refused() -> None:
    gate = asyncio.Event()

    class Waiting(Answering):
        async def sample(self, tokens: list[int], *, max_tokens: int, stop_ids: list[int]) -> Sample:
            await gate.wait()
            return await super().sample(tokens, max_tokens=max_tokens, stop_ids=stop_ids)

    policy = Policy(Waiting(said("1")), Characters(), 100)
    first = asyncio.ensure_future(policy.say("a"))
    await asyncio.sleep(0)  # lets the first reach its sampler
    with pytest.raises(EnvironmentFault, match="await each reply"):
        await policy.say("b")
    gate.set()
    assert (await first).text == "1"


@st.composite
def conversations(draw: st.DrawFn) -> list[tuple[str, Sample]]:
    """Turns of any length whose versions never decrease."""
    version, turns = 0, []
    for i in range(draw(st.integers(1, 5))):
        tokens = draw(st.lists(st.integers(0, END_ID - 1), min_size=0, max_size=6))
        ended = draw(st.booleans()) or not tokens
        tokens += [END_ID] * ended
        spans, position = [], 0
        while position < len(tokens):
            version += draw(st.integers(0, 2))
            end = draw(st.integers(position + 1, len(tokens)))
            spans.append(Span(version, position, end))
            position = end
        logprobs = draw(st.lists(st.floats(-50, 0, width=32), min_size=len(tokens), max_size=len(tokens)))
        finish = "stop" if ended else "length"
        sample = Sample(tokens=tokens, logprobs=logprobs, spans=spans, finish=finish, cached=draw(st.integers(0, 9)))
        turns.append((draw(st.text(ALPHABET, min_size=i == 0, max_size=5)), sample))
    return turns


@given(conversations())
def test_transcript_of_any_conversation_is_a_valid_rollout(turns: list[tuple[str, Sample]]) -> None:
    policy, sampler = policy_of(*(sample for _, sample in turns), room=1000)

    async def talk() -> None:
        for text, _ in turns:
            await policy.say(text, max_tokens=7)

    asyncio.run(talk())
    transcript = policy.transcript()
    rollout = decode(encode(rollout_of(transcript)))
    assert isinstance(rollout, Rollout)
    sampled = [token for _, sample in turns for token in sample.tokens]
    assert rollout.token_ids()[rollout.loss_mask()].tolist() == sampled
    versions = [span.version for _, sample in turns for span in sample.spans for _ in range(span.start, span.end)]
    assert rollout.token_versions().tolist() == versions
    # What the engine was asked to continue is what the transcript holds before each reply.
    position = 0
    for (tokens, _, _), turn in zip(sampler.asked, transcript.turns, strict=True):
        position += turn.context
        assert tokens == transcript.tokens[:position].tolist()
        position += turn.sampled
