"""One member, from its task to its event; faults of environments become data."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from environments import Environment, Outcome, Policy, Sample
from producers import Gate, Player
from schemas import EngineError, Failure, Rollout, Span, Task, encode, validate
from tests.examples import task, weights
from tests.producers.generator.test_gate import PuppetEngine


class Letters:
    """A tokenizer whose tokens are letters' code points; 0 ends."""

    end_id = 0

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


class EchoEngine(PuppetEngine):
    """Answers every request with "ok" and the end token."""

    async def sample(self, request: object) -> Sample:  # type: ignore[override]
        return Sample(tokens=[111, 107, 0], logprobs=[-1.0, -0.5, -0.1], spans=[Span(0, 0, 3)], finish="stop", cached=0)


class Scene(Environment):
    """Behaves as the test says, play after play."""

    def __init__(self, *acts: object) -> None:
        super().__init__(seed=0)
        self.acts = list(acts)
        self.plays = 0

    def task(self, index: int) -> Task:
        return Task(prompt="p")

    async def play(self, task: Task, policy: Policy) -> Outcome:
        act = self.acts[min(self.plays, len(self.acts) - 1)]
        self.plays += 1
        if isinstance(act, BaseException):
            raise act
        if act == "hang":
            await asyncio.Event().wait()
        if act != "silent":
            reply = await policy.say("hi")
            assert reply.text == "ok"
        return act if isinstance(act, Outcome) else Outcome(reward=1.0, metrics={"exact": 1.0})


async def play(scene: Environment, *, retries: int = 0, timeout_s: float = 30.0, engine: object = None) -> Rollout:
    gate = Gate(
        engine or EchoEngine(),  # type: ignore[arg-type]
        temperature=1.0,
        max_off_policy_steps=2,
        abort_late=True,
        prefix_on_swap="keep",
    )
    await gate.swap(weights(version=0), Path())
    player = Player(
        gate,
        Letters(),
        {"reverse": scene},
        max_tokens=64,
        play_timeout_s=timeout_s,
        retries=retries,  # type: ignore[arg-type]
    )
    rollout = await player.play(task(), 3, generator="g", attempt=1)
    validate(rollout)
    return rollout


async def test_what_is_published_is_what_was_sampled() -> None:
    rollout = await play(Scene("good"))
    assert rollout.token_ids().tolist() == [104, 105, 111, 107, 0]
    assert rollout.loss_mask().tolist() == [False, False, True, True, True]
    assert rollout.logprob_values() == pytest.approx([-1.0, -0.5, -0.1])
    assert (rollout.group, rollout.member, rollout.reward, rollout.metrics) == (12, 3, 1.0, {"exact": 1.0})


async def test_an_environment_that_raises_is_an_error_and_no_reward() -> None:
    rollout = await play(Scene(ZeroDivisionError("division by zero")))
    assert rollout.reward is None
    assert rollout.error == Failure(kind="environment", message="ZeroDivisionError: division by zero")


async def test_a_fault_is_cured_by_a_retry() -> None:
    scene = Scene(RuntimeError("once"), "good")
    assert (await play(scene, retries=1)).reward == 1.0
    assert scene.plays == 2


async def test_retries_are_bounded() -> None:
    scene = Scene(RuntimeError("always"))
    assert (await play(scene, retries=2)).error is not None
    assert scene.plays == 3


class Insistent(Scene):
    """Asks again and again for a reply that it cannot get."""

    async def play(self, task: Task, policy: Policy) -> Outcome:
        while True:
            try:
                await policy.say("hi" * 64)
            except Exception:
                continue


async def test_an_environment_that_asks_on_whatever_it_is_told_is_timed_out() -> None:
    """Others have their turn meanwhile: heartbeats, leases and the signal that ends the process."""
    rollout = await play(Insistent(), timeout_s=0.2)
    assert rollout.error is not None
    assert rollout.error.kind == "timeout"


async def test_an_environment_that_hangs_is_timed_out() -> None:
    rollout = await play(Scene("hang"), timeout_s=0.01)
    assert rollout.error is not None
    assert rollout.error.kind == "timeout"
    assert "play_timeout_s 0.01" in rollout.error.message


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (Outcome(reward=math.nan), "number nan is not finite"),
        (Outcome(reward=-math.inf), "number -inf is not finite"),
        (Outcome(reward=1.0, metrics={"m": math.inf}), "number inf is not finite"),
        (Outcome(reward=1e7), "reward 10000000.0 is beyond 1e+06"),
        (Outcome(reward=10**400), "reward is a int that is no float: int too large"),
        (Outcome(reward="1.0"), "reward is a str, not a number"),
        (Outcome(reward=None), "reward is a NoneType, not a number"),
        (Outcome(reward=1 + 2j), "reward is a complex, not a number"),
        (Outcome(reward=1.0, metrics={"m": "1"}), "metric 'm' is a str, not a number"),
        (Outcome(reward=1.0, metrics={"m": 1e300}), "metric 'm' is 1e+300, beyond 1e+12"),
        (Outcome(reward=1.0, metrics=[1.0]), "metrics is a list, not a dict"),
        (Outcome(reward=1.0, metrics={f"m{i}": 0.0 for i in range(300)}), "300 metrics exceed 256"),
        (Outcome(reward=1.0, metrics={"m" * 10_000: 0.0}), "a name of 10000 characters"),
        ("silent", "without a reply"),
        (SystemExit(0), "SystemExit left play: an environment must not end its process"),
        (KeyboardInterrupt(), "KeyboardInterrupt left play"),
        (ExceptionGroup("unhandled", [ExceptionGroup("more", [ValueError("the cause")])]), "ValueError: the cause"),
        (BaseExceptionGroup("unhandled", [SystemExit(3)]), "BaseExceptionGroup left play"),
        (EngineError("the environment says so"), "EngineError: the environment says so"),
        (RuntimeError("x" * 10_000_000), "RuntimeError: xxx"),
        (RuntimeError("half \ud800"), "RuntimeError: half ?"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_play_that_cannot_be_trained_is_an_error_of_its_environment_and_no_reward(
    act: object, words: str
) -> None:
    rollout = await play(Scene(act))
    encode(rollout)
    assert rollout.reward is None
    assert rollout.error is not None
    assert rollout.error.kind == "environment"
    assert words in rollout.error.message
    assert len(rollout.error.message) <= 500


@pytest.mark.parametrize("result", [None, 1.0, {"reward": 1.0}, "Outcome"])
async def test_a_play_that_returns_something_else_is_an_error(result: object) -> None:
    class Wrong(Scene):
        async def play(self, task: Task, policy: Policy) -> Outcome:
            await policy.say("hi")
            return result  # type: ignore[return-value]

    rollout = await play(Wrong())
    assert rollout.error is not None
    assert f"play returned {type(result).__name__}, not an Outcome" in rollout.error.message


async def test_a_play_that_is_no_coroutine_is_an_error() -> None:
    class Ordinary(Scene):
        def play(self, task: Task, policy: Policy) -> Outcome:  # type: ignore[override]
            return Outcome(reward=1.0)

    rollout = await play(Ordinary())
    assert rollout.error is not None
    assert "can't be used in 'await' expression" in rollout.error.message


async def test_an_error_that_has_no_text_is_an_error_still() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not this either")

    rollout = await play(Scene(Mute()))
    assert rollout.error is not None
    assert rollout.error.message == "Mute: (its text cannot be had: RuntimeError)"


@pytest.mark.parametrize("afterwards", ["returns", "raises", "goes on"])
async def test_a_play_that_holds_back_the_end_of_its_time_is_timed_out_and_earns_nothing(
    afterwards: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``except BaseException`` around a call is not rare; what comes of it is no reward of 0."""
    monkeypatch.setattr("producers.generator.play.CANCEL_S", 0.05)
    release = asyncio.Event()

    class Deaf(Scene):
        said: object = None

        async def play(self, task: Task, policy: Policy) -> Outcome:
            with contextlib.suppress(BaseException):
                await asyncio.Event().wait()
            if afterwards == "raises":
                raise ValueError
            if afterwards == "goes on":
                await release.wait()
                try:
                    await policy.say("more")
                except Exception as error:
                    self.said = error
            return Outcome(reward=0.0)

    scene = Deaf()
    rollout = await play(scene, timeout_s=0.01)
    assert rollout.reward is None
    assert rollout.error is not None
    assert rollout.error.kind == "timeout"
    assert ("goes on although it was cancelled" in caplog.text) == (afterwards == "goes on")
    release.set()
    if afterwards == "goes on":
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
        assert "this play has ended" in str(scene.said)


async def test_a_play_that_cancels_itself_is_an_error() -> None:
    class Quitter(Scene):
        async def play(self, task: Task, policy: Policy) -> Outcome:
            ours = asyncio.current_task()
            assert ours is not None
            ours.cancel()
            await asyncio.sleep(0)
            raise AssertionError("it was not cancelled")

    rollout = await play(Quitter())
    assert rollout.error is not None
    assert "a cancellation of the environment's own left play" in rollout.error.message


@pytest.mark.parametrize(
    "sample",
    [
        Sample(tokens=[0], logprobs=[math.nan], spans=[Span(0, 0, 1)], finish="stop", cached=0),
        Sample(tokens=[0], logprobs=[0.5], spans=[Span(0, 0, 1)], finish="stop", cached=0),
        Sample(tokens=[0], logprobs=[-math.inf], spans=[Span(0, 0, 1)], finish="stop", cached=0),
        Sample(tokens=[0], logprobs=[], spans=[Span(0, 0, 1)], finish="stop", cached=0),
        Sample(tokens=[0], logprobs=[-0.5], spans=[Span(0, 0, 9)], finish="stop", cached=0),
    ],
)
async def test_a_sample_that_cannot_be_recorded_is_the_engine_s_fault_whatever_the_environment_makes_of_it(
    sample: Sample,
) -> None:
    class Broken(EchoEngine):
        async def sample(self, request: object) -> Sample:  # type: ignore[override]
            return sample

    async def swallow(policy: Policy) -> None:
        with contextlib.suppress(Exception):
            await policy.say("hi")

    with pytest.raises(EngineError, match=r"the engine returned .*: restart it"):
        await play(Careless(swallow), engine=Broken())


async def test_a_dead_engine_is_no_fault_of_the_environment() -> None:
    class DeadEngine(EchoEngine):
        async def sample(self, request: object) -> Sample:  # type: ignore[override]
            raise EngineError("the engine has died")

    with pytest.raises(EngineError):
        await play(Scene("good"), engine=DeadEngine())


async def test_numpy_figures_are_published_as_plain_numbers() -> None:
    outcome = Outcome(reward=np.float32(0.5), metrics={"win": np.float64(1.0)})  # type: ignore[arg-type]
    rollout = await play(Scene(outcome))
    encode(rollout)
    assert (rollout.reward, rollout.metrics) == (0.5, {"win": 1.0})


@pytest.mark.parametrize("name", [1, "two\nlines", "half \ud800"])
async def test_a_metric_with_an_impossible_name_is_an_error(name: object) -> None:
    rollout = await play(Scene(Outcome(reward=1.0, metrics={name: 1.0})))  # type: ignore[dict-item]
    encode(rollout)
    assert rollout.error is not None
    assert "a metric is named" in rollout.error.message


class Careless(Scene):
    """Does to ``policy.say`` what environments should not do."""

    def __init__(self, deed: Callable[[Policy], Awaitable[object]]) -> None:
        super().__init__()
        self.deed = deed

    async def play(self, task: Task, policy: Policy) -> Outcome:
        await self.deed(policy)
        return Outcome(reward=0.0)


async def test_a_cancellation_that_leaves_play_is_an_error_and_no_silence() -> None:
    async def cancel_a_helper(policy: Policy) -> None:
        helper = asyncio.create_task(asyncio.Event().wait())
        helper.cancel()
        await helper

    rollout = await play(Careless(cancel_a_helper))
    assert rollout.error is not None
    assert (rollout.error.kind, "cancellation" in rollout.error.message) == ("environment", True)


async def test_a_cancelled_play_stays_cancelled() -> None:
    playing = asyncio.create_task(play(Scene("hang")))
    await asyncio.sleep(0)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing


async def test_a_timeout_of_the_environment_s_own_is_not_the_play_s() -> None:
    rollout = await play(Scene(TimeoutError("the calculator is slow")))
    assert rollout.error is not None
    assert rollout.error.kind == "environment"
    assert "the calculator is slow" in rollout.error.message


@pytest.mark.parametrize("deed", ["swallows", "wraps"])
async def test_a_dead_engine_is_never_a_reward_whatever_the_environment_makes_of_it(deed: str) -> None:
    class DeadEngine(EchoEngine):
        async def sample(self, request: object) -> Sample:  # type: ignore[override]
            raise EngineError("the engine has died")

    async def swallow(policy: Policy) -> None:
        with contextlib.suppress(Exception):
            await policy.say("hi")

    async def wrap(policy: Policy) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(policy.say("hi"))

    with pytest.raises(EngineError):
        await play(Careless(swallow if deed == "swallows" else wrap), engine=DeadEngine())
