"""Each loss trains the demo to its reward, on real vLLM and torchtitan. Slow: `make test-real`."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.models import make_tiny
from tests.end_to_end.logbook import check, read_logbook
from tests.end_to_end.test_learning import headrace_up

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

LOSSES = {
    "grpo of the paper": ["trainer.loss=grpo", "trainer.aggregation=sequence_mean", "trainer.clip_high=0.2"],
    "dapo": ["trainer.loss=dapo", "trainer.truncated=mask"],
    "dr_grpo": ["trainer.loss=dr_grpo", "trainer.advantage=mean"],
    "gspo": ["trainer.loss=gspo"],
    "cispo, leaving one out": ["trainer.loss=cispo", "trainer.advantage=loo"],
    "dppo": ["trainer.loss=dppo", "trainer.tis_cap=4.0"],
    "ipo": ["trainer.loss=ipo", "trainer.divergence_bound=0.3"],
    "grpo with weights": ["trainer.loss=grpo", "trainer.tis_cap=2.0"],
    "grpo held to the start": ["trainer.loss=grpo", "trainer.kl_coef=0.001"],
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("losses") / "tiny"
    make_tiny(folder)
    return folder


@pytest.mark.parametrize("sets", LOSSES.values(), ids=LOSSES)
def test_the_demo_learns_with_each_loss(sets: list[str], tiny: Path, tmp_path: Path) -> None:
    summary = headrace_up("demo", tmp_path, f"model.path={tiny}", *sets)
    assert summary["reward_last"] >= 0.85
    assert summary["reward_last"] >= summary["reward_first"] + 0.3
    book = read_logbook(tmp_path / "demo")
    check(book)
    assert all(0 < step.metrics["ess"] <= 1 for step in book.steps)
    assert all(0 <= step.metrics["padding_share"] < 1 for step in book.steps)
