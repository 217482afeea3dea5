"""``tools``: calls and their results turn by turn, mistakes that are answered, and what is trained."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from environments import CharacterTokenizer, Environment, Outcome, ScriptedPolicy, load_environment
from environments.sandbox import Interpreter
from environments.tools import MOST_CALLS
from schemas import EnvironmentFault, EnvironmentSettings, Task

TASK = Task(prompt="What is 6 * 7?", answer="42")


def made(**args: Any) -> Environment:
    return load_environment(EnvironmentSettings(name="tools", args=args), seed=0)


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


async def played(environment: Environment, replies: Sequence[str], task: Task = TASK) -> tuple[Outcome, list[str]]:
    """How it ended, and the contexts of the turns."""
    policy = ScriptedPolicy(CharacterTokenizer(), replies)
    outcome = await environment.play(task, policy)
    transcript, position, contexts = policy.transcript(), 0, []
    for turn in transcript.turns:
        contexts.append(CharacterTokenizer().decode(transcript.tokens[position : position + turn.context].tolist()))
        position += turn.context + turn.sampled
    assert transcript.starts == []
    return outcome, contexts


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize(
    ("tool", "arguments", "result"),
    [
        ("calculator", {"expression": "6 * 7"}, "42"),
        ("calculator", {"expression": "1 / 0"}, "Error: division by zero"),
        ("calculator", {"expression": "__import__('os')"}, "Error: only numbers"),
        ("python", {"code": "print(6 * 7)"}, "42"),
        ("python", {"code": "sum(range(5))"}, "10"),
        ("python", {"code": "x = 1"}, "(the program printed nothing)"),
        ("python", {"code": "1 / 0"}, "Error: exit code 1\nTraceback"),
        ("python", {"code": "while True: pass"}, "Error: the program was ended because it took longer than 1 s"),
        ("python", {"code": "while True: print(1)"}, "Error: the program was ended because it printed more than"),
        ("abacus", {"beads": 3}, "Error: there is no tool 'abacus', there are: calculator, python"),
        ("python", {"program": "1"}, "Error: python takes one argument, the text 'code'"),
        ("calculator", {"expression": 42}, "Error: calculator takes one argument, the text 'expression'"),
    ],
)
async def test_call_is_answered_in_the_next_context(
    tool: str, arguments: dict[str, Any], result: str, chat: bool
) -> None:
    outcome, contexts = await played(made(chat=chat, cpu_s=1), [call(tool, **arguments), "Answer: 42"])
    assert result in contexts[1]
    assert ("<|im_start|>tool\n" in contexts[1]) is chat
    assert ("<tool_response>" in contexts[1]) is not chat
    failed = float(result.startswith("Error"))
    assert outcome.reward == 1.0
    assert outcome.metrics == {"right": 1.0, "turns": 2.0, "calls": 1.0, "failed_calls": failed}


@pytest.mark.parametrize(
    "malformed",
    [
        "<tool_call>calculator 1 + 1</tool_call>",
        '<tool_call>{"name": "calculator", "arguments": "1 + 1"}</tool_call>',
        '<tool_call>{"name": "calculator", "arguments": {"expression": "1 + 1"}</tool_call>',
        '<tool_call>["calculator"]</tool_call>',
        "<tool_call>",
    ],
)
async def test_malformed_call_is_answered_not_failed(malformed: str) -> None:
    outcome, contexts = await played(made(), [malformed, "Answer: 42"])
    assert "Error: this is not a tool call" in contexts[1]
    assert (outcome.reward, outcome.metrics["failed_calls"]) == (1.0, 1.0)


async def test_several_calls_in_one_reply_are_answered_in_order_up_to_a_number() -> None:
    calls = "".join(call("calculator", expression=f"{i} + 100") for i in range(MOST_CALLS + 2))
    outcome, contexts = await played(made(), [calls, "Answer: 42"])
    assert [contexts[1].index(f"10{i}") for i in range(MOST_CALLS)] == sorted(
        contexts[1].index(f"10{i}") for i in range(MOST_CALLS)
    )
    assert "Error: at most 4 tool calls in one reply" in contexts[1]
    assert "104" not in contexts[1]
    assert outcome.metrics["calls"] == MOST_CALLS + 1


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ("Answer: 42", 1.0),
        ("Answer: 41. No, wait. answer: 42.", 1.0),
        ("**Answer:** 42", 0.0),
        ("Answer: $42", 1.0),
        ("Answer: 4,2", 1.0),
        ("Answer: 42.5", 0.0),
        ("Answer: 420", 0.0),
        ("Answer: -42", 0.0),
        ("42", 0.0),
        ("Answer: " + "4" * 200, 0.0),
        ("", 0.0),
    ],
)
async def test_only_the_last_answer_earns(reply: str, right: float) -> None:
    outcome, _ = await played(made(), [reply])
    assert outcome.reward == right


async def test_turns_bound_the_play() -> None:
    one = call("calculator", expression="1")
    outcome, contexts = await played(made(turns=3), [one] * 9)
    assert (outcome.reward, outcome.metrics["turns"], len(contexts)) == (0.0, 3.0, 3)


async def test_conversation_that_grows_too_long_earns_nothing_but_does_not_fail() -> None:
    policy = ScriptedPolicy(
        CharacterTokenizer(), lambda _: call("python", code="print('x' * 900)"), max_tokens_total=1500
    )
    outcome = await made().play(TASK, policy)
    assert (outcome.reward, outcome.metrics["calls"]) == (0.0, 1.0)


async def test_template_that_shows_no_tools_is_helped_with_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedPolicy, "shows_tools", False)
    _, contexts = await played(made(chat=True), [call("calculator", expression="6*7"), "Answer: 42"])
    assert 'Call it like this:\n<tool_call>\n{"name": "calculator"' in contexts[0]
    assert "# Tools" not in contexts[0]
    assert "<|im_start|>user\n<tool_response>\n42\n</tool_response>" in contexts[1]


async def test_tools_that_are_not_asked_for_do_not_exist() -> None:
    environment = made(tools=["calculator"])
    _, contexts = await played(environment, [call("python", code="1"), "Answer: 42"])
    assert '"name": "python"' not in contexts[0]
    assert "there is no tool 'python', there are: calculator" in contexts[1]
    with pytest.raises(EnvironmentFault, match=r"args.tools = \['abacus'\]"):
        made(tools=["abacus"])


@pytest.mark.parametrize("difficulty", [1, 2, 3])
async def test_demonstration_calls_a_tool_and_is_right(difficulty: int) -> None:
    environment = made(difficulty=difficulty, tools=["calculator"])
    for index in range(20):
        task = environment.task(index)
        assert task == made(difficulty=difficulty, tools=["calculator"]).task(index)
        script = environment.demonstration(task, environment.rng(0))
        assert script is not None
        policy = ScriptedPolicy(CharacterTokenizer(), script)
        outcome = await environment.play(task, policy)
        assert (outcome.reward, outcome.metrics["calls"]) == (1.0, 1.0)


def test_problems_have_whole_answers_and_differ() -> None:
    tasks = [made(tools=["calculator"], difficulty=3).task(index) for index in range(200)]
    assert all(int(task.answer) >= 0 for task in tasks)
    assert len({task.prompt for task in tasks}) > 190


@pytest.mark.parametrize(
    ("isolation", "why", "told"),
    [
        ("namespaces", "", "the Python tool runs with isolation namespaces"),
        ("filter", "unshare: no", "behind a filter of system calls, without namespaces: unshare: no"),
        ("limits", "", "programs can read and write what this user can"),
    ],
)
def test_isolation_in_force_is_told(
    isolation: str, why: str, told: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def probed(self: Interpreter, *_: object) -> None:
        self.isolation, self.why_not_more = isolation, why  # type: ignore[assignment]

    monkeypatch.setattr(Interpreter, "__init__", probed)
    with caplog.at_level(logging.INFO, logger="headrace.environments"):
        made()
    assert told in caplog.text
