"""Events to counters, gauges and summaries: a pure reduction, so a restart counts the log to the same figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Literal

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric as PrometheusMetric

from bus import Logged
from schemas import Closed, Dead, Evaluated, GroupTask, Lifecycle, Metric, Rollout, Step, Weights

Labels = tuple[str, ...]


class Family(msgspec.Struct, frozen=True):
    """One Prometheus metric; every series has the label ``run`` besides ``labels``."""

    kind: Literal["counter", "gauge", "summary"]
    help: str
    labels: Labels = ()


FAMILIES: dict[str, Family] = {
    "log_sequence": Family("gauge", "Newest sequence seen in a stream.", ("stream",)),
    "log_invalid": Family("counter", "Messages that are not valid events.", ("stream",)),
    "groups_issued": Family("counter", "Groups that the dispatcher issued.", ("env",)),
    "groups_trained": Family("counter", "Groups that a step trained.", ("env",)),
    "groups_closed": Family("counter", "Groups left out for good, by reason.", ("env", "reason")),
    "rollouts": Family("counter", "Rollouts published; outcome is reward, or the kind of error.", ("env", "outcome")),
    "sampled_tokens": Family("counter", "Tokens sampled in published rollouts.", ("env",)),
    "cached_tokens": Family("counter", "Prefix tokens that came from the engines' caches.", ("env",)),
    "rollout_reward": Family("summary", "Rewards of published rollouts.", ("env",)),
    "rollout_seconds": Family("summary", "Time from start of play to its end.", ("env",)),
    "rollout_sampling_seconds": Family("summary", "Of which waiting for the engine.", ("env",)),
    "step": Family("gauge", "Newest committed step."),
    "step_time_seconds": Family("gauge", "When it was committed, seconds since the epoch."),
    "step_metric": Family("gauge", "Metrics of the newest step.", ("name",)),
    "env_metric": Family("gauge", "Metrics of environments at the newest step.", ("env", "name")),
    "left_out_rollouts": Family("counter", "Members left out, by reason.", ("reason",)),
    "left_out_tokens": Family("counter", "Sampled tokens left out, by reason.", ("reason",)),
    "weights_version": Family("gauge", "Newest weights announced."),
    "weights_bytes": Family("gauge", "Size of their file."),
    "swaps": Family("counter", "Weight swaps of a generator.", ("id",)),
    "swap_pause_seconds": Family("summary", "Pause of decoding at a swap.", ("id",)),
    "starts": Family("counter", "Starts of a role instance.", ("role", "id")),
    "up": Family("gauge", "1 from a role instance's start to its stop, by its own word.", ("role", "id")),
    "heartbeat_time_seconds": Family("gauge", "When a role instance was heard last.", ("role", "id")),
    "role_version": Family("gauge", "Weights version that a role instance has.", ("role", "id")),
    "role_gauge": Family("gauge", "Gauges of role instances.", ("role", "id", "name")),
    "evaluation_plays": Family("counter", "Held-out plays published; outcome as of rollouts.", ("env", "outcome")),
    "evaluation_reward": Family("summary", "Rewards of a version's held-out plays.", ("env", "version")),
    "dead_letters": Family("counter", "Messages that could not be used.", ("stream",)),
}  # fmt: skip


class Figures:
    """All figures of a run, from the events taken so far."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._values: dict[str, dict[Labels, float]] = {name: defaultdict(float) for name in FAMILIES}
        self._counts: dict[str, dict[Labels, int]] = {name: defaultdict(int) for name in FAMILIES}

    def take(self, stream: str, logged: Logged) -> None:
        """Count one message of ``stream`` (its kind, ``ROLLOUTS`` for example)."""
        self._set("log_sequence", logged.sequence, stream)
        match logged.event:
            case None:
                self._add("log_invalid", 1, stream)
            case GroupTask() as task:
                self._add("groups_issued", 1, task.env)
            case Rollout() as rollout:
                self._take_rollout(rollout)
            case Evaluated() as play:
                self._add("evaluation_plays", 1, play.env, play.error.kind if play.error else "reward")
                if play.reward is not None:
                    self._observe("evaluation_reward", play.reward, play.env, str(play.version))
            case Closed() as closed:
                self._add("groups_closed", 1, closed.env, closed.reason)
            case Step() as step:
                self._take_step(step, logged.time)
            case Weights() as weights:
                self._set("weights_version", weights.version)
                self._set("weights_bytes", weights.size_bytes)
            case Lifecycle() as lifecycle:
                self._take_lifecycle(lifecycle, logged.time)
            case Metric() as metric:
                self._take_metric(metric, logged.time)
            case Dead() as dead:
                self._add("dead_letters", 1, dead.stream)

    def families(self) -> Iterator[PrometheusMetric]:
        """What a scrape returns, in the order of ``FAMILIES``; families without a series are left out."""
        for name, family in FAMILIES.items():
            if self._values[name]:
                yield self._family(f"headrace_{name}", family, self._values[name], self._counts[name])

    def _take_rollout(self, rollout: Rollout) -> None:
        env = rollout.env
        self._add("rollouts", 1, env, rollout.error.kind if rollout.error else "reward")
        self._add("sampled_tokens", rollout.sampled_tokens, env)
        self._add("cached_tokens", sum(turn.cached for turn in rollout.turns), env)
        self._observe("rollout_seconds", rollout.timings.total_s, env)
        self._observe("rollout_sampling_seconds", rollout.timings.sampling_s, env)
        if rollout.reward is not None:
            self._observe("rollout_reward", rollout.reward, env)

    def _take_step(self, step: Step, time: float) -> None:
        self._set("step", step.number)
        self._set("step_time_seconds", time)
        for family in ("step_metric", "env_metric"):  # What the newest step does not say is not shown as if it did.
            self._values[family].clear()
        for name, value in step.metrics.items():
            self._set("step_metric", value, name)
        for env, metrics in step.env_metrics.items():
            for name, value in metrics.items():
                self._set("env_metric", value, env, name)
        for group in step.groups:
            self._add("groups_trained", 1, group.env)
        for reason, members in step.left_out.items():
            self._add("left_out_rollouts", members, reason)
        for reason, tokens in step.left_out_tokens.items():
            self._add("left_out_tokens", tokens, reason)

    def _take_lifecycle(self, event: Lifecycle, time: float) -> None:
        instance = (event.role, event.id)
        self._set("heartbeat_time_seconds", time, *instance)
        self._set("up", float(event.state != "stopped"), *instance)
        if event.state == "started":
            self._add("starts", 1, *instance)
        if event.state == "swapped":
            self._add("swaps", 1, event.id)
            self._observe("swap_pause_seconds", event.details.get("pause_s", 0.0), event.id)
        if event.version is not None:
            self._set("role_version", event.version, *instance)

    def _take_metric(self, event: Metric, time: float) -> None:
        instance = (event.role, event.id)
        self._set("heartbeat_time_seconds", time, *instance)
        if event.version is not None:
            self._set("role_version", event.version, *instance)
        for name, value in event.gauges.items():
            self._set("role_gauge", value, *instance, name)

    def _set(self, name: str, value: float, *labels: str) -> None:
        self._values[name][labels] = value

    def _add(self, name: str, value: float, *labels: str) -> None:
        self._values[name][labels] += value

    def _observe(self, name: str, value: float, *labels: str) -> None:
        self._values[name][labels] += value
        self._counts[name][labels] += 1

    def _family(
        self, name: str, family: Family, values: dict[Labels, float], counts: dict[Labels, int]
    ) -> PrometheusMetric:
        labels = ("run", *family.labels)
        if family.kind == "summary":
            summary = SummaryMetricFamily(name, family.help, labels=labels)
            for key, value in values.items():
                summary.add_metric((self._run, *key), counts[key], value)
            return summary
        kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
        metric = kind(name, family.help, labels=labels)
        for key, value in values.items():
            metric.add_metric((self._run, *key), value)
        return metric
