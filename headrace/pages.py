"""A page about a rollout, a group or a step, for ``headrace show``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bus import Logged
from environments import Tokenizer
from schemas import Closed, Rollout, Step, TrainedGroup, Turn

from .readable import number, printable, ranges, shortened, versions

GUTTER = 9
"""Columns before a line of a rollout's text: ``context`` or the version, so that both differ without colour."""
VERSION_STYLES = ("green", "cyan", "magenta", "yellow", "blue")


def rollout_text(rollout: Rollout, tokenizer: Tokenizer, fate: Step | Closed | None = None) -> RenderableType:
    """A page: what it is, what became of it, and its text turn by turn with the version of each token.

    A run of tokens of one kind is decoded together; where a character's bytes fall apart over a swap, the tokenizer's
    replacement character shows on both sides.
    """
    parts: list[RenderableType] = [_rollout_head(rollout, fate)]
    position, sampled = 0, 0
    for i, turn in enumerate(rollout.turns, start=1):
        parts += ["", _turn_head(i, turn, anew=i - 1 in rollout.starts)]
        ids = rollout.token_ids()[position : position + turn.context].tolist()
        parts += _gutter("context", tokenizer.decode(ids) if ids else "", "dim")
        position += turn.context
        for version, start, end in _version_runs(rollout, sampled, sampled + turn.sampled):
            ids = rollout.token_ids()[position + start - sampled : position + end - sampled].tolist()
            style = VERSION_STYLES[version % len(VERSION_STYLES)]
            parts += _gutter(f"v{version}", tokenizer.decode(ids), style)
        position += turn.sampled
        sampled += turn.sampled
    return Group(*parts)


def _rollout_head(rollout: Rollout, fate: Step | Closed | None) -> RenderableType:
    tokens, timings = len(rollout.tokens) // 4, rollout.timings
    started = datetime.fromtimestamp(timings.started_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    by_version = ", ".join(f"v{span.version} {span.end - span.start}" for span in rollout.spans)
    rows = [
        ("rollout", f"g{rollout.group}/{rollout.member} of run {rollout.run}"),
        ("environment", f"{rollout.env}, task {rollout.index}"),
        ("played by", f"{printable(rollout.generator)}, delivery {rollout.attempt}"),
        ("reward", "none" if rollout.reward is None else f"{rollout.reward:.4f}"),
    ]
    if rollout.error is not None:
        rows.append(("error", f"{rollout.error.kind}: {printable(rollout.error.message)}"))
    rows += [
        ("metrics", _figures(rollout.metrics)),
        ("tokens", f"{tokens}, sampled {rollout.sampled_tokens}" + (f" ({by_version})" if by_version else "")),
        ("swaps", f"{rollout.swaps_during} during play"),
        ("time", f"{timings.total_s:.2f} s, of which sampling {timings.sampling_s:.2f} s, from {started}"),
        ("became", _member_fate(rollout, fate)),
    ]
    return _facts(rows)


def _member_fate(rollout: Rollout, fate: Step | Closed | None) -> str:
    if not isinstance(fate, Step):
        return _group_fate(fate)
    group = next(group for group in fate.groups if group.group == rollout.group)
    advantage = group.advantages[rollout.member] if rollout.member < len(group.advantages) else None
    if advantage is not None:
        return f"trained in step {fate.number} with advantage {advantage:.4f}"
    return (
        f"left out of step {fate.number}: {printable(group.left_out.get(str(rollout.member), 'it has no advantage'))}"
    )


def _group_fate(fate: Step | Closed | None) -> str:
    match fate:
        case Step():
            return f"trained in step {fate.number}"
        case Closed():
            return f"left out with its group at step {fate.step}: {fate.reason}"
    return "no step has trained it so far"


def _turn_head(number_: int, turn: Turn, *, anew: bool) -> Text:
    ended = "ended by itself" if turn.finish == "stop" else "met its token limit"
    facts = f"context {turn.context}, sampled {turn.sampled}, cached prefix {turn.cached}, {ended}"
    begins = ", a training sequence of its own begins" if anew else ""
    return Text(f"turn {number_}: {facts}{begins}", style="bold")


def _version_runs(rollout: Rollout, first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """Version, start and end of the parts of ``first`` to ``last``, counted over the sampled tokens."""
    for span in rollout.spans:
        start, end = max(span.start, first), min(span.end, last)
        if start < end:
            yield span.version, start, end


def _gutter(label: str, text: str, style: str) -> list[RenderableType]:
    """Lines of ``text`` behind a gutter; the label stands at the first, and a line break that was said is shown."""
    lines = text.split("\n")
    shown = [f"{printable(line)}⏎" for line in lines[:-1]] + [printable(lines[-1])]
    if len(shown) > 1 and not shown[-1]:
        shown.pop()
    return [
        Text.assemble((f"{label if i == 0 else '':>{GUTTER}} │ ", "bold"), (line, style))
        for i, line in enumerate(shown)
    ]


def group_text(members: Sequence[Logged], fate: Step | Closed | None) -> RenderableType:
    """A page: the members of one group side by side."""
    names = ("member", "reward", "versions", "tokens", "sampled", "turns", "swaps", "seconds", "generator", "sequence")
    table = Table(*names, "error", box=None, pad_edge=False)
    for logged in members:
        rollout = logged.event
        assert isinstance(rollout, Rollout)
        table.add_row(
            str(rollout.member),
            "-" if rollout.reward is None else f"{rollout.reward:.2f}",
            versions(rollout.spans[0].version, rollout.spans[-1].version) if rollout.spans else "-",
            str(len(rollout.tokens) // 4),
            str(rollout.sampled_tokens),
            str(len(rollout.turns)),
            str(rollout.swaps_during),
            f"{rollout.timings.total_s:.2f}",
            printable(rollout.generator),
            str(logged.sequence),
            "" if rollout.error is None else f"{rollout.error.kind}: {shortened(rollout.error.message)}",
        )
    first = members[0].event
    assert isinstance(first, Rollout)
    facts = _facts(
        [
            ("group", f"g{first.group} of run {first.run}"),
            ("environment", f"{first.env}, task {first.index}"),
            ("became", _group_fate(fate)),
        ]
    )
    return Group(facts, "", table)


def step_text(logged: Logged) -> RenderableType:
    """A page: what a step trained, what it left out, and what it takes to take it again."""
    step = logged.event
    assert isinstance(step, Step)
    committed = datetime.fromtimestamp(logged.time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    members = [advantage for group in step.groups for advantage in group.advantages]
    rows = sum(len(micro_batch) for micro_batch in step.packing)
    trained = sum(advantage is not None for advantage in members)
    facts = _facts(
        [
            ("step", f"{step.number} of run {step.run}, by {printable(step.instance)}"),
            ("committed", f"{committed}, sequence {logged.sequence} of LEDGER"),
            ("weights", f"v{step.number - 1} {step.weights_before[:12]} -> v{step.number} {step.weights_after[:12]}"),
            ("trained", f"{trained} of {len(members)} members of {len(step.groups)} groups"),
            ("packing", f"{rows} rows in {len(step.packing)} micro-batches"),
            ("left out", _left_out(step)),
            ("metrics", _figures(step.metrics)),
            *((f"  {printable(env)}", _figures(metrics)) for env, metrics in step.env_metrics.items()),
            ("log", f"rollouts seen {step.rollouts_seen}, settled up to sequence {step.low_water}"),
            ("checkpoint", str(step.checkpoint)),
            ("seed", str(step.seed)),
            ("configuration", step.config_digest[:12]),
            ("made with", f"threads {step.threads}, processes {step.world_size}, {_words(step.libraries)}"),
            ("device", printable(step.device) or "not recorded"),
            ("cpu", _words(step.cpu)),
        ]
    )
    return Group(facts, "", _groups_table(step.groups))


def _groups_table(groups: Sequence[TrainedGroup]) -> Table:
    table = Table("group", "environment", "rewards", "advantages", "left out", "sequences", box=None, pad_edge=False)
    for group in groups:
        left_out = ", ".join(f"{member} {reason}" for member, reason in group.left_out.items())
        table.add_row(
            f"g{group.group}",
            printable(group.env),
            _list(group.rewards),
            _list(group.advantages),
            left_out,
            ranges(group.sequences),
        )
    return table


def _list(values: Sequence[float | None]) -> str:
    return " ".join("-" if value is None else f"{value:.2f}" for value in values)


def _left_out(step: Step) -> str:
    parts = (
        f"{members} {printable(reason)} ({step.left_out_tokens.get(reason, 0)} tokens)"
        for reason, members in step.left_out.items()
        if members
    )
    return ", ".join(parts) or "nothing"


def _words(values: dict[str, str]) -> str:
    named = (f"{printable(name)} {printable(value) or 'unset'}" for name, value in values.items())
    return ", ".join(named) or "not recorded"


def _facts(rows: Sequence[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, Text(value))
    return grid


def _figures(values: dict[str, float]) -> str:
    return ", ".join(f"{printable(name)} {number(value)}" for name, value in values.items()) or "none"
