"""Supervised warm-up of a small model on the environments' own demonstrations.

Reinforcement learning cannot start from random weights: nothing is ever rewarded. A model that gets the answer
three times in ten learns the rest by itself. So the warm-up stops there, on purpose far from a good model.

Shape legend: B examples of a batch, T tokens of the longest, padded on the right.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
import numpy as np
import torch
import torch.nn.functional

from environments import Environment, ScriptedPolicy, Tokenizer, Transcript
from schemas import ModelError

BATCH = 128
LR = 2e-3
RAMP_STEPS = 20
BETAS = (0.9, 0.95)
MAX_GRAD_NORM = 1.0
MAX_STEPS = 120
TARGET = 0.25
"""Stop at this mean probability of a whole demonstration, in one environment. It is measured before an update on
examples never seen, so it is what sampling at temperature 1 will get right."""
MEASURED_STEPS = 3
"""Batches whose mean is compared with TARGET: one alone is off by 0.03."""


class WarmUp(msgspec.Struct, frozen=True, kw_only=True):
    """What the warm-up came to."""

    steps: int
    likelihood: dict[str, float]
    """Environment to mean probability of sampling a whole demonstration."""


def warm_up(
    model: torch.nn.Module,
    tokenizer: Tokenizer,
    environments: dict[str, Environment],
    *,
    seed: int,
    report: Callable[[str], None],
) -> WarmUp:
    """Train ``model`` in place, on one thread, until it is able to begin; deterministic for a seed.

    Each batch holds equal shares of the environments. Raises ModelError where one has no demonstration.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=BETAS, weight_decay=0.0)
    rng = random.Random(f"{seed}:warm-up")
    names, share = list(environments), BATCH // len(environments)
    recent: deque[torch.Tensor] = deque(maxlen=MEASURED_STEPS)
    model.train()
    with _one_thread():
        for step in range(MAX_STEPS + 1):
            indices = range(step * share, (step + 1) * share)
            shown = asyncio.run(_demonstrations(environments, tokenizer, indices, rng))
            loss, likelihoods_B = _loss(model, shown)
            recent.append(likelihoods_B.view(len(names), share).mean(1))
            likelihood = dict(zip(names, torch.stack(list(recent)).mean(0).tolist(), strict=True))
            if step % 10 == 0:
                report(f"warm-up step {step}: loss {loss.item():.3f}")
            if max(likelihood.values()) >= TARGET or step == MAX_STEPS:
                break
            _update(model, optimizer, loss, LR * min(1.0, (step + 1) / RAMP_STEPS))
    model.eval()
    return WarmUp(steps=step, likelihood=likelihood)


async def _demonstrations(
    environments: dict[str, Environment], tokenizer: Tokenizer, indices: Sequence[int], rng: random.Random
) -> list[Transcript]:
    """One transcript for each environment and index, environment by environment."""
    transcripts = []
    for name, environment in environments.items():
        for index in indices:
            task = environment.task(index)
            demonstrator = environment.demonstration(task, rng)
            if demonstrator is None:
                raise ModelError(
                    f"environment {name!r} has no demonstration to warm up on: name others with --environment"
                )
            policy = ScriptedPolicy(tokenizer, demonstrator)
            await environment.play(task, policy)
            transcripts.append(policy.transcript())
    return transcripts


def _loss(model: torch.nn.Module, shown: list[Transcript]) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean negative log-likelihood of a reply token, and float32 [B]: the probability of each whole demonstration."""
    length = max(len(transcript.tokens) for transcript in shown)
    tokens_BT = np.zeros((len(shown), length), dtype=np.int64)
    replies_BT = np.zeros((len(shown), length), dtype=np.float32)
    for row, transcript in enumerate(shown):
        tokens_BT[row, : len(transcript.tokens)] = transcript.tokens
        position = 0
        for turn in transcript.turns:
            position += turn.context
            replies_BT[row, position : position + turn.sampled] = 1.0
            position += turn.sampled
    tokens, replies = torch.from_numpy(tokens_BT), torch.from_numpy(replies_BT)[:, 1:]
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    # Padding follows the sequence, and attention is causal: it changes nothing before it, and its own loss is masked.
    nll_BT = torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none") * replies
    return nll_BT.sum() / replies.sum(), (-nll_BT.detach().sum(1)).exp()


def _update(model: torch.nn.Module, optimizer: torch.optim.Optimizer, loss: torch.Tensor, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
    optimizer.step()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums change with the number of threads, and so would the model."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
