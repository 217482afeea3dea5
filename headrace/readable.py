"""Events for people: one line for each in ``headrace tail``, a page for a rollout or a step in ``headrace show``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, tzinfo

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bus import Logged
from environments import Tokenizer
from schemas import (
    Closed,
    Control,
    Dead,
    Event,
    GroupTask,
    Lifecycle,
    Metric,
    Rollout,
    Step,
    Term,
    TrainedGroup,
    Turn,
    Weights,
)

GUTTER = 9
"""Columns before a line of a rollout's text: ``context`` or the version, so that both differ without colour."""
VERSION_STYLES = ("green", "cyan", "magenta", "yellow", "blue")


def describe(logged: Logged, *, zone: tzinfo | None = None) -> str:
    """One line: time of day in ``zone`` (local where None), who said it, and what."""
    time = datetime.fromtimestamp(logged.time, UTC).astimezone(zone).strftime("%H:%M:%S.%f")[:-3]
    who = printable(logged.headers.get("ce-source", "").partition("/")[2].partition("/")[2]) or "?"
    if logged.event is None:
        what = f"not an event: {printable(logged.invalid or 'no reason given')} ({printable(logged.subject)})"
    else:
        what = _what(logged.event)
    return f"{time} {who:<20} {what}"


def _what(event: Event) -> str:
    match event:
        case GroupTask():
            return (
                f"task g{event.group} {event.env} index {event.index} size {event.size} "
                f"from v{event.least_version} '{shortened(event.task.prompt)}'"
            )
        case Rollout():
            return _what_rollout(event)
        case Term():
            where = f"{printable(event.host)}, process {event.pid}"
            return f"term {printable(event.instance)} after step {event.committed} on {where}"
        case Closed():
            return f"closed g{event.group} {event.env} {event.reason} at step {event.step}{_pairs(event.metrics)}"
        case Step():
            return f"step {event.number} of {len(event.groups)} groups{_pairs(event.metrics)}"
        case Weights():
            return f"weights v{event.version} {event.dtype} {event.size_bytes / 1e6:.1f} MB {event.sha256[:12]}"
        case Lifecycle():
            version = "" if event.version is None else f" v{event.version}"
            note = f" {printable(event.note)}" if event.note else ""
            return f"{event.state}{version}, process {event.pid}{_pairs(event.details)}{note}"
        case Metric():
            version = "" if event.version is None else f" v{event.version}"
            return f"metric{version}{_pairs(event.gauges)}"
        case Control():
            limit = "" if event.limit is None else f" {event.limit}"
            return f"control {event.action}{limit}" + (f" by {printable(event.by)}" if event.by else "")
        case Dead():
            place = f"{event.stream} {event.sequence}" if event.sequence else f"{event.stream} (never stored)"
            return f"dead {place} {len(event.payload)} bytes: {printable(event.reason)}"
    raise AssertionError(f"{type(event).__name__} has no words")


def _what_rollout(rollout: Rollout) -> str:
    failure = rollout.error
    outcome = f"reward {rollout.reward:.2f}" if failure is None else f"error {failure.kind}"
    versions = f" {_versions(rollout.spans[0].version, rollout.spans[-1].version)}" if rollout.spans else ""
    return (
        f"rollout g{rollout.group}/{rollout.member} {rollout.env} {outcome}{versions} "
        f"{len(rollout.tokens) // 4} tokens {printable(rollout.generator)}"
        + ("" if failure is None else f": {shortened(failure.message)}")
    )


def _versions(least: int, greatest: int) -> str:
    return f"v{least}" if least == greatest else f"v{least}-{greatest}"


def _pairs(values: dict[str, float]) -> str:
    return "".join(f" {printable(name)} {number(value)}" for name, value in values.items())


def number(value: float) -> str:
    """Four significant digits; whole numbers in full."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else f"{value:.4g}"


def printable(text: str) -> str:
    """``text`` on one line, with what could steer a terminal written out: a model may say anything."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shortened(text: str, width: int = 60) -> str:
    """The beginning of ``printable(text)``, at most ``width`` characters."""
    line = printable(text)
    return line if len(line) <= width else f"{line[: width - 1]}…"


def rollout_text(rollout: Rollout, tokenizer: Tokenizer) -> RenderableType:
    """A page: what it is, what came of it, and its text turn by turn with the version of each token.

    A run of tokens of one kind is decoded together; where a character's bytes fall apart over a swap, the tokenizer's
    replacement character shows on both sides.
    """
    parts: list[RenderableType] = [_rollout_head(rollout)]
    position, sampled = 0, 0
    for i, turn in enumerate(rollout.turns, start=1):
        parts += ["", _turn_head(i, turn)]
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


def _rollout_head(rollout: Rollout) -> RenderableType:
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
        ("metrics", _pairs(rollout.metrics).strip() or "none"),
        ("tokens", f"{tokens}, sampled {rollout.sampled_tokens}" + (f" ({by_version})" if by_version else "")),
        ("swaps", f"{rollout.swaps_during} during play"),
        ("time", f"{timings.total_s:.2f} s, of which sampling {timings.sampling_s:.2f} s, from {started}"),
    ]
    return _facts(rows)


def _turn_head(number_: int, turn: Turn) -> Text:
    ended = "ended by itself" if turn.finish == "stop" else "met its token limit"
    facts = f"context {turn.context}, sampled {turn.sampled}, cached prefix {turn.cached}, {ended}"
    return Text(f"turn {number_}: {facts}", style="bold")


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


def step_text(step: Step) -> RenderableType:
    """A page: what step ``number`` trained, what it left out, and what it takes to take it again."""
    members = [advantage for group in step.groups for advantage in group.advantages]
    rows = sum(len(micro_batch) for micro_batch in step.packing)
    trained = sum(advantage is not None for advantage in members)
    facts = _facts(
        [
            ("step", f"{step.number} of run {step.run}, by {printable(step.instance)}"),
            ("weights", f"v{step.number - 1} {step.weights_before[:12]} -> v{step.number} {step.weights_after[:12]}"),
            ("trained", f"{trained} of {len(members)} members of {len(step.groups)} groups"),
            ("packing", f"{rows} rows in {len(step.packing)} micro-batches"),
            ("left out", _left_out(step)),
            ("metrics", _pairs(step.metrics).strip() or "none"),
            *((f"  {printable(env)}", _pairs(metrics).strip()) for env, metrics in step.env_metrics.items()),
            ("log", f"rollouts seen {step.rollouts_seen}, settled up to sequence {step.low_water}"),
            ("checkpoint", str(step.checkpoint)),
            ("seed", str(step.seed)),
            ("configuration", step.config_digest[:12]),
            ("made with", f"threads {step.threads}, processes {step.world_size}, {_words(step.libraries)}"),
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


def ranges(numbers: Sequence[int]) -> str:
    """``[31, 32, 33, 40]`` as ``31-33 40``, in their order."""
    found: list[list[int]] = []
    for value in numbers:
        if found and value == found[-1][1] + 1:
            found[-1][1] = value
        else:
            found.append([value, value])
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


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
    return ", ".join(f"{printable(name)} {printable(value)}" for name, value in values.items()) or "not recorded"


def _facts(rows: Sequence[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, Text(value))
    return grid
