"""The learner: a model that takes optimizer steps on micro-batches, and gives its weights away.

Shape legend: R rows, L columns, N trained tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from consumers.trainer.checkpoint_folder import CheckpointDamaged
from consumers.trainer.logprob_gap import Dtype
from consumers.trainer.losses import Tokens, load_loss
from consumers.trainer.losses.logprobs import Gap, logprob_gap
from consumers.trainer.losses.objective import LossSums, divisor, objective
from consumers.trainer.micro_batch import MicroBatch, empty_micro_batch
from consumers.trainer.packing import padded
from consumers.trainer.settings import TrainerSettings
from schemas import ModelError, WeightsError
from schemas.model import read_architecture

from .device import COMPUTES_IN, ON_CPU

# isort: split
from torchtitan.distributed.utils import clip_grad_norm_

from .checkpoints import Checkpoints
from .device_batch import DeviceBatch, to_device
from .execution import execution
from .optimizer import Optimizer
from .policy import Policy
from .weights_file import weights_bytes
from .world import World, join_world


class _Trained(NamedTuple):
    """How much a step trains, over all ranks."""

    tokens: int
    documents: int


class Learner:
    """One model in training. All ranks call its methods together, but for those that look at checkpoints or rename one.

    The same start, settings and micro-batches give the same bytes of weights, in one process on the CPU.
    """

    computes_in = COMPUTES_IN

    def __init__(
        self,
        model_dir: Path,
        settings: TrainerSettings,
        *,
        temperature: float,
        dtype: Dtype,
        seed: int,
        steps: int,
        checkpoints: Path,
    ) -> None:
        """Load the model and prepare its optimizer.

        temperature: that of sampling, applied to logits before anything else. dtype: of exported weights.
        steps: the run's; the learning rate depends on it where it decays. checkpoints: folder, made when needed.
        Raises ModelError where ``model_dir`` is missing, incomplete or not supported, and ConfigError for a loss
        that is not there or settings that this machine cannot have.
        """
        self._settings = settings
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._loss = load_loss(settings.loss, settings.loss_args, settings.loss_settings)
        architecture = read_architecture(model_dir)
        _set_determinism(settings.threads, seed)
        self.world: World = join_world(
            tensor_parallel=settings.tensor_parallel, context_parallel=settings.context_parallel
        )
        self.world_size: int = self.world.size
        build = partial(
            Policy,
            architecture,
            self.world,
            execution(settings),
            max_positions=padded(settings.row_tokens),
            temperature=temperature,
        )
        self._policy = build()
        # The weights that the run starts from, never trained: what KL is taken to.
        self._start = build() if settings.kl_coef else None
        try:
            for policy in filter(None, (self._policy, self._start)):
                policy.load(model_dir)
        except WeightsError as error:
            raise ModelError(str(error)) from None
        self._optimizer = Optimizer(self._policy.model, settings, steps=steps)
        optimizers, schedule = self._optimizer.containers
        self._checkpoints = Checkpoints(
            checkpoints,
            keep=settings.keep_checkpoints,
            model=self._policy.model,
            optimizers=optimizers,
            schedule=schedule,
            world=self.world,
        )

    def step(self, micro_batches: Sequence[MicroBatch]) -> dict[str, float]:
        """One optimizer update on this rank's micro-batches and those of the other ranks.

        The loss is a mean over all micro-batches and ranks, of the kind that ``trainer.aggregation`` says. Returns the
        same metrics on every rank: loss, grad_norm (before it is clipped), lr, and over the trained tokens ratio_mean,
        ratio_max, ess (effective sample size of the ratios, as a share of the tokens), clip_fraction, entropy, kl
        and, where it is on, kl_start; and, where there are exact tokens, logprob_gap_mean, logprob_gap_max and
        logprob_gap_tokens over those.
        Raises ValueError where no token is trained, or one is at the start of a document.
        """
        batches, trained = self._agree(micro_batches)
        settings = self._settings
        divided_by = divisor(settings.loss_aggregation, **trained._asdict(), constant=settings.loss_constant)
        sums, greatest = torch.zeros(9, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
        for micro_batch in batches:
            loss, entropy, gap = self._losses(to_device(micro_batch, self.world.device))
            torch.autograd.backward(loss.loss / divided_by)
            parts = (
                loss.loss.detach(), gap.total, gap.tokens, loss.ratio_squared,
                loss.ratio, loss.bounded, entropy, loss.kl, loss.kl_start,
            )  # fmt: skip
            sums += torch.stack([part.double() for part in parts]).cpu()
            greatest = torch.maximum(greatest, torch.stack([loss.ratio_max, gap.greatest]).cpu())
        grad_norm = clip_grad_norm_(list(self._policy.model.parameters()), settings.max_grad_norm, foreach=True)
        lr = self._optimizer.lr
        self._optimizer.step()
        metrics = _metrics(self.world.sum(sums).tolist(), self.world.max(greatest).tolist(), trained.tokens, divided_by)
        if self._start is None:
            del metrics["kl_start"]
        return metrics | {"grad_norm": float(grad_norm), "lr": lr}

    @torch.no_grad()
    def logprobs(self, micro_batch: MicroBatch) -> npt.NDArray[np.float32]:
        """float32 [R, L]: log-probability of each trained token, at the sampling temperature; 0 elsewhere."""
        logprobs_N, _ = self._policy.token_logprobs(to_device(micro_batch, self.world.device))
        result = np.zeros(micro_batch.trained_RL.shape, np.float32)
        result[micro_batch.trained_RL] = logprobs_N.cpu().numpy()
        return result

    @torch.no_grad()
    def export(self) -> bytes:
        """The weights as a safetensors file with Hugging Face's names, on rank 0; nothing on the others."""
        weights: dict[str, torch.Tensor] = {}
        for name, value in self._policy.weights():
            # At once: whole, and in the parameters' type, there is room for one on a rank.
            if self.world.rank == 0:
                weights[name] = value.to("cpu", self._dtype)
        return weights_bytes(weights, self._dtype) if self.world.rank == 0 else b""

    @torch.no_grad()
    def load_weights(self, folder: Path) -> None:
        """Take the parameters from ``folder``/model.safetensors; the optimizer's state stays.

        Raises WeightsError where the file is missing, damaged or of another model.
        """
        self._policy.load(folder)

    def save_checkpoint(self, step: int) -> None:
        """Make checkpoint ``step`` of model, optimizer, schedule and random state: durable when this returns."""
        self._checkpoints.save(step)

    def begin_checkpoint(self, step: int) -> Callable[[], None]:
        """As ``save_checkpoint``, of a copy of the state; what is returned makes it. Where this is the only rank."""
        return self._checkpoints.begin(step)

    def load_checkpoint(self, step: int) -> None:
        """Restore checkpoint ``step``; settings that have changed since it was made count as they are now.

        Raises CheckpointDamaged where it is missing or damaged, and CheckpointUnusable where it is of another model.
        """
        self._checkpoints.load(step)
        self._optimizer.restored()

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

    def _agree(self, micro_batches: Sequence[MicroBatch]) -> tuple[list[MicroBatch], _Trained]:
        """As many micro-batches on every rank, and what all ranks train."""
        own = [(micro_batch.trained_tokens, micro_batch.trained_documents) for micro_batch in micro_batches]
        trained = _Trained(*self.world.sum(torch.tensor(own, dtype=torch.int64).reshape(-1, 2).sum(0)).tolist())
        if trained.tokens == 0:
            raise ValueError("a step without a trained token")
        rounds = int(self.world.max(torch.tensor(len(micro_batches))))
        return [*micro_batches, *[empty_micro_batch()] * (rounds - len(micro_batches))], trained

    def _losses(self, batch: DeviceBatch) -> tuple[LossSums, torch.Tensor, Gap]:
        """The loss, the sum of the entropies, and the gap on exact tokens."""
        start_N = None
        if self._start is not None:
            with torch.no_grad():
                start_N, _ = self._start.token_logprobs(batch)
        logprobs_N, entropies_N = self._policy.token_logprobs(batch)
        sums = objective(
            Tokens(
                logprobs_N=logprobs_N,
                old_N=batch.behaviour_N,
                behaviour_N=batch.behaviour_N,
                advantages_N=batch.advantages_N,
                documents_N=batch.documents_N,
                lengths_D=batch.lengths_D,
            ),
            self._loss,
            aggregation=self._settings.loss_aggregation,
            tis_cap=self._settings.tis_cap,
            kl_coef=self._settings.kl_coef,
            start_N=start_N,
        )
        return sums, entropies_N.sum(), logprob_gap(logprobs_N, batch.behaviour_N, batch.exact_N)


def _metrics(sums: list[float], greatest: list[float], trained: int, divided_by: int) -> dict[str, float]:
    """Means over the ``trained`` tokens of all ranks, from the sums that ``step`` makes."""
    loss, gap, exact_tokens, ratio_squared, *means = sums
    names = ("ratio_mean", "clip_fraction", "entropy", "kl", "kl_start")
    metrics = {"loss": loss / divided_by} | {name: value / trained for name, value in zip(names, means, strict=True)}
    metrics["ratio_max"] = greatest[0]
    metrics["ess"] = min(1.0, means[0] ** 2 / (trained * ratio_squared))  # on policy, rounding could make it more
    if exact_tokens:
        gaps = {"mean": gap / exact_tokens, "max": greatest[1], "tokens": exact_tokens}
        metrics |= {f"logprob_gap_{name}": value for name, value in gaps.items()}
    return metrics


def _set_determinism(threads: int, seed: int) -> None:
    """Sums change with the number of threads, and some kernels with chance: fix both where it costs nothing."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    if ON_CPU:
        torch.use_deterministic_algorithms(True)
        # Otherwise every new tensor would be filled first, against reading what was never written.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
