"""Packing: a step on packed rows against one row for each rollout, padded to the longest.

python -m bench.packing [ROLLOUTS]: on the demo's model, with rollouts of very different lengths.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from bench.report import Reach, arguments, median_s, report
from consumers.trainer import TrainerSettings
from consumers.trainer.packing import Document, Packing, build_micro_batches, pack
from consumers.trainer.titan import Learner
from headrace.models import make_tiny

MOST_TOKENS, MEAN_TOKENS = 128, 20
"""Lengths are 8 tokens and more, exponentially distributed: most rollouts are short, some are long."""


def documents(count: int) -> list[Document]:
    random = np.random.default_rng(0)
    made = []
    for _ in range(count):
        length = min(MOST_TOKENS, 8 + int(random.exponential(MEAN_TOKENS)))
        made.append(
            Document(
                tokens=random.integers(3, 45, length).astype(np.int32),
                trained=[slice(6, length)],
                exact=True,
                logprobs=np.full(length - 6, -2.0, np.float32),
                advantage=float(random.normal()),
            )
        )
    return made


def padded_share(packing: Packing, made: list[Document]) -> float:
    tokens = sum(len(each.tokens) for each in made)
    return 1 - tokens / sum(batch.tokens_RL.size for batch in build_micro_batches(packing, made))


def main() -> None:
    count = int(next(iter(arguments()), 256))
    made = documents(count)
    lengths = [len(each.tokens) for each in made]
    packed = pack(lengths, row_tokens=128, micro_batch_tokens=4096)
    one_each: Packing = [[[position] for position in range(count)]]
    with tempfile.TemporaryDirectory() as root:
        make_tiny(Path(root) / "tiny")
        settings = TrainerSettings(row_tokens=128, micro_batch_tokens=4096)
        learner = Learner(
            Path(root) / "tiny", settings, temperature=1.0, dtype="float32", seed=0, steps=1000,
            checkpoints=Path(root),
        )  # fmt: skip
        packing_s = median_s(lambda: pack(lengths, row_tokens=128, micro_batch_tokens=4096))
        step_s = median_s(lambda: learner.step(build_micro_batches(packed, made)), repeat=10)
        padded_s = median_s(lambda: learner.step(build_micro_batches(one_each, made)), repeat=10)
    report(
        f"A step on {count} rollouts of {sum(lengths)} tokens, 1 thread",
        [
            ("packed", f"{step_s:.3f} s, {100 * padded_share(packed, made):.0f} % padding"),
            (
                "one row each",
                f"{padded_s:.3f} s ({padded_s / step_s:.2f} x), {100 * padded_share(one_each, made):.0f} % padding",
            ),
            ("deciding the packing", f"{1e3 * packing_s:.2f} ms"),
        ],
        [Reach("packing, share of the step", 0.02, packing_s / step_s)],
    )


if __name__ == "__main__":
    main()
