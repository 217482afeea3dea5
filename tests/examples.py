"""One valid event of every type, for tests that need any; keyword arguments replace fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from schemas import (
    Closed,
    Control,
    Dead,
    Evaluated,
    Event,
    Failure,
    GroupTask,
    Lifecycle,
    Metric,
    Rollout,
    Span,
    Step,
    Task,
    Term,
    Timings,
    TrainedGroup,
    Turn,
    Weights,
)

E = TypeVar("E", bound=Event)
SHA256 = "0123456789abcdef" * 4


def packed_tokens(ids: Sequence[int]) -> bytes:
    return np.array(ids, dtype="<i4").tobytes()


def packed_logprobs(values: Sequence[float]) -> bytes:
    return np.array(values, dtype="<f4").tobytes()


def rollout(**fields: Any) -> Rollout:
    """Two turns, 14 tokens of which 6 are sampled, and a swap from version 4 to 5 in the middle of the first reply."""
    return _replaced(
        Rollout(
            run="demo",
            group=12,
            member=3,
            env="reverse",
            index=12,
            generator="gen-0",
            attempt=1,
            tokens=packed_tokens(range(10, 24)),
            logprobs=packed_logprobs([-0.5, -0.25, -1.0, -0.125, -2.0, -0.0625]),
            turns=[Turn(context=5, sampled=4, cached=0, finish="stop"), Turn(3, 2, 9, "length")],
            spans=[Span(version=4, start=0, end=2), Span(5, 2, 6)],
            reward=0.8,
            timings=Timings(started_at=1_796_000_000.0, total_s=1.5, sampling_s=1.25),
            metrics={"exact": 0.0, "turns": 2.0},
            swaps_during=1,
        ),
        fields,
    )


def failed_rollout(**fields: Any) -> Rollout:
    """A member whose environment raised before anything was sampled."""
    failure = Failure(kind="environment", message="ZeroDivisionError: division by zero")
    nothing: dict[str, Any] = {"tokens": b"", "logprobs": b"", "turns": [], "spans": [], "metrics": {}}
    return rollout(**{**nothing, "reward": None, "error": failure, "swaps_during": 0} | fields)


def evaluated(**fields: Any) -> Evaluated:
    """One turn of 5 and 4 tokens by version 4."""
    return _replaced(
        Evaluated(
            run="demo",
            version=4,
            env="reverse",
            task=17,
            sample=1,
            index=17 + 3 * (2**40 + 15),
            generator="0",
            tokens=packed_tokens(range(10, 19)),
            logprobs=packed_logprobs([-0.5, -0.25, -1.0, -0.125]),
            turns=[Turn(context=5, sampled=4, cached=0, finish="stop")],
            spans=[Span(version=4, start=0, end=4)],
            reward=1.0,
            timings=Timings(started_at=1_796_000_000.0, total_s=1.5, sampling_s=1.25),
            metrics={"exact": 1.0},
        ),
        fields,
    )


def failed_evaluated(**fields: Any) -> Evaluated:
    """A play of an evaluation whose environment raised before anything was sampled."""
    failure = Failure(kind="environment", message="ZeroDivisionError: division by zero")
    nothing: dict[str, Any] = {"tokens": b"", "logprobs": b"", "turns": [], "spans": [], "metrics": {}}
    return evaluated(**{**nothing, "reward": None, "error": failure} | fields)


def task(**fields: Any) -> GroupTask:
    return _replaced(
        GroupTask(
            run="demo",
            group=12,
            env="reverse",
            index=12,
            task=Task(prompt="rev:abcde=", answer="edcba", data={"length": 5, "nested": [1.5, None, True]}),
            size=8,
            least_version=3,
        ),
        fields,
    )


def trained_group(**fields: Any) -> TrainedGroup:
    """Three members, of which the last one was stale."""
    values: dict[str, Any] = {
        "group": 12,
        "env": "reverse",
        "sequences": [31, 32, 40],
        "rewards": [1.0, 0.5, 0.0],
        "advantages": [1.2247, 0.0, None],
        "left_out": {"2": "stale"},
    }
    return TrainedGroup(**{**values, **fields})


def step(**fields: Any) -> Step:
    return _replaced(
        Step(
            run="demo",
            number=5,
            instance="trainer",
            groups=[trained_group()],
            packing=[[[1], [0]]],
            left_out={"stale": 1},
            left_out_tokens={"stale": 6},
            rollouts_seen=120,
            low_water=39,
            config_digest=SHA256,
            weights_before=SHA256,
            weights_after=SHA256[::-1],
            seed=1,
            checkpoint=0,
            libraries={"torch": "2.13.0"},
            threads=1,
            cpu={"capability": "AVX2"},
            world_size=1,
            metrics={"loss": -0.01, "reward_mean": 0.5, "staleness_max": 2.0, "staleness_mean": 1.25, "lr": 5e-4},
            env_metrics={"reverse": {"exact": 0.25}},
        ),
        fields,
    )


def term(**fields: Any) -> Term:
    return _replaced(Term(run="demo", instance="trainer", committed=4, host="mill", pid=4242), fields)


def closed(**fields: Any) -> Closed:
    return _replaced(
        Closed(
            run="demo",
            group=13,
            reason="no_signal",
            step=5,
            rewards=[1.0, 1.0, None],
            env="reverse",
            sampled_tokens=18,
            metrics={"exact": 1.0},
        ),
        fields,
    )


def weights(**fields: Any) -> Weights:
    event = Weights(
        run="demo", version=5, sha256=SHA256, size_bytes=2_400_000, location=f"file:{SHA256}", dtype="float32"
    )
    return _replaced(event, fields)


def lifecycle(**fields: Any) -> Lifecycle:
    details = {"pause_s": 0.1, "load_s": 0.0625, "resubmitted": 3.0}
    event = Lifecycle(
        run="demo", role="generator", id="gen-0", state="swapped", pid=4243, host="mill", version=5, details=details
    )
    return _replaced(event, fields)


def metric(**fields: Any) -> Metric:
    gauges = {"running": 64.0, "waiting": 0.0}
    return _replaced(Metric(run="demo", role="generator", id="gen-0", version=5, gauges=gauges), fields)


def control(**fields: Any) -> Control:
    return _replaced(Control(run="demo", action="limit", limit=16, by="someone"), fields)


def dead(**fields: Any) -> Dead:
    event = Dead(
        run="demo",
        stream="ROLLOUTS",
        sequence=41,
        subject="hr.demo.rollout.reverse",
        headers={"hr-group": "12"},
        payload=b"\x00\xff not an event",
        reason="not a known event: Input data was truncated",
        by="trainer/trainer",
    )
    return _replaced(event, fields)


def every_event() -> list[Event]:
    """One of every type, in the order of ``schemas.EVENT_TYPES``."""
    return [
        task(), rollout(), evaluated(), term(), closed(), step(), weights(), lifecycle(), metric(), control(), dead(),
    ]  # fmt: skip


def _replaced(event: E, fields: dict[str, Any]) -> E:
    return msgspec.structs.replace(event, **fields) if fields else event
