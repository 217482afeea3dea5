"""Conversations in messages: what was sampled is kept, and a broken prefix starts a new training sequence."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments import Policy, Sample, ScriptedPolicy, TooLong
from environments.chat_template import ChatTemplate
from schemas import MAX_ROLLOUT_TOKENS, EnvironmentFault, Rollout, Span, Timings, Turn, decode, encode
from tests.environments.characters import Answering, Characters
from tests.environments.pairs import END_ID, FORGETFUL, PLAIN, SPECIAL, STOP_ID, WORDS, Pairs


def sampled(*words: str, finish: str = "stop") -> Sample:
    """These tokens, each by its text."""
    ids = [WORDS.index(word) for word in words]
    return Sample(tokens=ids, logprobs=[-1.0] * len(ids), spans=[Span(0, 0, len(ids))], finish=finish, cached=0)  # type: ignore[arg-type]


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def policy_of(*samples: Sample, template: ChatTemplate | None = PLAIN, room: int = 10_000) -> tuple[Policy, Answering]:
    sampler = Answering(*samples)
    return Policy(sampler, Pairs(template), room), sampler


async def test_the_first_reply_continues_the_rendered_messages() -> None:
    policy, sampler = policy_of(sampled("a", "b", "<end>"))
    reply = await policy.chat([{"role": "system", "content": "be"}, user("a?")])
    assert Pairs().decode(sampler.asked[0][0]) == "<start>s\nbe<end>\n<start>u\na?<end>\n<start>a\n".replace(
        "s\n", "s\n"
    )
    assert (reply.text, reply.finish, reply.message) == ("ab", "stop", {"role": "assistant", "content": "ab"})


async def test_what_was_sampled_is_never_encoded_again() -> None:
    policy, sampler = policy_of(sampled("a", "b", "<end>"), sampled("c", "<end>"))
    messages = [user("a?")]
    messages.append((await policy.chat(messages)).message)
    await policy.chat([*messages, user("c?")])
    first, second = sampler.asked
    assert Pairs().encode("ab") != [WORDS.index("a"), WORDS.index("b")]
    assert second[0][: len(first[0]) + 3] == [*first[0], WORDS.index("a"), WORDS.index("b"), END_ID]
    assert Pairs().decode(second[0]) == PLAIN.render([*messages, user("c?")])
    assert policy.transcript().starts == []


async def test_a_reply_that_met_its_limit_is_closed_by_context() -> None:
    policy, sampler = policy_of(sampled("a", "b", finish="length"), sampled("c", "<end>"))
    messages = [user("a?")]
    messages.append((await policy.chat(messages, max_tokens=2)).message)
    await policy.chat([*messages, user("c?")])
    turn = policy.transcript().turns[1]
    assert Pairs().decode(sampler.asked[1][0][-turn.context :]).startswith("<end>\n<start>u")
    assert policy.transcript().starts == []


async def test_a_template_that_drops_thinking_starts_a_new_sequence() -> None:
    policy, sampler = policy_of(sampled("a", "?", "b", "<end>"), sampled("c", "?", "d", "<end>"), template=FORGETFUL)
    messages = [user("a")]
    messages.append((await policy.chat(messages)).message)
    messages.append(user("b"))
    await policy.chat(messages)
    transcript = policy.transcript()
    assert transcript.starts == [1]
    whole = Pairs().encode(FORGETFUL.render(messages))
    assert sampler.asked[1][0] == whole
    assert transcript.turns[1] == Turn(context=len(whole), sampled=4, cached=0, finish="stop")
    assert transcript.tokens.tolist() == [*sampler.asked[0][0], *sampled("a", "?", "b", "<end>").tokens, *whole,
                                          *sampled("c", "?", "d", "<end>").tokens]  # fmt: skip


async def test_an_environment_that_changes_what_was_said_starts_a_new_sequence() -> None:
    policy, _ = policy_of(sampled("a", "<end>"), sampled("b", "<end>"))
    reply = await policy.chat([user("a")])
    await policy.chat([user("a"), reply.message | {"content": "c"}, user("b")])
    assert policy.transcript().starts == [1]


async def test_an_end_token_that_the_template_does_not_write_breaks_the_prefix() -> None:
    policy, sampler = policy_of(sampled("a", "<stop>"), sampled("b", "<end>"))
    reply = await policy.chat([user("a")])
    assert (reply.text, sampler.asked[0][2]) == ("a", [STOP_ID, END_ID])
    await policy.chat([user("a"), reply.message, user("b")])
    assert policy.transcript().starts == [1]


async def test_a_turn_after_a_new_sequence_extends_that_one() -> None:
    policy, sampler = policy_of(sampled("a", "<end>"), sampled("b", "<end>"), sampled("c", "<end>"))
    await policy.chat([user("a")])
    second = [user("d")]
    second.append((await policy.chat(second)).message)
    await policy.chat([*second, user("e")])
    assert policy.transcript().starts == [1]
    assert sampler.asked[2][0][: len(sampler.asked[1][0])] == sampler.asked[1][0]


async def test_plain_text_may_follow_messages() -> None:
    policy, sampler = policy_of(sampled("a", "<end>"), sampled("b", "<end>"))
    await policy.chat([user("a")])
    await policy.say("c:")
    assert Pairs().decode(sampler.asked[1][0]) == PLAIN.render([user("a")]) + "a<end>c:"
    assert policy.transcript().starts == []


async def test_each_sequence_has_the_whole_room_and_the_rollout_its_own() -> None:
    policy, sampler = policy_of(sampled("a", "<end>"), sampled("b", "<end>"), room=12)
    await policy.chat([user("a")])
    await policy.chat([user("b")])
    assert [limit for _, limit, _ in sampler.asked] == [12 - len(tokens) for tokens, _, _ in sampler.asked]
    policy._tokens += [0] * MAX_ROLLOUT_TOKENS
    with pytest.raises(TooLong, match=f"within the {MAX_ROLLOUT_TOKENS} tokens of a rollout"):
        await policy.chat([user("c")])


async def test_a_model_without_a_template_says_so() -> None:
    policy, sampler = policy_of(template=None)
    assert not policy.has_chat
    with pytest.raises(EnvironmentFault, match=r"no chat template .* chat = false"):
        await policy.chat([user("a")])
    assert not sampler.asked
    assert policy_of()[0].has_chat


async def test_a_scripted_policy_chats() -> None:
    heard: list[str] = []

    def script(content: str) -> str:
        heard.append(content)
        return "b" + content

    policy = ScriptedPolicy(Pairs(), script)
    messages = [user("a")]
    messages.append((await policy.chat(messages)).message)
    messages.append(user("c"))
    assert (await policy.chat(messages)).text == "bc"
    assert heard == ["a", "c"]
    assert policy.transcript().starts == []
    with pytest.raises(EnvironmentFault, match="no chat template"):
        await ScriptedPolicy(Characters(), ["a"]).chat([user("a")])


spoken = st.lists(st.sampled_from([word for word in WORDS if word not in SPECIAL]), max_size=4)


@st.composite
def conversations(draw: st.DrawFn) -> list[tuple[str, Sample, str | None]]:
    """Turns: what the user says, what is sampled, and what the environment makes of it (None: leaves it)."""
    turns = []
    for _ in range(draw(st.integers(1, 5))):
        words = draw(spoken)
        ended = draw(st.booleans()) or not words
        sample = sampled(*words, *(["<end>"] if ended else []), finish="stop" if ended else "length")
        changed = draw(st.none() | st.sampled_from(["a", "bc"]))
        turns.append((draw(st.text("abc?", max_size=4)), sample, changed))
    return turns


@given(conversations(), st.sampled_from([PLAIN, FORGETFUL]))
def test_any_conversation_keeps_what_was_sampled(turns: list[tuple[str, Sample, str | None]], template: Any) -> None:
    policy, sampler = policy_of(*(sample for _, sample, _ in turns), template=template)
    rendered = []

    async def talk() -> None:
        messages: list[dict[str, Any]] = []
        for said, sample, changed in turns:
            messages.append(user(said))
            rendered.append(template.render(messages))
            reply = await policy.chat(messages, max_tokens=max(1, len(sample.tokens)))
            messages.append(reply.message if changed is None else {"role": "assistant", "content": changed})

    asyncio.run(talk())
    rollout = rollout_of(policy)
    assert rollout.token_ids()[rollout.loss_mask()].tolist() == [t for _, sample, _ in turns for t in sample.tokens]
    sequences = [rollout.token_ids()[part.start : part.stop].tolist() for part in rollout.sequences()]
    assert [token for sequence in sequences for token in sequence] == rollout.token_ids().tolist()
    # Each request had its own sequence up to that reply, and its text is what the template had rendered.
    bounds = [0, *rollout.starts, len(rollout.turns)]
    position = 0
    for number, (turn, (asked, _, _)) in enumerate(zip(rollout.turns, sampler.asked, strict=True)):
        part = max(i for i, start in enumerate(bounds[:-1]) if start <= number)
        position = turn.context if number == bounds[part] else position + turn.context
        assert asked == sequences[part][:position]
        assert Pairs().decode(asked) == rendered[number]
        position += turn.sampled


def rollout_of(policy: Policy) -> Rollout:
    transcript = policy.transcript()
    rollout = Rollout(
        run="demo", group=0, member=0, env="test", index=0, generator="g", attempt=1, reward=1.0,
        tokens=transcript.tokens.astype("<i4").tobytes(), logprobs=transcript.logprobs.astype("<f4").tobytes(),
        turns=transcript.turns, spans=transcript.spans, starts=transcript.starts,
        timings=Timings(started_at=0.0, total_s=0.0, sampling_s=0.0),
    )  # fmt: skip
    read = decode(encode(rollout))
    assert isinstance(read, Rollout)
    return read
