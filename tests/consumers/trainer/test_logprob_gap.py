"""Trainer and generator compute the same, or nothing is trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus import Bus
from consumers.trainer.logprob_gap import DEFAULT_BOUNDS, LEAST_TOKENS, Dtype, check_logprob_gap, default_bound
from consumers.trainer.titan import Learner
from schemas import RunError, Span, Step, Term, Turn, Weights
from tests.consumers.trainer.digest_learner import DigestLearner
from tests.consumers.trainer.tiny_models import VOCABULARY, make_model
from tests.consumers.trainer.trained_run import TrainedRun, events, publish_groups
from tests.examples import packed_logprobs, packed_tokens, rollout

CONTEXT, SAMPLED = 4, 56


def gap(mean: float, tokens: float = LEAST_TOKENS) -> dict[str, float]:
    return {"loss": 0.1, "logprob_gap_mean": mean, "logprob_gap_max": 9.0, "logprob_gap_tokens": tokens}


@given(st.floats(min_value=0), st.floats(min_value=1e-6, max_value=100), st.integers(0, 100_000))
def test_a_gap_above_the_bound_is_refused_where_enough_tokens_tell(mean: float, bound: float, tokens: int) -> None:
    if tokens >= LEAST_TOKENS and mean > bound:
        with pytest.raises(RunError):
            check_logprob_gap(3, gap(mean, tokens), bound=bound)
    else:
        check_logprob_gap(3, gap(mean, tokens), bound=bound)


def test_a_gap_that_is_no_number_is_refused() -> None:
    with pytest.raises(RunError, match="nan nats"):
        check_logprob_gap(1, gap(float("nan")), bound=0.1)


def test_a_step_without_exact_tokens_says_nothing() -> None:
    check_logprob_gap(1, {"loss": 0.1}, bound=0.1)


def test_the_message_names_the_gap_the_step_the_causes_and_the_remedy() -> None:
    with pytest.raises(RunError) as caught:
        check_logprob_gap(7, gap(0.25, 200), bound=0.1)
    for part in ("step 7 is not committed", "the 200 tokens", "differ by 0.25 nats in the mean, and 0.1 are allowed",
                 "rotary positions", "stale weights", "too coarse", "--set trainer.max_logprob_gap="):  # fmt: skip
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("trainer", "generator", "bound"),
    [("float32", "float32", 1e-3), ("bfloat16", "float32", 0.1), ("float32", "bfloat16", 0.1),
     ("bfloat16", "bfloat16", 0.1)],
)  # fmt: skip
def test_the_coarser_type_of_the_two_decides_the_bound(trainer: Dtype, generator: Dtype, bound: float) -> None:
    assert default_bound(trainer=trainer, generator=generator) == bound


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models"), "llama")


@pytest.fixture(scope="module")
def wrong_rope(model: Path) -> Path:
    """The same weights; only the rotary base is another one."""
    folder = model.parent / "wrong"
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] *= 10
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def sampled_logprobs(model_dir: Path, tokens: np.ndarray) -> list[float]:
    """What a generator that computes with ``model_dir`` says of all but the first CONTEXT tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    ids = torch.from_numpy(tokens)
    with torch.no_grad():
        logprobs = torch.log_softmax(model(ids[None]).logits[0], -1)
    return [float(logprobs[t - 1, ids[t]]) for t in range(CONTEXT, len(tokens))]


async def publish_played(bus: Bus, model_dir: Path, groups: int) -> None:
    """Groups that weights 0 of ``model_dir`` have played."""
    random = np.random.default_rng(0)
    for group in range(groups):
        for member in (0, 1):
            tokens = random.integers(0, VOCABULARY, CONTEXT + SAMPLED)
            played: dict[str, Any] = {
                "tokens": packed_tokens(tokens.tolist()),
                "logprobs": packed_logprobs(sampled_logprobs(model_dir, tokens)),
                "turns": [Turn(context=CONTEXT, sampled=SAMPLED, cached=0, finish="stop")],
                "spans": [Span(version=0, start=0, end=SAMPLED)],
            }
            await bus.publish(
                rollout(run=bus.run, group=group, member=member, reward=float(member), swaps_during=0, **played)
            )


def train(trained: TrainedRun, model_dir: Path, **settings: Any) -> None:
    """One step, by a learner that computes with ``model_dir``."""
    trained.settings = msgspec.structs.replace(trained.settings, **settings)
    trained.learner = lambda: Learner(
        model_dir, trained.settings, temperature=1.0, dtype="float32", seed=0, steps=1, checkpoints=trained.checkpoints
    )
    trained.finish(steps=1)


async def test_the_right_rope_is_trained(trained: TrainedRun, connect_as: Any, model: Path) -> None:
    bus = await connect_as("generator")
    await publish_played(bus, model, groups=2)
    train(trained, model)
    (step,) = await events(bus, Step)
    assert step.metrics["logprob_gap_tokens"] == 4 * SAMPLED
    assert step.metrics["logprob_gap_mean"] < 1e-5


async def test_a_wrong_rope_is_refused_before_the_first_step_is_committed(
    trained: TrainedRun, connect_as: Any, model: Path, wrong_rope: Path
) -> None:
    bus = await connect_as("generator")
    await publish_played(bus, model, groups=2)
    with pytest.raises(RunError, match=r"step 1 is not committed: .* differ by .*rotary positions"):
        train(trained, wrong_rope)
    assert [type(event) for event in await events(bus)] == [Term, Weights]
    assert [weights.version for weights in await events(bus, Weights)] == [0]
    assert trained.files() == ["step-0"]


async def test_a_gap_that_is_allowed_is_trained(
    trained: TrainedRun, connect_as: Any, model: Path, wrong_rope: Path
) -> None:
    bus = await connect_as("generator")
    await publish_played(bus, model, groups=2)
    train(trained, wrong_rope, max_logprob_gap=20.0)
    (step,) = await events(bus, Step)
    assert step.metrics["logprob_gap_mean"] > DEFAULT_BOUNDS["bfloat16"]


async def test_what_was_committed_is_trained_again_whatever_its_gap(trained: TrainedRun, connect_as: Any) -> None:
    """Recovery and replay repeat decisions; this one was taken under another bound."""
    bus = await connect_as("generator")
    await publish_groups(bus, [0, 1])

    def learner() -> DigestLearner:
        learner = DigestLearner(trained.checkpoints)
        learner.metrics = gap(0.5)
        return learner

    trained.learner = learner
    with pytest.raises(RunError, match="step 1 is not committed"):
        trained.finish(steps=1)
    trained.settings = msgspec.structs.replace(trained.settings, max_logprob_gap=1.0)
    trained.finish(steps=1)
    shutil.rmtree(trained.checkpoints / "step-1")
    trained.settings = msgspec.structs.replace(trained.settings, max_logprob_gap=None)
    trained.finish(steps=1)
    assert [step.number for step in await events(bus, Step)] == [1]
    assert trained.files() == ["step-0", "step-1"]


async def test_a_trainer_that_computes_in_bfloat16_may_differ_from_a_generator_in_float32(
    trained: TrainedRun, connect_as: Any
) -> None:
    """As on a GPU, where every shipped configuration has weights.dtype = "float32" and the gap is about 0.005."""
    bus = await connect_as("generator")
    await publish_groups(bus, [0, 1])

    def learner() -> DigestLearner:
        learner = DigestLearner(trained.checkpoints)
        learner.metrics, learner.computes_in = gap(0.005), "bfloat16"
        return learner

    trained.learner = learner
    trained.finish(steps=1)
    assert [step.metrics["logprob_gap_mean"] for step in await events(bus, Step)] == [0.005]
