"""``tools``: several turns; problems in words, with a calculator and a Python interpreter to call on the way.

Calls have the form that chat templates know: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``. What a tool
returns is context, which is not trained. A call that cannot be understood is answered by what is wrong with it.
"""

from __future__ import annotations

import json
import logging
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta

from schemas import Task

from .calculator import NoNumber, calculate
from .environment import Environment
from .outcome import Outcome
from .policy import Policy, Reply, TooLong
from .sandbox import Interpreter, Isolation, Limits
from .scripted import Demonstrator
from .tool_calls import ToolCall, parse_tool_calls
from .word_problems import word_problem

log = logging.getLogger("headrace.environments")

Tool = Literal["calculator", "python"]

SYSTEM = "Solve the problem. Use a tool where it helps. At the end write the answer, a whole number, as: Answer: 42"
MALFORMED = (
    "Error: this is not a tool call. Write <tool_call>, a JSON object with a name and arguments that is closed, and "
    "</tool_call>."
)
MOST_CALLS = 4
"""In one reply; those after it are answered by an error."""
_ARGUMENT = {"calculator": "expression", "python": "code"}
_ABOUT = {
    "calculator": ("Calculates an expression of numbers, + - * / // % ** and brackets.", "such as (3 + 4) * 5"),
    "python": ("Runs a Python program, with the standard library's mathematics and without files or network, and "
               "returns what it prints.", "the program"),
}  # fmt: skip
_ANSWER = re.compile(r"answer:\s*\$?(-?[\d,]+)(?![\d.]*\d)", re.IGNORECASE)


class Tools(Environment):
    """The reward is 1 for the right answer within the turns, and 0 for anything else."""

    def __init__(
        self,
        *,
        seed: int,
        tools: Annotated[list[Tool], Meta(min_length=1)] | None = None,
        difficulty: Annotated[int, Meta(ge=1, le=3)] = 2,
        turns: Annotated[int, Meta(ge=1, le=32)] = 4,
        max_tokens: Annotated[int, Meta(ge=1)] | None = None,
        system: str = SYSTEM,
        chat: bool | None = None,
        cpu_s: Annotated[int, Meta(ge=1, le=60)] = 2,
        wall_s: Annotated[float, Meta(gt=0, le=60)] = 10.0,
        memory_mib: Annotated[int, Meta(ge=64)] = 256,
        output_chars: Annotated[int, Meta(ge=10)] = 1000,
        isolation: Isolation = "auto",
    ) -> None:
        """``tools``: those that may be called; both where it is not given. ``difficulty``: of the problems.
        ``turns``: replies that one play allows. ``max_tokens``: most tokens of each. ``system``: what is said first.
        ``chat``: by the model's chat template; where it is not given, if the model has one.
        ``cpu_s``, ``wall_s``, ``memory_mib``: what one program may use. ``output_chars``: most that a tool returns.
        ``isolation``: auto, namespaces, filter or limits; less than a filter of system calls only by that word.
        """
        super().__init__(seed=seed)
        self.tools: list[Tool] = ["calculator", "python"] if tools is None else tools
        self.difficulty, self.turns, self.max_tokens = difficulty, turns, max_tokens
        self.system, self.chat, self.output_chars = system, chat, output_chars
        self._call: dict[str, Callable[[str], Awaitable[str]]] = {}
        if "calculator" in self.tools:
            self._call["calculator"] = _calculator
        if "python" in self.tools:
            limits = Limits(cpu_s=cpu_s, wall_s=wall_s, memory_mib=memory_mib, output_chars=output_chars)
            self._interpreter = Interpreter(limits, isolation)
            self._call["python"] = self._python
            _tell(self._interpreter)

    def task(self, index: int) -> Task:
        question, answer = word_problem(self.rng(index), self.difficulty)
        return Task(prompt=question, answer=str(answer))

    async def play(self, task: Task, policy: Policy) -> Outcome:
        chat = policy.has_chat if self.chat is None else self.chat
        conversation = _Messages(self, policy) if chat else _PlainText(self, policy)
        calls = failures = 0
        reply = await conversation.begin(task.prompt)
        for turn in range(1, self.turns + 1):
            _, called = parse_tool_calls(reply.text)
            if not called and "<tool_call>" not in reply.text:
                right = float(reply.finish == "stop" and _answer(reply.text) == int(task.answer))
                return _outcome(right, turn, calls, failures)
            if turn == self.turns:
                break
            results = await self._results(reply.text, called)
            calls += len(results)
            failures += sum(result.startswith("Error") for result in results)
            try:
                reply = await conversation.go_on(reply, results)
            except TooLong:
                break
        return _outcome(0.0, turn, calls, failures)

    def demonstration(self, task: Task, rng: random.Random) -> Demonstrator:
        """Calls a tool to say the answer, then says it."""
        said = [f"Answer: {task.answer}", _written(self.tools[-1], task.answer)]
        return lambda _: said.pop()

    def schemas(self) -> list[dict[str, Any]]:
        """The tools as chat templates want them."""
        return [_schema(tool) for tool in self.tools]

    def described(self) -> str:
        """The system's words and how tools are called, for models whose template does not tell."""
        lines = [f"{_ABOUT[tool][0]} Call it like this:\n{_written(tool, '1 + 1')}" for tool in self.tools]
        return "\n".join([self.system, *lines])

    async def _results(self, text: str, calls: Sequence[ToolCall]) -> list[str]:
        """What the tools return, in order of the calls, and what is wrong with a call that is none."""
        rest, _ = parse_tool_calls(text)
        results = [await self._result(call) for call in calls[:MOST_CALLS]]
        results += [f"Error: at most {MOST_CALLS} tool calls in one reply"] * (len(calls) > MOST_CALLS)
        return results + [MALFORMED] * ("<tool_call>" in rest)

    async def _result(self, call: ToolCall) -> str:
        if call.name not in self._call:
            return f"Error: there is no tool {call.name[:40]!r}, there are: {', '.join(self.tools)}"
        argument = _ARGUMENT[call.name]
        if set(call.arguments) != {argument} or not isinstance(call.arguments[argument], str):
            return f"Error: {call.name} takes one argument, the text {argument!r}"
        return await self._call[call.name](call.arguments[argument])

    async def _python(self, code: str) -> str:
        ran = await self._interpreter.run(code)
        if ran.problem:
            return f"Error: the program was ended because {ran.problem}\n{ran.output}".rstrip()
        if ran.failed:
            return f"Error: exit code {ran.code}\n{ran.output}".rstrip()
        return ran.output.rstrip() or "(the program printed nothing)"


class _Messages:
    """A conversation by the model's chat template, which knows tools or is told of them in words."""

    def __init__(self, environment: Tools, policy: Policy) -> None:
        self._environment, self._policy = environment, policy
        self._shows_tools = policy.shows_tools
        system = environment.system if self._shows_tools else environment.described()
        self._messages: list[dict[str, Any]] = [{"role": "system", "content": system}]

    async def begin(self, question: str) -> Reply:
        return await self._say([{"role": "user", "content": question}])

    async def go_on(self, reply: Reply, results: Sequence[str]) -> Reply:
        if self._shows_tools:
            return await self._say([reply.message, *({"role": "tool", "content": result} for result in results)])
        return await self._say([reply.message, {"role": "user", "content": "\n".join(map(_response, results))}])

    async def _say(self, messages: Sequence[dict[str, Any]]) -> Reply:
        self._messages += messages
        schemas = self._environment.schemas() if self._shows_tools else None
        most = self._environment.max_tokens
        return await self._policy.chat(self._messages, tools=schemas, max_tokens=most)


class _PlainText:
    """A conversation with a model that has no chat template: the same tags, described in words."""

    def __init__(self, environment: Tools, policy: Policy) -> None:
        self._environment, self._policy = environment, policy

    async def begin(self, question: str) -> Reply:
        return await self._say(f"{self._environment.described()}\n\n{question}\n")

    async def go_on(self, reply: Reply, results: Sequence[str]) -> Reply:
        return await self._say("".join(f"\n{_response(result)}\n" for result in results))

    async def _say(self, text: str) -> Reply:
        return await self._policy.say(text, max_tokens=self._environment.max_tokens)


async def _calculator(expression: str) -> str:
    try:
        return calculate(expression)
    except NoNumber as error:
        return f"Error: {error}"


def _schema(tool: Tool) -> dict[str, Any]:
    description, about = _ABOUT[tool]
    properties = {_ARGUMENT[tool]: {"type": "string", "description": about}}
    parameters = {"type": "object", "properties": properties, "required": [_ARGUMENT[tool]]}
    return {"type": "function", "function": {"name": tool, "description": description, "parameters": parameters}}


def _response(result: str) -> str:
    return f"<tool_response>\n{result}\n</tool_response>"


def _written(tool: Tool, expression: str) -> str:
    call = {
        "name": tool,
        "arguments": {_ARGUMENT[tool]: expression if tool == "calculator" else f"print({expression})"},
    }
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def _answer(text: str) -> int | None:
    """The number after the last ``Answer:``; None where there is none."""
    found = _ANSWER.findall(text)
    digits = found[-1].replace(",", "") if found else ""
    return int(digits) if digits.lstrip("-") and len(digits) < 100 else None


def _outcome(reward: float, turns: int, calls: int, failures: int) -> Outcome:
    metrics = {"right": reward, "turns": float(turns), "calls": float(calls), "failed_calls": float(failures)}
    return Outcome(reward=reward, metrics=metrics)


def _tell(interpreter: Interpreter) -> None:
    """Say which walls stand: always where they are weaker than they could be."""
    if interpreter.isolation == "limits":
        log.warning("the Python tool runs with limits only: programs can read and write what this user can")
    elif interpreter.why_not_more:
        log.warning(
            "the Python tool runs behind a filter of system calls, without namespaces: %s", interpreter.why_not_more
        )
    else:
        log.info("the Python tool runs with isolation %s", interpreter.isolation)
