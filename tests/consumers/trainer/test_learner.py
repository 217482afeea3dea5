"""A learner's step is the step it should be, its bytes are the same every time, and its checkpoints are whole."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load

from consumers.trainer import CheckpointUnusable
from consumers.trainer.micro_batch import MicroBatch
from consumers.trainer.packing import Document, build_micro_batches, pack
from consumers.trainer.settings import TrainerSettings
from consumers.trainer.titan import Learner
from schemas import ConfigError
from tests.consumers.trainer.tiny_models import make_model, random_documents

Kind = Literal["grpo", "reinforce"]
TEMPERATURE = 0.8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models"))


def settings(**changes: Any) -> TrainerSettings:
    return TrainerSettings(**{"row_tokens": 64, "micro_batch_tokens": 256, "lr": 1e-3, "warmup_steps": 2, **changes})


def learner(model: Path, checkpoints: Path, seed: int = 0, **changes: Any) -> Learner:
    return Learner(
        model,
        settings(**changes),
        temperature=TEMPERATURE,
        dtype="float32",
        seed=seed,
        steps=10,
        checkpoints=checkpoints,
    )


def micro_batches(documents: list[Document], *, tokens: int = 256) -> list[MicroBatch]:
    packing = pack([len(d.tokens) for d in documents], row_tokens=64, micro_batch_tokens=tokens)
    return build_micro_batches(packing, documents)


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
            new = logprobs[:-1].gather(-1, ids[1:, None])[:, 0][torch.from_numpy(document.trained[1:])]
            ratio = torch.exp(new - torch.from_numpy(document.logprobs[document.trained]))
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


def test_kl_is_still_to_the_start_after_a_checkpoint(model: Path, tmp_path: Path) -> None:
    batches = micro_batches(random_documents(10))
    policy = learner(model, tmp_path, kl_coef=0.5)
    for _ in range(2):
        policy.step(batches)
    policy.save_checkpoint(2)
    expected = policy.step(batches)
    assert expected["kl_start"] > 0
    restored = learner(model, tmp_path, kl_coef=0.5)
    restored.load_checkpoint(2)
    assert restored.step(batches) == expected
    assert restored.export() == policy.export()


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


def test_learning_rate_rises_and_then_stays(model: Path, tmp_path: Path) -> None:
    policy = learner(model, tmp_path, warmup_steps=3)
    batches = micro_batches(random_documents(2))
    rates = [policy.step(batches)["lr"] for _ in range(13)]  # past the 10 steps that the learner was told
    assert rates[:2] == pytest.approx([1e-3 / 3, 2e-3 / 3])
    assert rates[2:] == [1e-3] * 11


@pytest.mark.parametrize(
    ("decay", "factors"),
    [
        # Of the 10 steps two warm up. Then (10 - step) / 8 is left after `step` more, and half of 1 + cos.
        ("linear", [0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]),
        ("cosine", [0.5, 1.0, 1.0, 0.96194, 0.853553, 0.691342, 0.5, 0.308658, 0.146447, 0.03806]),
    ],
)
def test_learning_rate_falls_until_the_run_s_last_step(
    decay: str, factors: list[float], model: Path, tmp_path: Path
) -> None:
    policy = learner(model, tmp_path, lr_decay=decay)
    batches = micro_batches(random_documents(2))
    rates = [policy.step(batches)["lr"] for _ in range(10)]
    assert rates == pytest.approx([1e-3 * factor for factor in factors], rel=1e-4)


def test_a_longer_run_has_its_own_decay_from_the_checkpoint_on(model: Path, tmp_path: Path) -> None:
    batches = micro_batches(random_documents(2))
    policy = learner(model, tmp_path, lr_decay="linear", warmup_steps=0)
    for _ in range(5):
        policy.step(batches)
    policy.save_checkpoint(5)
    longer = Learner(
        model,
        settings(lr_decay="linear", warmup_steps=0),
        temperature=TEMPERATURE,
        dtype="float32",
        seed=0,
        steps=20,
        checkpoints=tmp_path,
    )
    longer.load_checkpoint(5)
    assert longer.step(batches)["lr"] == pytest.approx(1e-3 * 15 / 20)
    assert policy.step(batches)["lr"] == pytest.approx(1e-3 * 5 / 10)


@pytest.mark.parametrize("steps", [1, 3, 4, 100])
def test_learning_rate_does_not_depend_on_the_length_of_the_run(steps: int, model: Path, tmp_path: Path) -> None:
    policy = Learner(
        model, settings(warmup_steps=3), temperature=1.0, dtype="float32", seed=0, steps=steps, checkpoints=tmp_path
    )
    batches = micro_batches(random_documents(2))
    assert [policy.step(batches)["lr"] for _ in range(5)] == pytest.approx([1e-3 / 3, 2e-3 / 3, *[1e-3] * 3])


def test_weight_decay_shrinks_what_the_gradient_leaves_alone(model: Path, tmp_path: Path) -> None:
    batches = micro_batches([msgspec.structs.replace(d, advantage=0.0) for d in random_documents(3)])
    policy = learner(model, tmp_path, weight_decay=0.5, warmup_steps=0)
    before = load(policy.export())
    policy.step(batches)
    for name, value in load(policy.export()).items():
        torch.testing.assert_close(value, before[name] * (1 - 1e-3 * 0.5))


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


def test_a_checkpoint_restores_model_optimizer_schedule_and_random_state(model: Path, tmp_path: Path) -> None:
    batches = [micro_batches(random_documents(10, seed=seed)) for seed in range(4)]
    original = learner(model, tmp_path, warmup_steps=4)
    for step in range(2):
        original.step(batches[step])
    original.save_checkpoint(2)
    expected_random = torch.rand(4)
    expected = [original.step(batches[step]) for step in (2, 3)]

    restored = learner(model, tmp_path, warmup_steps=4, seed=9)
    assert restored.checkpoints() == [2]
    restored.load_checkpoint(2)
    assert torch.equal(torch.rand(4), expected_random)
    assert [restored.step(batches[step]) for step in (2, 3)] == expected
    assert restored.export() == original.export()


def test_a_checkpoint_made_while_training_goes_on_is_of_its_step(model: Path, tmp_path: Path) -> None:
    batches = [micro_batches(random_documents(10, seed=seed)) for seed in range(3)]
    original = learner(model, tmp_path, warmup_steps=4)
    original.step(batches[0])
    make = original.begin_checkpoint(1)
    assert original.checkpoints() == [], "nothing has its name before it is complete"
    expected_random = torch.rand(4)
    expected = [original.step(batches[step]) for step in (1, 2)]
    make()
    restored = learner(model, tmp_path, warmup_steps=4, seed=9)
    assert restored.checkpoints() == [1]
    restored.load_checkpoint(1)
    assert torch.equal(torch.rand(4), expected_random)
    assert [restored.step(batches[step]) for step in (1, 2)] == expected
    assert restored.export() == original.export()


def test_checkpoint_0_restores_the_start_whole(model: Path, tmp_path: Path) -> None:
    batches = micro_batches(random_documents(10))
    policy = learner(model, tmp_path)
    start = policy.export()
    policy.save_checkpoint(0)
    assert policy.export() == start
    first = policy.step(batches), policy.export()
    policy.step(batches)
    policy.load_checkpoint(0)
    assert policy.export() == start
    assert (policy.step(batches), policy.export()) == first


def test_checkpoint_0_does_not_count_as_a_step(model: Path, tmp_path: Path) -> None:
    batches = [micro_batches(random_documents(10, seed=seed)) for seed in range(2)]
    plain, saved = learner(model, tmp_path / "none"), learner(model, tmp_path / "some")
    saved.save_checkpoint(0)
    for batch in batches:
        assert saved.step(batch) == plain.step(batch)
        assert saved.export() == plain.export()


def test_settings_that_changed_since_a_checkpoint_count_as_they_are_now(model: Path, tmp_path: Path) -> None:
    batches = micro_batches(random_documents(10))
    policy = learner(model, tmp_path)
    policy.step(batches)
    policy.save_checkpoint(1)
    changed = learner(model, tmp_path, lr=1e-9, weight_decay=0.5, betas=(0.5, 0.6))
    changed.load_checkpoint(1)
    assert changed.step(batches)["lr"] == pytest.approx(1e-9)
    before, after = load(policy.export()), load(changed.export())
    assert max(float((after[name] - before[name]).abs().max()) for name in before) < 1e-7
    (group,) = changed._optimizer.containers[0].optimizers[0].param_groups
    assert (group["betas"], group["weight_decay"]) == ((0.5, 0.6), 0.5)


def test_loaded_weights_leave_the_optimizer_alone(model: Path, tmp_path: Path) -> None:
    batches = micro_batches(random_documents(10))
    policy, other = learner(model, tmp_path), learner(model, tmp_path)
    for either in (policy, other):
        either.step(batches)
    (tmp_path / "model.safetensors").write_bytes(policy.export())
    other.load_weights(tmp_path)
    assert other.export() == policy.export()
    policy.step(batches)
    other.step(batches)
    assert other.export() == policy.export()
    # and the parameters do come from the file
    other.load_weights(model)
    assert other.export() == learner(model, tmp_path).export()


def test_checkpoints_beyond_the_newest_go_but_checkpoint_0_stays(model: Path, tmp_path: Path) -> None:
    policy = learner(model, tmp_path / "kept", keep_checkpoints=2)
    for step in (0, 2, 4, 6):
        policy.save_checkpoint(step)
    assert policy.checkpoints() == [0, 4, 6]
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["step-0", "step-4", "step-6"]


def test_a_checkpoint_can_be_made_again(model: Path, tmp_path: Path) -> None:
    policy = learner(model, tmp_path)
    policy.save_checkpoint(1)
    policy.step(micro_batches(random_documents(4)))
    policy.save_checkpoint(1)
    after = policy.export()
    fresh = learner(model, tmp_path)
    fresh.load_checkpoint(1)
    assert fresh.export() == after


def test_an_interrupted_checkpoint_is_not_there(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = learner(model, tmp_path)
    policy.save_checkpoint(1)

    def interrupt(_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("consumers.trainer.checkpoint_folder._write_manifest", interrupt)
        with pytest.raises(KeyboardInterrupt):
            policy.save_checkpoint(2)
    assert policy.checkpoints() == [1]
    with pytest.raises(CheckpointUnusable, match=r"no checkpoint .*step-2: complete ones are of steps \[1\]"):
        policy.load_checkpoint(2)
    policy.save_checkpoint(2)
    assert policy.checkpoints() == [1, 2]
    policy.load_checkpoint(2)


@pytest.mark.parametrize("damage", ["cut", "flipped", "lost", "manifest"])
def test_a_damaged_checkpoint_is_named_and_touches_nothing(damage: str, model: Path, tmp_path: Path) -> None:
    policy = learner(model, tmp_path)
    policy.save_checkpoint(1)
    policy.step(micro_batches(random_documents(4)))
    before = policy.export()
    folder = tmp_path / "step-1"
    largest = max(folder.iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    if damage == "cut":
        largest.write_bytes(content[:-1])
    elif damage == "flipped":
        content[len(content) // 2] ^= 1
        largest.write_bytes(content)
    elif damage == "lost":
        largest.unlink()
    else:
        (folder / "manifest.json").write_text("{")
    with pytest.raises(CheckpointUnusable, match=r"step-1 is damaged \(.*\): an older one serves"):
        policy.load_checkpoint(1)
    assert policy.export() == before


def test_a_checkpoint_of_another_model_is_refused(model: Path, tmp_path: Path) -> None:
    learner(model, tmp_path).save_checkpoint(1)
    other = make_model(tmp_path, "llama")
    with pytest.raises(CheckpointUnusable, match="step-1 is not of this model"):
        learner(other, tmp_path).load_checkpoint(1)


def test_a_checkpoint_moved_elsewhere_still_loads(model: Path, tmp_path: Path) -> None:
    original = learner(model, tmp_path / "here")
    original.step(micro_batches(random_documents(4)))
    original.save_checkpoint(1)
    shutil.move(tmp_path / "here", tmp_path / "there")
    moved = learner(model, tmp_path / "there")
    moved.load_checkpoint(1)
    assert moved.export() == original.export()
