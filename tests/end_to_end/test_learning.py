"""The shipped configurations learn what they promise, on real vLLM and torchtitan. Slow: `make test-real`."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from environments import Policy, Sample, load_environment, load_tokenizer
from headrace.models import make_tiny
from schemas import EnvironmentSettings, Span
from tests.end_to_end.conftest import ROOT
from tests.end_to_end.logbook import check, read_logbook

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shipped") / "tiny"
    make_tiny(folder)
    return folder


def headrace_up(config: str, folder: Path, *sets: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "headrace", "up", f"configs/{config}.toml", "--dir", str(folder), "--json"]
    for each in sets:
        command += ["--set", each]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(summary))
    return summary


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_demo_learns_on_three_seeds(seed: int, tiny: Path, tmp_path: Path) -> None:
    summary = headrace_up("demo", tmp_path, f"run.seed={seed}", f"model.path={tiny}")
    assert summary["reward_last"] >= 0.85
    assert summary["reward_last"] >= summary["reward_first"] + 0.3
    assert summary["staleness_max"] <= 2
    assert summary["swaps"] >= 20
    assert summary["swap_pause_ms_p50"] <= 250
    book = read_logbook(tmp_path / "demo")
    check(book)
    assert any(len(rollout.spans) > 1 for rollout in book.rollouts.values())
    assert not [rollout for rollout in book.rollouts.values() if rollout.error and rollout.error.kind != "stale"]


def test_the_demo_learns_on_policy(tiny: Path, tmp_path: Path) -> None:
    summary = headrace_up("demo", tmp_path, "policy.max_off_policy_steps=0", f"model.path={tiny}")
    assert summary["staleness_max"] == 0
    assert summary["reward_last"] >= summary["reward_first"] + 0.3
    check(read_logbook(tmp_path / "demo"))


def test_the_demo_learns_with_two_generators(tiny: Path, tmp_path: Path) -> None:
    summary = headrace_up("demo", tmp_path, "generator.count=2", f"model.path={tiny}")
    assert summary["reward_last"] >= summary["reward_first"] + 0.3
    book = read_logbook(tmp_path / "demo")
    check(book)
    assert {rollout.generator for rollout in book.rollouts.values()} == {"0", "1"}
    assert {event.id for event in book.lifecycle if event.state == "swapped"} == {"0", "1"}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_guess_is_won(seed: int, tiny: Path, tmp_path: Path) -> None:
    summary = headrace_up("guess", tmp_path, f"run.seed={seed}", f"model.path={tiny}")
    assert summary["metrics"]["guess"]["win"] >= 0.8


def test_smollm2_learns_sums(tmp_path: Path) -> None:
    summary = headrace_up("smollm2", tmp_path)
    steps = read_logbook(tmp_path / "smollm2").steps
    exact = [step.env_metrics["sums"]["exact"] for step in steps]
    assert len(exact) == 16
    assert sum(exact[-4:]) / 4 >= sum(exact[:3]) / 3 + 0.2
    assert summary["logprob_gap_mean"] <= 1e-3


class Transformers:
    """A sampler on transformers alone."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.manual_seed(0)
        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(folder).eval()

    async def sample(self, tokens: list[int], *, max_tokens: int, stop_ids: list[int]) -> Sample:
        torch, taken, logprobs = self._torch, list(tokens), []
        finish = "length"
        with torch.inference_mode():
            for _ in range(max_tokens):
                row = self._model(torch.tensor([taken])).logits[0, -1].log_softmax(-1)
                taken.append(int(torch.multinomial(row.exp(), 1)))
                logprobs.append(float(row[taken[-1]]))
                if taken[-1] in stop_ids:
                    finish = "stop"
                    break
        new = taken[len(tokens) :]
        return Sample(tokens=new, logprobs=logprobs, spans=[Span(0, 0, len(new))], finish=finish, cached=0)  # type: ignore[arg-type]


def test_an_exported_model_scores_in_transformers_what_the_run_s_end_scored(tiny: Path, tmp_path: Path) -> None:
    summary = headrace_up("demo", tmp_path, "run.steps=40", f"model.path={tiny}")
    exported = tmp_path / "exported"
    command = [sys.executable, "-m", "headrace", "model", "export", "demo", str(exported), "--dir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    environment = load_environment(EnvironmentSettings(name="reverse"), seed=99)
    sampler, tokenizer = Transformers(exported), load_tokenizer(exported)

    async def score(count: int = 300) -> float:
        rewards = [
            (await environment.play(environment.task(index), Policy(sampler, tokenizer, 64))).reward
            for index in range(count)
        ]
        return sum(rewards) / count

    assert asyncio.run(score()) == pytest.approx(summary["reward_last"], abs=0.06)
