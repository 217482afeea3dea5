"""A run on the virtual clock, with the real admission, group assembly, judgement and staleness.

What decides is the code that decides in a run: ``producers.Admission``, ``producers.too_late``,
``consumers.trainer.Collector`` with all that it calls, and ``staleness_metrics``. What takes time is simulated:
decoding, waiting, training, moving weights. Messages take none.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

import numpy as np

from bus import Logged
from consumers.trainer import Assembly, Collector, Rules, staleness_metrics
from producers import Admission
from schemas import Closed, Rollout, RunError, Step

from .clock import Clock
from .generator import Member, VirtualGenerator, VirtualTask
from .prediction import Prediction
from .rates import Layout, Rates, Rollouts

TOKENS_KEPT = 64
"""A simulated rollout of mean length has so many tokens, each of which stands for as many real ones as it takes."""
NOWHERE = "0" * 64


class Simulation:
    """``run`` once; then ``prediction``."""

    def __init__(self, layout: Layout, rates: Rates, rollouts: Rollouts, *, seed: int = 0) -> None:
        """``seed``: of everything that is drawn. Raises RunError where a generator has no place for one group."""
        if layout.places < 1:
            raise RunError(
                f"a generator plays {layout.concurrency} rollouts at once, and a group has {layout.group_size}: raise "
                "generator.concurrency"
            )
        self._layout, self._rates = layout, rates
        self._unit = max(1.0, rollouts.mean_tokens / TOKENS_KEPT)
        self._clock = Clock()
        self._draws = _Draws(layout, rates, rollouts, seed)
        self._arrived: deque[Logged] = deque()
        self._sequence = 0
        self._issuing = _Issuing(layout, self._draws.task)
        self._generators = [
            VirtualGenerator(str(number), self._clock, layout, rates, self._unit, self._publish, self._issuing.freed)
            for number in range(layout.generators)
        ]
        self._issuing.free.extend(self._generators)
        self._rules = Rules(
            max_off_policy_steps=layout.bound, stale=layout.stale, advantage="mean", row_tokens=2**31 - 1
        )
        self._collector = Collector(
            self, Assembly(layout.group_size), self._rules, self,
            run="plan", groups_per_step=layout.groups_per_step, vocabulary=1,
        )  # fmt: skip
        self._announced_at = 0.0
        """When the newest weights are, or will be."""
        self._waited_s: list[float] = []
        self._committed_at: list[float] = []
        self._metrics: list[dict[str, float]] = []
        self._left_out: Counter[str] = Counter()

    def run(self, steps: int | None = None, told: Callable[[int], None] = lambda step: None) -> None:
        """Simulate all steps, or the first ``steps``; ``told`` hears of each that is committed.

        Raises RunError where the run stands still.
        """
        self._announce(0)
        self._issuing.issue()
        for number in range(1, min(self._layout.steps, steps or self._layout.steps) + 1):
            self._step(number)
            told(number)

    def _step(self, number: int) -> None:
        began = self._clock.now
        groups, rollouts = self._collector.collect(number, lambda: None)
        self._waited_s.append(self._clock.now - began)
        metrics = staleness_metrics(number, groups, rollouts, self._rules)
        self._clock.run_until(self._clock.now + self._rates.training_s(metrics["trained_tokens"] * self._unit))
        self._clock.run_until(max(self._clock.now, self._announced_at))  # The commit of the step before must be done.
        tally = self._collector.next_tally()
        self._left_out.update(tally.left_out)
        self._metrics.append(metrics)
        self._issuing.apply(
            Step(
                run="plan", number=number, instance="plan", groups=groups, packing=[], left_out={}, left_out_tokens={},
                rollouts_seen=0, low_water=0, config_digest=NOWHERE, weights_before=NOWHERE, weights_after=NOWHERE,
                seed=0, checkpoint=0, libraries={}, threads=1, cpu={}, world_size=1, metrics={},
            )
        )  # fmt: skip
        self._committed_at.append(self._clock.now)
        self._collector.settle(groups)
        self._announced_at = self._clock.now + self._rates.commit_s
        self._clock.at(self._announced_at, lambda: self._announce(number))

    def _announce(self, version: int) -> None:
        for generator in self._generators:
            generator.announce(version)

    def _publish(self, rollout: Rollout) -> None:
        self._sequence += 1
        self._arrived.append(
            Logged(
                sequence=self._sequence, time=self._clock.now, subject="", headers={}, payload=b"", event=rollout,
                invalid=None,
            )
        )  # fmt: skip

    def get(self, timeout_s: float) -> Logged | None:
        """The collector's inbox: time passes until something is in it, however long. Raises RunError for ever."""
        while not self._arrived:
            if self._clock.next_at == float("inf"):
                raise RunError(
                    f"the simulated run stands still after step {len(self._committed_at)}: nothing is in play, and too "
                    "few groups are complete"
                )
            self._clock.step()
        return self._arrived.popleft()

    def close(self, closed: Closed) -> None:
        """The collector's ledger: admission hears of it at once."""
        self._issuing.apply(closed)

    def bury(self, logged: Logged, reason: str) -> None:
        """No simulated rollout is unusable."""
        raise AssertionError(reason)

    def issued_groups(self) -> int:
        """The collector's look at TASKS."""
        return self._issuing.admission.issued

    def rollout_at(self, sequence: int) -> Logged | None:
        """Of groups that were never issued; there are none."""
        return None

    @property
    def prediction(self) -> Prediction:
        """Shares and means after the first step, whose wait is a start; over all of a run of one step."""
        skip = 1 if len(self._committed_at) > 1 else 0
        began = self._committed_at[0] if skip else 0.0
        wall_s = self._committed_at[-1] - began
        metrics = self._metrics[skip:]
        tokens = sum(each["trained_tokens"] for each in metrics)
        trained = sum(each["rollouts_trained"] for each in self._metrics)
        busy_s = sum(generator.decoder.busy_s for generator in self._generators)
        return Prediction(
            step_s=wall_s / len(metrics),
            trainer_idle_share=sum(self._waited_s[skip:]) / wall_s,
            generator_idle_share=1 - busy_s / (len(self._generators) * self._clock.now),
            staleness_mean=sum(each["staleness_mean"] * each["trained_tokens"] for each in metrics) / tokens,
            staleness_max=int(max(each["staleness_max"] for each in metrics)),
            stale_share=self._left_out["stale"] / (trained + self._left_out["stale"]),
            tokens_per_s_trained=tokens * self._unit / wall_s,
        )


class _Draws:
    """Everything that is left to chance, drawn in the order of the groups."""

    def __init__(self, layout: Layout, rates: Rates, rollouts: Rollouts, seed: int) -> None:
        self._layout, self._rates, self._rollouts = layout, rates, rollouts
        self._random = np.random.default_rng(seed)

    def task(self, group: int, least_version: int) -> VirtualTask:
        """Group ``group``. Its members' rewards all differ, or agree where it is one that teaches nothing."""
        size = self._layout.group_size
        chosen_M = self._random.integers(len(self._rollouts.tokens), size=size)
        tokens, waits = self._rollouts.tokens[chosen_M].tolist(), self._rollouts.waits_s[chosen_M].tolist()
        agrees = self._random.random() < self._rates.closed_share
        members = [
            Member(token, wait, 0.0 if agrees else float(number))
            for number, (token, wait) in enumerate(zip(tokens, waits, strict=True))
        ]
        return VirtualTask(group, least_version, members)


class _Issuing:
    """The dispatcher, and the consumer of TASKS from which generators lease in turn."""

    def __init__(self, layout: Layout, make: Callable[[int, int], VirtualTask]) -> None:
        self.admission = Admission(
            max_off_policy_steps=layout.bound, groups_per_step=layout.groups_per_step, steps=layout.steps
        )
        self.free: deque[VirtualGenerator] = deque()
        """Generators that wait for a task, the longest first."""
        self._make = make
        self._tasks: deque[VirtualTask] = deque()

    def apply(self, event: Closed | Step) -> None:
        """Something was decided: more may be issued."""
        self.admission.apply(event)
        self.issue()

    def issue(self) -> None:
        """Issue what admission allows."""
        while not self.admission.finished and (least := self.admission.least_version()) is not None:
            self._tasks.append(self._make(self.admission.issued, least))
            self.admission.issued += 1
        self._hand_out()

    def freed(self, generator: VirtualGenerator) -> None:
        """A group of ``generator`` has ended."""
        if generator.room == 1:  # With more it waits already.
            self.free.append(generator)
        self._hand_out()

    def _hand_out(self) -> None:
        while self._tasks and self.free:
            generator = self.free.popleft()
            generator.lease(self._tasks.popleft())
            if generator.room:
                self.free.append(generator)
