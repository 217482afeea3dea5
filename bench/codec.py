"""Rollout events: size, encoding and decoding, against the same rollout as JSON lists.

python -m bench.codec [TOKENS]
"""

from __future__ import annotations

import json

import numpy as np

from bench.report import Reach, arguments, median_s, report
from schemas import Rollout, Span, Timings, Turn, decode, encode


def rollout(tokens: int) -> Rollout:
    random = np.random.default_rng(0)
    sampled = tokens - 100
    return Rollout(
        run="bench",
        group=1,
        member=0,
        env="bench",
        index=1,
        generator="bench",
        attempt=1,
        tokens=random.integers(0, 150_000, tokens).astype("<i4").tobytes(),
        logprobs=(-random.exponential(size=sampled)).astype("<f4").tobytes(),
        turns=[Turn(100, sampled, 0, "stop")],
        spans=[Span(3, 0, sampled // 2), Span(4, sampled // 2, sampled)],
        reward=1.0,
        timings=Timings(started_at=0.0, total_s=1.0, sampling_s=1.0),
    )


def main() -> None:
    tokens = int(next(iter(arguments()), 32_768))
    event = rollout(tokens)
    lists = {"tokens": event.token_ids().tolist(), "logprobs": event.logprob_values().tolist()}
    packed, text = encode(event), json.dumps(lists).encode()
    encoding, decoding = median_s(lambda: encode(event)), median_s(lambda: decode(packed))
    json_encoding, json_decoding = median_s(lambda: json.dumps(lists)), median_s(lambda: json.loads(text))
    report(
        f"One rollout of {tokens} tokens",
        [
            ("payload", f"{len(packed)} bytes, JSON lists {len(text)} ({len(text) / len(packed):.1f} x)"),
            ("encode and validate", f"{1e3 * encoding:.3f} ms, JSON {json_encoding / encoding:.0f} x"),
            ("decode and validate", f"{1e3 * decoding:.3f} ms, JSON {json_decoding / decoding:.0f} x"),
        ],
        [
            Reach("bytes a token, above 1 KiB", 8.1, (len(packed) - 1024) / tokens),
            Reach("encode, ms", 1.0, 1e3 * encoding),
            Reach("decode, ms", 1.0, 1e3 * decoding),
        ],
    )


if __name__ == "__main__":
    main()
