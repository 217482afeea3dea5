"""A generator on the virtual clock: leases groups, plays their members at once, swaps, gives up what is too late.

It does what ``producers.generator`` does, in the same order: a group waits for its least version; the newest weights
are fetched while decoding goes on, and again where newer ones came meanwhile; what is given up is published after
the swap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from producers import too_late
from schemas import Failure, Rollout, Span, Timings, Turn

from .clock import Clock
from .decoder import Decoder, Request
from .rates import Layout, Rates

STALE = Failure(kind="stale", message="its oldest token could no longer be trained in time")


class Member(NamedTuple):
    """What one rollout will be."""

    tokens: float
    wait_s: float
    """Before it samples."""
    reward: float


class VirtualTask(NamedTuple):
    """A group to play."""

    group: int
    least_version: int
    members: list[Member]


class VirtualGenerator:
    """``publish`` takes each rollout at the moment when it ends, ``freed`` hears when there is room again."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        layout: Layout,
        rates: Rates,
        unit: float,
        publish: Callable[[Rollout], None],
        freed: Callable[[VirtualGenerator], None],
    ) -> None:
        """``unit``: tokens for which one of a published rollout stands."""
        self.name = name
        self._clock, self._layout, self._rates, self._unit = clock, layout, rates, unit
        self._publish, self._freed = publish, freed
        self.decoder = Decoder(clock, rates)
        self._version = -1
        self._announced = -1
        self._fetching = False
        self._in_play = 0
        self._missing: dict[int, int] = {}
        """Members of each leased group that have not ended."""
        self._early: list[VirtualTask] = []
        """Leased groups that need newer weights."""
        self._playing: dict[Request, tuple[VirtualTask, int]] = {}

    @property
    def room(self) -> int:
        """Groups that may be leased now."""
        return (self._layout.concurrency - self._in_play) // self._layout.group_size

    def lease(self, task: VirtualTask) -> None:
        """Play ``task``, as soon as the weights are new enough."""
        self._in_play += len(task.members)
        self._missing[task.group] = len(task.members)
        if task.least_version <= self._version:
            self._play(task)
        else:
            self._early.append(task)

    def announce(self, version: int) -> None:
        """Weights ``version`` are durable."""
        self._announced = version
        if not self._fetching:
            self._fetch()

    def _fetch(self) -> None:
        self._fetching = True
        version = self._announced
        self._clock.at(self._clock.now + self._rates.fetch_s, lambda: self._fetched(version))

    def _fetched(self, version: int) -> None:
        if version != self._announced:
            self._fetch()
            return
        self.decoder.pause()
        self._clock.at(self._clock.now + self._rates.pause_s, lambda: self._swap(version))

    def _swap(self, version: int) -> None:
        late = self._late(version) if self._layout.stale == "drop" else []
        for request in late:
            self.decoder.give_up(request)
        self._version = version
        self.decoder.resume(version)
        for request in late:
            self._end(request, error=STALE)
        early, self._early = self._early, []
        for task in early:
            if task.least_version <= version:
                self._play(task)
            else:
                self._early.append(task)
        self._fetching = False
        if self._announced > version:
            self._fetch()

    def _late(self, version: int) -> list[Request]:
        """Requests to be given up; they came in the order of their oldest tokens."""
        late = []
        for request in self.decoder.running():
            sampled = self.decoder.sampled(request) >= 1
            if not too_late(self.decoder.oldest_version(request), version=version, bound=self._layout.bound):
                break
            if sampled:
                late.append(request)
        return late

    def _play(self, task: VirtualTask) -> None:
        now: list[Request] = []
        for number, member in enumerate(task.members):
            request = Request(member.tokens, self._end)
            self._playing[request] = (task, number)
            if member.wait_s > 0:
                self._clock.at(self._clock.now + member.wait_s, lambda later=request: self.decoder.add([later]))  # type: ignore[misc]
            else:
                now.append(request)
        self.decoder.add(now)

    def _end(self, request: Request, error: Failure | None = None) -> None:
        task, number = self._playing.pop(request)
        self._publish(self._rollout(task, number, request, error))
        self._missing[task.group] -= 1
        if not self._missing[task.group]:  # A group keeps all its places until its last member has ended.
            del self._missing[task.group]
            self._in_play -= len(task.members)
            self._freed(self)

    def _rollout(self, task: VirtualTask, number: int, request: Request, error: Failure | None) -> Rollout:
        spans: list[Span] = self.decoder.spans(request, self._unit) if error is None else []
        sampled = spans[-1].end if spans else 0
        return Rollout(
            run="plan",
            group=task.group,
            member=number,
            env="plan",
            index=task.group,
            generator=self.name,
            attempt=1,
            tokens=bytes(4 * (1 + sampled)) if spans else b"",
            logprobs=bytes(4 * sampled),
            turns=[Turn(1, sampled, 0, "stop")] if spans else [],
            spans=spans,
            reward=task.members[number].reward if error is None else None,
            error=error,
            timings=Timings(started_at=0.0, total_s=0.0, sampling_s=0.0),
        )
