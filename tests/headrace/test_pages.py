from __future__ import annotations

import io
from collections.abc import Sequence

import msgspec
import pytest
from rich.console import Console, RenderableType

from headrace.pages import group_text, rollout_text, step_text
from schemas import Closed, Rollout, Span, Step, Turn
from tests import examples
from tests.logs import logged

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


def test_a_turn_that_starts_a_training_sequence_says_so() -> None:
    turns = [Turn(8, 4, 0, "stop"), Turn(2, 2, 11, "length")]
    rollout = msgspec.structs.replace(said(TEXT, turns, [Span(4, 0, 6)]), starts=[1])
    heads = [line for line in shown(rollout_text(rollout, Letters())) if line.startswith("turn")]
    begins = ["training sequence of its own begins" in head for head in heads]
    assert begins == [False, True]


def test_rollouts_head_has_reward_metrics_and_times() -> None:
    page = "\n".join(shown(rollout_text(examples.rollout(), Letters())))
    for part in (
        "g12/3 of run demo",
        "reverse, task 12",
        "gen-0, delivery 1",
        "0.8000",
        "exact 0, turns 2",
        "14, sampled 6 (v4 2, v5 4)",
        "1 during play",
        "1.50 s, of which sampling 1.25 s, from 2026-11-30 00:53:20 UTC",
        "no step has trained it so far",
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
    page = "\n".join(shown(step_text(logged(examples.step(cpu={"capability": "AVX2", "mkl_cbwr": ""})))))
    for part in (
        "5 of run demo, by trainer",
        "2026-11-30 00:53:20 UTC, sequence 1 of LEDGER",
        "loss -0.01, reward_mean 0.5",
        "capability AVX2, mkl_cbwr unset",
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


@pytest.mark.parametrize(
    ("member", "fate", "words"),
    [
        (0, examples.step(), "trained in step 5 with advantage 1.2247"),
        (2, examples.step(), "left out of step 5: stale"),
        (1, examples.closed(group=12), "left out with its group at step 5: no_signal"),
        (1, None, "no step has trained it so far"),
    ],
)
def test_what_became_of_a_rollout_is_told(member: int, fate: Step | Closed | None, words: str) -> None:
    page = shown(rollout_text(examples.rollout(member=member), Letters(), fate))
    assert [line for line in page if line.startswith("became")] == [f"became       {words}"]


def test_a_groups_page_has_a_row_for_each_member() -> None:
    members = [examples.rollout(member=0), examples.failed_rollout(member=1)]
    group = [logged(each, sequence=31 + each.member) for each in members]
    page = shown(group_text(group, examples.step()), width=200)
    assert page[:3] == [
        "group        g12 of run demo",
        "environment  reverse, task 12",
        "became       trained in step 5",
    ]
    title, first, second = [line.split() for line in page[-3:]]
    assert dict(zip(title, first, strict=False)) == {
        "member": "0", "reward": "0.80", "versions": "v4-5", "tokens": "14", "sampled": "6", "turns": "2", "swaps": "1",
        "seconds": "1.50", "generator": "gen-0", "sequence": "31",
    }  # fmt: skip
    assert second[:5] == ["1", "-", "-", "0", "0"]
    assert page[-1].endswith("environment: ZeroDivisionError: division by zero")
