"""The learner: a model that takes optimizer steps on micro-batches, and gives its weights away.

Shape legend: R rows, L columns, N trained tokens, V vocabulary.
"""

# ruff: noqa: N815  # shapes are in names

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from consumers.trainer.checkpoint_folder import CheckpointDamaged
from consumers.trainer.loss import Gap, LossSums, logprob_gap, policy_loss, token_logprobs
from consumers.trainer.micro_batch import MicroBatch, empty_micro_batch
from consumers.trainer.packing import padded
from consumers.trainer.settings import TrainerSettings
from schemas import ModelError, WeightsError

from .architecture import read_architecture
from .attention import packed_mask
from .device import ON_CPU

# isort: split
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.distributed.utils import clip_grad_norm_

from .checkpoints import Checkpoints
from .model import TrainedLogits, adapter, build_config, build_model, hf_weights, load_hf_weights
from .weights_file import read_weights, weights_bytes
from .world import World, join_world


class _Batch(NamedTuple):
    """A micro-batch on the device."""

    tokens_RL: torch.Tensor
    positions_RL: torch.Tensor
    sources_N: torch.Tensor
    """int64: flat index of the token before each trained one: its logits predict it."""
    targets_N: torch.Tensor
    """int64: the trained tokens."""
    exact_N: torch.Tensor
    behaviour_N: torch.Tensor
    advantages_N: torch.Tensor


class Learner:
    """One model in training. All ranks call its methods together, but for those that look at checkpoints or rename one.

    The same start, settings and micro-batches give the same bytes of weights, in one process on the CPU.
    """

    def __init__(
        self,
        model_dir: Path,
        settings: TrainerSettings,
        *,
        temperature: float,
        dtype: Literal["float32", "bfloat16"],
        seed: int,
        steps: int,
        checkpoints: Path,
    ) -> None:
        """Load the model and prepare its optimizer.

        temperature: that of sampling, applied to logits before anything else. dtype: of exported weights.
        steps: the run's; the learning rate does not depend on it. checkpoints: folder, made when needed.
        Raises ModelError where ``model_dir`` is missing, incomplete or not supported.
        """
        self._settings, self._temperature = settings, temperature
        self._dtype: torch.dtype = getattr(torch, dtype)
        architecture = read_architecture(model_dir)
        _set_determinism(settings.threads, seed)
        self.world: World = join_world()
        self.world_size: int = self.world.size
        config = build_config(architecture, max_positions=padded(settings.row_tokens))
        self._model = build_model(config, architecture, self.world)
        self._adapter = adapter(config, architecture)
        try:
            self.load_weights(model_dir)
        except WeightsError as error:
            raise ModelError(str(error)) from None
        self._logits = TrainedLogits(self._model)
        self._optimizers = default_adamw(
            lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay
        ).build(model_parts=[self._model])
        _materialize(self._optimizers)
        # Constant after the warm-up, also past `steps`: a decay to 1.0 (without a decay torchtitan's schedule asserts
        # at its end). At least one step longer than the warm-up, which torchtitan would shorten otherwise.
        self._schedule = LRSchedulersContainer.Config(warmup_steps=settings.warmup_steps, min_lr_factor=1.0).build(
            optimizers=self._optimizers, training_steps=max(steps, settings.warmup_steps + 1)
        )
        self._checkpoints = Checkpoints(
            checkpoints,
            keep=settings.keep_checkpoints,
            model=self._model,
            optimizers=self._optimizers,
            schedule=self._schedule,
            world=self.world,
        )

    def step(self, micro_batches: Sequence[MicroBatch]) -> dict[str, float]:
        """One optimizer update on this rank's micro-batches and those of the other ranks.

        The loss is the mean over all trained tokens of all micro-batches and ranks. Returns the same metrics on
        every rank: loss, grad_norm (before it is clipped), lr, and over the trained tokens ratio_mean,
        ratio_max, clip_fraction, entropy and kl; and, where there are exact tokens, logprob_gap_mean,
        logprob_gap_max and logprob_gap_tokens over those.
        Raises ValueError where no token is trained, or one is at the start of a document.
        """
        batches, trained = self._agree(micro_batches)
        sums, greatest = torch.zeros(7, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
        for micro_batch in batches:
            loss, entropy, gap = self._loss(self._to_device(micro_batch))
            torch.autograd.backward(loss.loss / trained)
            parts = (loss.loss.detach(), loss.ratio, loss.clipped, entropy, loss.kl, gap.total, gap.tokens)
            sums += torch.stack([part.double() for part in parts]).cpu()
            greatest = torch.maximum(greatest, torch.stack([loss.ratio_max, gap.greatest]).cpu())
        grad_norm = clip_grad_norm_(list(self._model.parameters()), self._settings.max_grad_norm, foreach=True)
        lr = self._schedule.schedulers[0].get_last_lr()[0]
        self._optimizers.step()
        self._schedule.step()
        self._optimizers.zero_grad()
        metrics = _metrics(self.world.sum(sums).tolist(), self.world.max(greatest).tolist(), trained)
        return metrics | {"grad_norm": float(grad_norm), "lr": float(lr)}

    @torch.no_grad()
    def logprobs(self, micro_batch: MicroBatch) -> npt.NDArray[np.float32]:
        """float32 [R, L]: log-probability of each trained token, at the sampling temperature; 0 elsewhere."""
        batch = self._to_device(micro_batch)
        logprobs_N, _ = self._token_logprobs(batch)
        result = np.zeros(micro_batch.trained_RL.shape, np.float32)
        result[micro_batch.trained_RL] = logprobs_N.cpu().numpy()
        return result

    @torch.no_grad()
    def export(self) -> bytes:
        """The weights as a safetensors file with Hugging Face's names, on rank 0; nothing on the others."""
        weights = hf_weights(self._model, self._adapter)
        return weights_bytes(weights, self._dtype) if self.world.rank == 0 else b""

    @torch.no_grad()
    def load_weights(self, folder: Path) -> None:
        """Take the parameters from ``folder``/model.safetensors; the optimizer's state stays.

        Raises WeightsError where the file is missing, damaged or of another model.
        """
        load_hf_weights(self._model, self._adapter, read_weights(folder), source=str(folder))

    def save_checkpoint(self, step: int) -> None:
        """Make checkpoint ``step`` of model, optimizer, schedule and random state: durable when this returns."""
        self._checkpoints.save(step)

    def load_checkpoint(self, step: int) -> None:
        """Restore checkpoint ``step``; settings that have changed since it was made count as they are now.

        Raises CheckpointDamaged where it is missing or damaged, and CheckpointUnusable where it is of another model.
        """
        self._checkpoints.load(step)
        # It holds those of the optimizer too, and the learning rate of the next step.
        for schedule in self._schedule.schedulers:
            for group, lr in zip(schedule.optimizer.param_groups, schedule.get_last_lr(), strict=True):
                group |= {"lr": lr, "betas": self._settings.betas, "weight_decay": self._settings.weight_decay}

    def checkpoints(self) -> list[int]:
        """Steps that have a complete checkpoint, ascending."""
        return self._checkpoints.folder.steps()

    def checkpoint_faults(self) -> dict[int, CheckpointDamaged]:
        """What is wrong with each damaged checkpoint; reads every byte of all of them."""
        return self._checkpoints.folder.faults()

    def set_checkpoint_aside(self, step: int) -> Path:
        """Rename checkpoint ``step``, so that it is none any more; returns its new place. On rank 0 alone."""
        return self._checkpoints.folder.set_aside(step)

    def close(self) -> None:
        """Leave the other ranks."""
        self._checkpoints.close()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    def _agree(self, micro_batches: Sequence[MicroBatch]) -> tuple[list[MicroBatch], int]:
        """As many micro-batches on every rank, and the number of trained tokens of all ranks."""
        own = sum(micro_batch.trained_tokens for micro_batch in micro_batches)
        trained = int(self.world.sum(torch.tensor(own)))
        if trained == 0:
            raise ValueError("a step without a trained token")
        rounds = int(self.world.max(torch.tensor(len(micro_batches))))
        return [*micro_batches, *[empty_micro_batch()] * (rounds - len(micro_batches))], trained

    def _to_device(self, micro_batch: MicroBatch) -> _Batch:
        if bool((micro_batch.trained_RL & (micro_batch.positions_RL == 0)).any()):
            raise ValueError("the first token of a document is trained, which nothing predicts")
        trained = micro_batch.trained_RL
        device = self.world.device
        return _Batch(
            tokens_RL=torch.from_numpy(micro_batch.tokens_RL.astype(np.int64)).to(device),
            positions_RL=torch.from_numpy(micro_batch.positions_RL.astype(np.int64)).to(device),
            sources_N=torch.from_numpy(np.flatnonzero(trained) - 1).to(device),
            targets_N=torch.from_numpy(micro_batch.tokens_RL[trained].astype(np.int64)).to(device),
            exact_N=torch.from_numpy(micro_batch.exact_RL[trained]).to(device),
            behaviour_N=torch.from_numpy(micro_batch.logprobs_RL[trained]).to(device),
            advantages_N=torch.from_numpy(micro_batch.advantages_RL[trained]).to(device),
        )

    def _token_logprobs(self, batch: _Batch) -> tuple[torch.Tensor, torch.Tensor]:
        # One mask for all layers. On a GPU torchtitan makes its own from the positions (not run on a GPU yet).
        masks: Any = packed_mask(batch.positions_RL) if ON_CPU else self._model.get_attention_masks(batch.positions_RL)
        logits_NV = self._logits(batch.tokens_RL, batch.positions_RL, masks, batch.sources_N)
        return token_logprobs(logits_NV, batch.targets_N, temperature=self._temperature)

    def _loss(self, batch: _Batch) -> tuple[LossSums, torch.Tensor, Gap]:
        """The loss, the sum of the entropies, and the gap on exact tokens."""
        logprobs_N, entropies_N = self._token_logprobs(batch)
        settings = self._settings
        sums = policy_loss(
            settings.loss,
            logprobs_N,
            batch.behaviour_N,
            batch.advantages_N,
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
        )
        return sums, entropies_N.sum(), logprob_gap(logprobs_N, batch.behaviour_N, batch.exact_N)


def _metrics(sums: list[float], greatest: list[float], trained: int) -> dict[str, float]:
    """Means over the ``trained`` tokens of all ranks, from the sums that ``step`` makes."""
    *means, gap, exact_tokens = sums
    names = ("loss", "ratio_mean", "clip_fraction", "entropy", "kl")
    metrics = {name: value / trained for name, value in zip(names, means, strict=True)}
    metrics["ratio_max"] = greatest[0]
    if exact_tokens:
        gaps = {"mean": gap / exact_tokens, "max": greatest[1], "tokens": exact_tokens}
        metrics |= {f"logprob_gap_{name}": value for name, value in gaps.items()}
    return metrics


def _materialize(optimizers: Any) -> None:
    """Make the optimizer's state as it is before the first step.

    Left alone, torchtitan makes it for the first checkpoint by a step that counts: after checkpoint 0 AdamW corrected
    its bias for one step more than were taken, and without one it did not.
    """
    optimizers.state_dict()
    for optimizer in optimizers.optimizers:
        for state in optimizer.state.values():
            state["step"].zero_()


def _set_determinism(threads: int, seed: int) -> None:
    """Sums change with the number of threads, and some kernels with chance: fix both where it costs nothing."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    if ON_CPU:
        torch.use_deterministic_algorithms(True)
        # Otherwise every new tensor would be filled first, against reading what was never written.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
