"""Versions of SmolLM2-135M by real steps, and the deltas between them.

``steps.msgpack.gz`` has the first five steps of a run of configs/larger.toml, with the rollouts that each trained. Half
of each step, 4 groups of 8 rollouts, is trained again at another learning rate: all of it would take twice as long.
"""

from __future__ import annotations

import gzip
import hashlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from bench.trials import Trials
from bus import make_delta
from bus.weights.delta import apply_deltas
from consumers.trainer.batch import lengths, micro_batches
from consumers.trainer.packing import pack
from headrace.config import load
from headrace.models import make_model
from headrace.training import build_learner, rules
from schemas import Rollout, Step, decode_as

RECORDED = Path(__file__).parent / "steps.msgpack.gz"
CONFIG = Path("configs/larger.toml")
GROUPS = 4


class Changes(NamedTuple):
    """What was measured at one learning rate, for each step."""

    share: Trials
    """Of the weights that changed, in percent."""
    delta_share: Trials
    """Bytes of the delta, in percent of the whole file's."""
    delta_bytes: Trials
    build_s: Trials
    apply_s: Trials
    """Reading the base, changing it, and the digest of what comes of it; not writing."""


def versions(lr: float, steps: int) -> Iterator[bytes]:
    """Files of version 0, and of what each recorded step makes of the one before, in bfloat16."""
    overrides = [f"trainer.lr={lr}", "trainer.warmup_steps=0", "weights.dtype=bfloat16"]
    config = load(CONFIG, overrides)
    make_model(config.model, tokens=config.generator.max_model_len, say=_say)
    with tempfile.TemporaryDirectory() as checkpoints:
        learner = build_learner(config, Path(checkpoints))
        yield learner.export()
        for step, rollouts in _recorded(steps):
            groups, began = step.groups[:GROUPS], time.perf_counter()
            packing = pack(
                lengths(groups, rollouts, rules(config)),
                row_tokens=config.trainer.row_tokens,
                micro_batch_tokens=config.trainer.micro_batch_tokens,
            )
            metrics = learner.step(micro_batches(step.number, groups, packing, rollouts, rules(config)))
            took = time.perf_counter() - began
            _say(f"lr {lr:g}, step {step.number}: loss {metrics['loss']:.4f}, {took:.1f} s")
            yield learner.export()


def measure(lr: float, steps: int, keep: Path | None = None) -> Changes:
    """``keep``: folder for the files, ``0`` and so on, that are to be sent."""
    rows: list[tuple[float, ...]] = []
    base = b""
    for version, new in enumerate(versions(lr, steps)):
        if keep is not None:
            (keep / str(version)).write_bytes(new)
        if base:
            rows.append(_compare(base, new))
        base = new
    return Changes(*(Trials(list(column)) for column in zip(*rows, strict=True)))


def _compare(base: bytes, new: bytes) -> tuple[float, ...]:
    changed = int(np.count_nonzero(np.frombuffer(base, np.uint16) != np.frombuffer(new, np.uint16)))
    digests = [hashlib.sha256(payload).hexdigest() for payload in (base, new)]
    began = time.perf_counter()
    delta = make_delta(base, new, base_sha256=digests[0], sha256=digests[1], item_bytes=2)
    built = time.perf_counter()
    assert delta is not None, "more than half of the weights' bytes would be sent"
    digest = hashlib.sha256()
    for piece in apply_deltas(memoryview(base), [delta]):
        digest.update(piece)
    applied = time.perf_counter()
    assert digest.hexdigest() == digests[1]
    size = len(delta.payload)
    return 200 * changed / len(new), 100 * size / len(new), float(size), built - began, applied - built


def _recorded(steps: int) -> Iterator[tuple[Step, dict[int, Rollout]]]:
    recorded = msgspec.msgpack.decode(gzip.decompress(RECORDED.read_bytes()), type=list[tuple[bytes, dict[int, bytes]]])
    for step, rollouts in recorded[:steps]:
        found = {sequence: decode_as(payload, Rollout) for sequence, payload in rollouts.items()}
        yield decode_as(step, Step), found


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
