from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import UTC

import pytest
from rich.console import Console, RenderableType

from headrace.readable import describe, printable, ranges, rollout_text, step_text
from schemas import Event, Rollout, Span, Turn
from tests import examples
from tests.logs import logged, unreadable

TEXT = "rev:abc=edc>" + "? ab"


class Letters:
    """A tokenizer with one token for each character."""

    end_id = ord(">")

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(i) for i in ids)


def shown(page: RenderableType, *, width: int = 120) -> list[str]:
    """Lines of a page without any colour."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(page)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def said(text: str, turns: list[Turn], spans: list[Span]) -> Rollout:
    sampled = sum(turn.sampled for turn in turns)
    return examples.rollout(
        tokens=examples.packed_tokens([ord(c) for c in text]),
        logprobs=examples.packed_logprobs([-0.5] * sampled),
        turns=turns,
        spans=spans,
    )


@pytest.mark.parametrize(
    ("event", "source", "line"),
    [
        (examples.rollout(), "generator/gen-0", "rollout g12/3 reverse reward 0.80 v4-5 14 tokens gen-0"),
        (
            examples.failed_rollout(),
            "generator/gen-0",
            "rollout g12/3 reverse error environment 0 tokens gen-0: ZeroDivisionError: division by zero",
        ),
        (
            examples.task(),
            "dispatcher/dispatcher",
            "task g12 reverse index 12 size 8 from v3 'rev:abcde='",
        ),
        (examples.term(), "trainer/trainer", "term trainer after step 4 on mill, process 4242"),
        (examples.closed(), "trainer/trainer", "closed g13 reverse no_signal at step 5 exact 1"),
        (
            examples.step(),
            "trainer/trainer",
            "step 5 of 1 groups loss -0.01 reward_mean 0.5 staleness_max 2 staleness_mean 1.25 lr 0.0005",
        ),
        (examples.weights(), "trainer/trainer", "weights v5 float32 2.4 MB 0123456789ab"),
        (
            examples.lifecycle(),
            "generator/gen-0",
            "swapped v5, process 4243 pause_s 0.1 load_s 0.0625 resubmitted 3",
        ),
        (examples.metric(), "generator/gen-0", "metric v5 running 64 waiting 0"),
        (examples.control(), "operator/me", "control limit 16 by someone"),
        (examples.dead(), "trainer/trainer", "dead ROLLOUTS 41 15 bytes: not a known event: Input data was truncated"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Event) else "",
)
def test_every_event_has_its_line(event: Event, source: str, line: str) -> None:
    assert describe(logged(event, source=source), zone=UTC) == f"00:53:20.250 {source:<20} {line}"


def test_message_that_is_no_event_has_a_line_too() -> None:
    line = describe(unreadable(reason="torn\nin two"), zone=UTC)
    assert line.endswith("? " + " " * 19 + "not an event: torn\\nin two (hr.demo.rollout.reverse)")


def test_line_stays_one_line_and_steers_no_terminal() -> None:
    nasty = "\x1b[2J\r\n\u202eabc"
    for event in (examples.task(task=examples.task().task), examples.control(by=nasty), examples.dead(reason=nasty)):
        line = describe(logged(event))
        assert line.isprintable()
        assert line.splitlines() == [line]
    assert printable(nasty) == "\\x1b[2J\\r\\n\\u202eabc"


def test_rollouts_text_shows_context_and_the_version_of_each_token() -> None:
    turns = [Turn(8, 4, 0, "stop"), Turn(2, 2, 11, "length")]
    page = shown(rollout_text(said(TEXT, turns, [Span(4, 0, 2), Span(5, 2, 6)]), Letters()))
    assert page[-9:] == [
        "",
        "turn 1: context 8, sampled 4, cached prefix 0, ended by itself",
        "  context │ rev:abc=",
        "       v4 │ ed",
        "       v5 │ c>",
        "",
        "turn 2: context 2, sampled 2, cached prefix 11, met its token limit",
        "  context │ ?",
        "       v5 │ ab",
    ]


def test_rollouts_head_has_reward_metrics_and_times() -> None:
    page = "\n".join(shown(rollout_text(examples.rollout(), Letters())))
    for part in (
        "g12/3 of run demo",
        "reverse, task 12",
        "gen-0, delivery 1",
        "0.8000",
        "exact 0 turns 2",
        "14, sampled 6 (v4 2, v5 4)",
        "1 during play",
        "1.50 s, of which sampling 1.25 s, from 2026-11-30 00:53:20 UTC",
    ):
        assert part in page


def test_line_breaks_that_were_said_are_visible() -> None:
    page = shown(rollout_text(said("a\nb\n\nc\n", [Turn(2, 6, 0, "stop")], [Span(123, 0, 6)]), Letters()))
    assert page[-4:] == ["  context │ a⏎", "     v123 │ b⏎", "          │ ⏎", "          │ c⏎"]


def test_what_a_model_says_steers_no_terminal_and_is_no_markup() -> None:
    text = "[red]\x1b[2Jx"
    page = shown(rollout_text(said(text, [Turn(0, len(text), 0, "stop")], [Span(1, 0, len(text))]), Letters()))
    assert page[-1] == "       v1 │ [red]\\x1b[2Jx"


def test_rollout_that_failed_before_its_first_turn_has_a_page() -> None:
    page = "\n".join(shown(rollout_text(examples.failed_rollout(), Letters())))
    assert "environment: ZeroDivisionError: division by zero" in page
    assert "turn 1" not in page


def test_steps_page_shows_what_it_trained_and_what_it_left_out() -> None:
    page = "\n".join(shown(step_text(examples.step())))
    for part in (
        "5 of run demo, by trainer",
        "v4 0123456789ab -> v5 fedcba987654",
        "2 of 3 members of 1 groups",
        "2 rows in 1 micro-batches",
        "1 stale (6 tokens)",
        "exact 0.25",
        "rollouts seen 120, settled up to sequence 39",
        "threads 1, processes 1, torch 2.13.0",
    ):
        assert part in page
    row = page.splitlines()[-1].split("  ")
    assert [cell.strip() for cell in row if cell] == [
        "g12", "reverse", "1.00 0.50 0.00", "1.22 0.00 -", "2 stale", "31-32 40",
    ]  # fmt: skip


def test_ranges_keep_the_order() -> None:
    assert ranges([]) == ""
    assert ranges([5]) == "5"
    assert ranges([31, 32, 33, 40, 39]) == "31-33 40 39"
