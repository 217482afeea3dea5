"""A whole run, and what its log proves. Once with two stand-in engines, once with real vLLM."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from consumers.trainer.batch import documents as documents_of
from consumers.trainer.groups import Member
from consumers.trainer.packing import build_micro_batches, pack
from consumers.trainer.titan import Learner
from headrace.training import rules
from schemas import Rollout
from tests.end_to_end.conftest import ROOT, STAND_IN, Start
from tests.end_to_end.logbook import Logbook, check, read_logbook

pytestmark = pytest.mark.timeout(400)


class Finished(msgspec.Struct):
    summary: dict[str, Any]
    book: Logbook
    generators: int


@pytest.fixture(
    scope="module",
    params=[pytest.param((STAND_IN, 2), id="stand_in"), pytest.param(("vllm", 1), id="vllm", marks=pytest.mark.engine)],
)
def finished(request: pytest.FixtureRequest, start: Start, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    engine, generators = request.param
    up = start(tmp_path_factory.mktemp("run"), engine=engine, generators=generators)
    summary = up.end()
    return Finished(summary, read_logbook(up.folder), generators)


def test_the_log_is_whole(finished: Finished) -> None:
    check(finished.book)
    assert len(finished.book.steps) == 24


def test_the_summary_says_what_the_log_says(finished: Finished) -> None:
    summary, book = finished.summary, finished.book
    assert summary["steps"] == 24
    assert summary["rollouts_published"] == len(book.rollouts)
    trained = sum(a is not None for step in book.steps for group in step.groups for a in group.advantages)
    assert summary["rollouts_trained"] == trained
    assert summary["staleness_max"] <= 2
    swapped = [event for event in book.lifecycle if event.state == "swapped"]
    # A generator that is held up passes versions over, but never more at once than may be missing to its rollouts.
    assert summary["swaps"] == len(swapped) - finished.generators >= 24 // (2 + 1)
    assert set(summary["metrics"]) == {"guess", "reverse"}
    assert sum(summary["restarts"].values()) == 0


def test_every_generator_plays_and_swaps(finished: Finished) -> None:
    played = {rollout.generator for rollout in finished.book.rollouts.values()}
    swapped = {event.id for event in finished.book.lifecycle if event.state == "swapped"}
    assert played == swapped == {str(number) for number in range(finished.generators)}


def test_no_request_was_dropped_by_a_swap(finished: Finished) -> None:
    rollouts = finished.book.rollouts.values()
    assert {rollout.error.kind for rollout in rollouts if rollout.error} <= {"stale"}
    assert any(len(rollout.spans) > 1 for rollout in rollouts), "no rollout lived through a swap: nothing is shown"


def whole(rollout: Rollout) -> bool:
    """Sampled by one version from its prompt to its last token."""
    return len(rollout.spans) == 1


def test_log_probabilities_are_those_of_the_version_that_the_span_names(finished: Finished, tmp_path: Path) -> None:
    """Recomputed by the trainer's own model with the weights of each version: labels, swaps and salts at once."""
    book = finished.book
    config = book.config
    learner = Learner(
        Path(config.model.path),
        config.trainer,
        temperature=config.policy.temperature,
        dtype="float32",
        seed=0,
        steps=1,
        checkpoints=tmp_path,
    )
    gaps = []
    for weights in book.weights:
        members = [
            Member(sequence, rollout)
            for sequence, rollout in book.rollouts.items()
            if whole(rollout) and rollout.least_version == weights.version
        ]
        if not members:
            continue
        learner.load_weights(book.folder.weights / weights.sha256)
        documents = [each for m in members for each in documents_of(m, 1.0, weights.version + 1, rules(config))]
        packing = pack([len(each.tokens) for each in documents], row_tokens=128, micro_batch_tokens=4096)
        for batch in build_micro_batches(packing, documents):
            gaps.append(np.abs(learner.logprobs(batch) - batch.logprobs_RL)[batch.trained_RL])
    gap = np.concatenate(gaps)
    assert gap.size > 2000
    assert gap.mean() <= 1e-3
    assert gap.max() <= 1e-2


def test_the_whole_run_can_be_trained_again(finished: Finished) -> None:
    folder = finished.book.folder
    command = [sys.executable, "-m", "headrace", "replay", "train", folder.name, "--dir", str(folder.path.parent)]
    told = subprocess.run([*command, "--json"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    *steps, last = [json.loads(line) for line in told.stdout.splitlines()]
    assert (last["steps"], last["identical"], last["first_difference"]) == (24, True, None)
    assert last["environment_differs"] == []
    assert [step["weights"] for step in steps] == [step.weights_after for step in finished.book.steps]


def test_the_run_learns_from_rollouts_that_were_really_rewarded(finished: Finished) -> None:
    for rollout in finished.book.rollouts.values():
        assert (rollout.reward is None) == (rollout.error is not None)
        assert -0.2 <= (rollout.reward or 0.0) <= 1.0
    assert {rollout.env for rollout in finished.book.rollouts.values()} == {"guess", "reverse"}
