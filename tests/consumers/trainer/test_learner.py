"""A learner's step is the step it should be, and its bytes are the same every time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load

from consumers.trainer.micro_batch import MicroBatch
from consumers.trainer.packing import Document
from consumers.trainer.titan import Learner
from schemas import ConfigError
from tests.consumers.trainer.tiny_learner import TEMPERATURE, learner, micro_batches, settings
from tests.consumers.trainer.tiny_models import make_model, random_documents

Kind = Literal["grpo", "reinforce"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models"))


def reference_steps(model_dir: Path, steps: list[list[Document]], kind: Kind) -> dict[str, torch.Tensor]:
    """The same steps by transformers and plain torch, one document at a time and with its own loss."""
    from transformers import AutoModelForCausalLM

    s = settings()
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=s.lr, betas=s.betas, weight_decay=s.weight_decay)
    for number, documents in enumerate(steps):
        terms = []
        for document in documents:
            ids = torch.from_numpy(document.tokens.astype(np.int64))
            logprobs = torch.log_softmax(model(ids[None]).logits[0] / TEMPERATURE, -1)
            of_tokens = logprobs[:-1].gather(-1, ids[1:, None])[:, 0]
            new = torch.cat([of_tokens[run.start - 1 : run.stop - 1] for run in document.trained])
            ratio = torch.exp(new - torch.from_numpy(document.logprobs))
            if kind == "grpo":
                bounded = torch.clip(ratio, 1 - s.clip_low, 1 + s.clip_high)
                terms.append(-torch.minimum(ratio * document.advantage, bounded * document.advantage))
            else:
                terms.append(-torch.clip(ratio.detach(), max=1 + s.clip_high) * document.advantage * new)
        torch.cat(terms).mean().backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), s.max_grad_norm)
        optimizer.param_groups[0]["lr"] = s.lr * min(1, (number + 1) / s.warmup_steps)
        optimizer.step()
        optimizer.zero_grad()
    return {name: value.detach() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("kind", ["grpo", "reinforce"])
def test_steps_are_those_of_plain_torch(kind: Kind, model: Path, tmp_path: Path) -> None:
    steps = [random_documents(12, seed=seed) for seed in range(3)]
    policy = learner(model, tmp_path, loss=kind)
    for documents in steps:
        policy.step(micro_batches(documents))
    found, before = load(policy.export()), load(learner(model, tmp_path).export())
    expected = reference_steps(model, steps, kind)
    for name, value in found.items():
        moved = (expected[name] - before[name]).abs().mean()
        assert moved > 5e-4  # a test that nothing moves would pass for a step that does nothing
        # AdamW's first steps are of the size of the sign of the gradient: a few weights whose gradient is
        # nearly 0 may go the other way, the rest must agree.
        assert (value - expected[name]).abs().mean() < 0.01 * moved, name


def test_loss_and_metrics_are_means_over_trained_tokens(model: Path, tmp_path: Path) -> None:
    documents = random_documents(10)
    policy = learner(model, tmp_path, warmup_steps=4)
    (batch,) = micro_batches(documents, tokens=4096)
    new = policy.logprobs(batch)[batch.trained_RL].astype(np.float64)
    old, advantage = batch.logprobs_RL[batch.trained_RL], batch.advantages_RL[batch.trained_RL]
    ratio = np.exp(new - old)
    metrics = policy.step([batch])
    bounded = np.clip(ratio, 0.8, 1.28)
    assert metrics["loss"] == pytest.approx(-np.minimum(ratio * advantage, bounded * advantage).mean(), rel=1e-5)
    assert metrics["ratio_mean"] == pytest.approx(ratio.mean(), rel=1e-5)
    assert metrics["ratio_max"] == pytest.approx(ratio.max(), rel=1e-5)
    assert metrics["kl"] == pytest.approx((ratio - 1 - np.log(ratio)).mean(), rel=1e-5)
    clipped = ((ratio > 1.28) & (advantage > 0)) | ((ratio < 0.8) & (advantage < 0))
    assert metrics["clip_fraction"] == pytest.approx(clipped.mean())
    assert metrics["ess"] == pytest.approx(ratio.sum() ** 2 / (ratio.size * np.square(ratio).sum()), rel=1e-5)
    assert 0 < metrics["entropy"] < np.log(64)
    assert metrics["grad_norm"] > 0
    assert metrics["lr"] == pytest.approx(1e-3 / 4)
    gap = np.abs(new - old)[batch.exact_RL[batch.trained_RL]]
    assert metrics["logprob_gap_mean"] == pytest.approx(gap.mean(), rel=1e-5)
    assert metrics["logprob_gap_max"] == pytest.approx(gap.max(), rel=1e-5)
    assert metrics["logprob_gap_tokens"] == gap.size
    assert len(metrics) == 12


def test_without_exact_tokens_there_is_no_gap_to_report(model: Path, tmp_path: Path) -> None:
    (batch,) = micro_batches(random_documents(4), tokens=4096)
    none = msgspec.structs.replace(batch, exact_RL=np.zeros_like(batch.exact_RL))
    assert not any(name.startswith("logprob_gap") for name in learner(model, tmp_path).step([none]))


def on_policy(policy: Learner, batch: MicroBatch) -> MicroBatch:
    return msgspec.structs.replace(batch, logprobs_RL=policy.logprobs(batch))


def test_on_policy_ratios_are_exactly_one(model: Path, tmp_path: Path) -> None:
    policy = learner(model, tmp_path)
    metrics = policy.step([on_policy(policy, batch) for batch in micro_batches(random_documents(10))])
    assert metrics["ratio_mean"] == metrics["ratio_max"] == metrics["ess"] == 1.0
    assert metrics["kl"] == metrics["clip_fraction"] == 0.0


def test_a_step_makes_good_tokens_likelier_and_bad_ones_less_likely(model: Path, tmp_path: Path) -> None:
    policy = learner(model, tmp_path, warmup_steps=0)
    documents = [
        msgspec.structs.replace(document, advantage=1.0 if n % 2 else -1.0)
        for n, document in enumerate(random_documents(8))
    ]
    (batch,) = micro_batches(documents, tokens=4096)
    before = policy.logprobs(batch)
    for _ in range(3):
        policy.step([on_policy(policy, batch)])
    gain = policy.logprobs(batch) - before
    assert gain[batch.advantages_RL > 0].mean() > 0.05
    assert gain[batch.advantages_RL < 0].mean() < -0.05


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"loss": "reinforce"},
        {"loss": "gspo"},
        {"loss": "dr_grpo", "advantage": "mean"},
        {"loss": "dppo", "aggregation": "sequence_mean", "tis_cap": 1.1},
        {"loss": "ipo", "kl_coef": 0.1},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())) or "grpo",
)
def test_splitting_into_micro_batches_does_not_change_a_step(
    changes: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    documents = random_documents(20)
    one, several = micro_batches(documents, tokens=4096), micro_batches(documents, tokens=64)
    assert len(one) == 1
    assert len(several) > 3
    first, second = (learner(model, tmp_path, **changes) for _ in range(2))
    a, b = first.step(one), second.step(several)
    assert a == pytest.approx(b, rel=1e-4)
    np.testing.assert_allclose(first.logprobs(one[0]), second.logprobs(one[0]), atol=1e-3)


def token_losses(policy: Learner, batch: MicroBatch) -> tuple[Any, Any, Any]:
    """Of each trained token: its unclipped loss -r A, the trained length of its document, and its document."""
    new, old = policy.logprobs(batch)[batch.trained_RL].astype(np.float64), batch.logprobs_RL[batch.trained_RL]
    documents = batch.documents_RL[batch.trained_RL]
    lengths = np.bincount(documents)[documents]
    return -np.exp(new - old) * batch.advantages_RL[batch.trained_RL], lengths, documents


def test_a_loss_is_the_mean_that_its_aggregation_says(model: Path, tmp_path: Path) -> None:
    (batch,) = micro_batches(random_documents(10), tokens=4096)
    wide = {"clip_low": 1.0, "clip_high": 1e6}
    losses, lengths, documents = token_losses(learner(model, tmp_path), batch)
    assert len(set(lengths)) > 3
    count = len(set(documents))
    expected = {
        "token_mean": losses.mean(),
        "sequence_mean": (losses / lengths).sum() / count,
        "constant": losses.sum() / (count * 20),
    }
    for aggregation, loss in expected.items():
        policy = learner(model, tmp_path, aggregation=aggregation, length_constant=20, **wide)
        assert policy.step([batch])["loss"] == pytest.approx(loss, rel=1e-4), aggregation


def test_truncated_importance_sampling_caps_the_weights(model: Path, tmp_path: Path) -> None:
    (batch,) = micro_batches(random_documents(10), tokens=4096)
    losses, _, _ = token_losses(learner(model, tmp_path), batch)
    ratios = losses / -batch.advantages_RL[batch.trained_RL]
    metrics = learner(model, tmp_path, tis_cap=1.1).step([batch])
    assert metrics["loss"] == pytest.approx((losses * np.minimum(1, 1.1 / ratios)).mean(), rel=1e-4)
    assert metrics["clip_fraction"] == pytest.approx((ratios > 1.1).mean())
    assert metrics["ratio_max"] == pytest.approx(ratios.max(), rel=1e-4)


def test_kl_holds_the_policy_to_the_weights_that_the_run_started_from(model: Path, tmp_path: Path) -> None:
    batches = micro_batches(random_documents(10))
    free, held = learner(model, tmp_path, warmup_steps=0), learner(model, tmp_path, warmup_steps=0, kl_coef=10.0)
    start = free.logprobs(batches[0])
    for number in range(4):
        unbound, metrics = free.step(batches), held.step(batches)
        assert "kl_start" not in unbound
        assert (metrics["kl_start"] == 0) is (number == 0)  # before the first update it is the start
    assert np.abs(held.logprobs(batches[0]) - start).mean() < 0.6 * np.abs(free.logprobs(batches[0]) - start).mean()


def test_a_run_s_own_loss_is_asked_for_by_name(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trainer.loss 'grpoo' is no loss"):
        learner(model, tmp_path, loss="grpoo")
    with pytest.raises(ConfigError, match=r"trainer.loss_args.beta: loss 'grpo' has no such setting"):
        learner(model, tmp_path, loss_args={"beta": 1.0})


@pytest.mark.parametrize("kind", ["selective", "full"])
def test_what_is_computed_again_changes_no_bit(kind: str, model: Path, tmp_path: Path) -> None:
    plain, again = learner(model, tmp_path), learner(model, tmp_path / kind, activation_checkpointing=kind)
    assert again.export() == plain.export()
    for seed in range(2):
        batches = micro_batches(random_documents(10, seed=seed))
        assert again.step(batches) == plain.step(batches)
    assert again.export() == plain.export()
    plain.save_checkpoint(2)
    changed = learner(model, tmp_path, activation_checkpointing=kind)
    changed.load_checkpoint(2)
    assert changed.export() == plain.export()


def test_layers_are_computed_again_where_it_is_asked_for(model: Path, tmp_path: Path) -> None:
    batches = micro_batches(random_documents(4))
    calls = {}
    for kind in ("none", "full"):
        policy = learner(model, tmp_path, activation_checkpointing=kind)
        count = [0]
        norms = [each for name, each in policy._policy.model.named_modules() if name.endswith("attention_norm")]
        norms[0].register_forward_hook(lambda *_, count=count: count.__setitem__(0, count[0] + 1))
        policy.step(batches)
        calls[kind] = count[0]
    assert calls["full"] == 2 * calls["none"]


def test_compiling_is_refused_on_the_cpu(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trainer.compile is for GPUs"):
        learner(model, tmp_path, compile=True)


def test_gradients_are_scaled_down_to_their_greatest_norm(model: Path, tmp_path: Path) -> None:
    free, bound = learner(model, tmp_path, max_grad_norm=1e6), learner(model, tmp_path, max_grad_norm=1e-9)
    batches = micro_batches(random_documents(10))
    assert free.step(batches)["grad_norm"] == bound.step(batches)["grad_norm"]
    start = learner(model, tmp_path).logprobs(batches[0])
    # So small that AdamW's epsilon outweighs it: hardly a step at all.
    assert np.abs(bound.logprobs(batches[0]) - start).max() < 0.1 * np.abs(free.logprobs(batches[0]) - start).max()


def test_a_step_without_a_trained_token_is_our_own_mistake(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="without a trained token"):
        learner(model, tmp_path).step([])


def test_a_trained_first_token_is_our_own_mistake(model: Path, tmp_path: Path) -> None:
    (batch,) = micro_batches(random_documents(1))
    wrong = msgspec.structs.replace(batch, trained_RL=batch.positions_RL == 0)
    with pytest.raises(ValueError, match="first token of a document"):
        learner(model, tmp_path).step([wrong])


def test_the_same_steps_give_the_same_bytes(model: Path, tmp_path: Path) -> None:
    first, second = learner(model, tmp_path), learner(model, tmp_path)
    assert first.export() == second.export()
    for seed in range(3):
        batches = micro_batches(random_documents(10, seed=seed))
        assert first.step(batches) == second.step(batches)
        assert first.export() == second.export()
    assert first.export() != learner(model, tmp_path).export()
