"""What happened between two steps, counted: rewards, what was left out, staleness of what was trained, prompts read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from schemas import MAX_METRICS, Closed, Rollout, TrainedGroup

from .groups import Member
from .judgement import Rules, kept_tokens, trained_tokens
from .staleness import lags

PROMPT_TURNS = ("turn_1", "turn_2", "turn_3_on")
"""Names of the turns whose prompts are counted apart: at the first little is cached, and later all but what is new."""


class Tally:
    """Sums over the groups trained or closed since the last ``take``."""

    def __init__(self) -> None:
        self._rewards: list[float] = []
        self._left_out: Counter[str] = Counter()
        self._left_out_tokens: Counter[str] = Counter()
        self._metrics: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._closed = 0
        self._prefix_breaks = 0
        self._prompt_tokens = [0] * len(PROMPT_TURNS)
        """Tokens of the prompts of each of PROMPT_TURNS."""
        self._cached_tokens = [0] * len(PROMPT_TURNS)
        """Of which the prefix cache gave so many."""

    def closed(self, event: Closed) -> None:
        """A group was left out whole."""
        rewards = [reward for reward in event.rewards if reward is not None]
        self._rewards += rewards
        self._left_out[event.reason] += len(event.rewards)
        self._left_out_tokens[event.reason] += event.sampled_tokens
        self._closed += 1
        for name, value in event.metrics.items():
            self._metrics[event.env][name] += [value] * len(rewards)

    def trained(self, group: TrainedGroup, rollouts: Mapping[int, Rollout]) -> None:
        """A group is in the batch, some of its members perhaps left out."""
        for number, sequence in enumerate(group.sequences):
            rollout = rollouts[sequence]
            if rollout.reward is not None:
                self._rewards.append(rollout.reward)
                for name, value in rollout.metrics.items():
                    self._metrics[group.env][name].append(value)
            self._prompts_read(rollout)
            reason = group.left_out.get(str(number))
            if reason is not None:
                self._left_out[reason] += 1
                self._left_out_tokens[reason] += rollout.sampled_tokens

    def _prompts_read(self, rollout: Rollout) -> None:
        self._prefix_breaks += len(rollout.starts)
        begins, tokens, last = set(rollout.starts), 0, len(PROMPT_TURNS) - 1
        for number, turn in enumerate(rollout.turns):
            tokens = turn.context + (0 if number in begins else tokens)
            self._prompt_tokens[min(number, last)] += tokens
            self._cached_tokens[min(number, last)] += turn.cached
            tokens += turn.sampled

    def duplicates(self, count: int) -> None:
        """``count`` more rollouts came whose member was there already."""
        if count:
            self._left_out["duplicate"] += count

    @property
    def left_out(self) -> dict[str, int]:
        """Members left out, by reason."""
        return dict(self._left_out)

    @property
    def left_out_tokens(self) -> dict[str, int]:
        """Sampled tokens left out, by reason."""
        return {reason: tokens for reason, tokens in self._left_out_tokens.items() if tokens}

    def metrics(self) -> dict[str, float]:
        """Groups closed, members with a reward, and their mean reward; no mean where there is none.

        Over the groups in the batch, left out members too: ``prefix_breaks`` counts training sequences beyond one for
        each rollout; for turn 1, turn 2 and all later ones, ``prompt_tokens`` that requests had and the
        ``cached_share`` of them that the prefix cache gave.
        """
        metrics = {"groups_closed": float(self._closed), "rewards": float(len(self._rewards))}
        if self._rewards:
            metrics["reward_mean"] = float(np.mean(self._rewards))
        if self._prefix_breaks:
            metrics["prefix_breaks"] = float(self._prefix_breaks)
        for turn, read, cached in zip(PROMPT_TURNS, self._prompt_tokens, self._cached_tokens, strict=True):
            if read:
                metrics[f"prompt_tokens_{turn}"] = float(read)
                metrics[f"cached_share_{turn}"] = cached / read
        return metrics

    def env_metrics(self) -> dict[str, dict[str, float]]:
        """Environment to means of its named metrics over members with a reward, as many as an event holds."""
        return {env: _means(by_name) for env, by_name in self._metrics.items()}


def group_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Means of the named metrics over the members with a reward, as many as an event holds."""
    by_name: dict[str, list[float]] = defaultdict(list)
    for rollout in rollouts:
        if rollout.reward is not None:
            for name, value in rollout.metrics.items():
                by_name[name].append(value)
    return _means(by_name)


def _means(by_name: Mapping[str, list[float]]) -> dict[str, float]:
    """Of the MAX_METRICS names that most members have, by name: members that each bring names of their own could
    make an event larger than any message.
    """
    most = sorted(by_name, key=lambda name: (-len(by_name[name]), name))[:MAX_METRICS]
    return {name: float(np.mean(by_name[name])) for name in sorted(most)}


def staleness_metrics(
    step: int, groups: Sequence[TrainedGroup], rollouts: Mapping[int, Rollout], rules: Rules
) -> dict[str, float]:
    """Off-policy steps of the tokens that ``step`` trains: greatest, mean; and how many tokens and rollouts there are.

    Where long sequences are cut, ``cut_tokens`` counts the sampled tokens that were cut off.
    ``groups`` must train at least one token. Raises FutureVersion for a token of weights that do not exist.
    """
    parts = []
    crossing = cut = 0
    for group in groups:
        for sequence, advantage in zip(group.sequences, group.advantages, strict=True):
            if advantage is None:
                continue
            rollout = rollouts[sequence]
            trained_S = trained_tokens(Member(sequence, rollout), step, rules)[rollout.loss_mask()]
            span_lags = lags([span.version for span in rollout.spans], step)
            lags_S = np.repeat(span_lags, [span.end - span.start for span in rollout.spans])
            parts.append(lags_S[trained_S])
            crossing += len(rollout.spans) > 1
            cut += rollout.sampled_tokens - int(kept_tokens(rollout, rules).sum())
    lags_N = np.concatenate(parts)
    metrics = {
        "staleness_max": float(lags_N.max()),
        "staleness_mean": float(lags_N.mean()),
        "trained_tokens": float(lags_N.size),
        "rollouts_trained": float(len(parts)),
        "rollouts_of_several_versions": float(crossing),
    }
    return metrics | ({"cut_tokens": float(cut)} if rules.too_long == "cut" else {})


def step_times(laps: Mapping[str, float], *, wait_s: float) -> dict[str, float]:
    """Where the trainer's time has gone since it handed over the step before, in seconds.

    ``wait_s``: waited for rollouts. ``assemble_s``: took them in, judged groups, closed those that teach nothing.
    ``pack_s``: made micro-batches. ``compute_s``: forward, backward and optimizer. ``commit_wait_s``: waited for the
    commit of the step before, which goes on beside all of this. ``export_s``: took the weights. ``snapshot_s``: copied
    the state for a checkpoint. ``overhead_s``: all but waiting for rollouts and computing. ``train_s``: all after the
    batch was there.
    laps: seconds of ``collect_s``, which is ``wait_s`` and ``assemble_s`` together, and of the others.
    """
    times = {"wait_s": wait_s, "assemble_s": laps["collect_s"] - wait_s}
    times |= {name: seconds for name, seconds in laps.items() if name != "collect_s"}
    total_s = sum(laps.values())
    return times | {"overhead_s": total_s - wait_s - laps["compute_s"], "train_s": total_s - laps["collect_s"]}
