"""verifiers' own tasks, tools and scores, with tokens that are ours: by a script, and by an engine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from environments import FastTokenizer, Outcome, Policy, ScriptedPolicy, TooLong, load_environment, load_tokenizer
from environments.verifiers_adapter import Verifiers
from producers.generator.gate import Gate
from producers.generator.settings import GeneratorSettings
from schemas import EnvironmentFault, EnvironmentSettings, PolicySettings
from tests import examples
from tests.environments.byte_level import END, save_model, save_tokenizer
from tests.extras import needs
from tests.stand_in.engine import StandInEngine

TASKSETS = Path(__file__).parent / "verifiers_tasksets"
pytestmark = [
    needs("verifiers"),
    pytest.mark.timeout(300),
    # verifiers calls tenacity in a way that newer ones deprecate.
    pytest.mark.filterwarnings("ignore:The 'initial' parameter is deprecated:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tasksets beside this file, here and in the processes that serve their tools."""
    monkeypatch.syspath_prepend(TASKSETS)
    monkeypatch.setenv("PYTHONPATH", str(TASKSETS))


@pytest.fixture
def tokenizer(tmp_path: Path) -> FastTokenizer:
    save_tokenizer(tmp_path)
    return load_tokenizer(tmp_path)


def load(id: str, seed: int = 0, **args: Any) -> Verifiers:
    environment = load_environment(EnvironmentSettings(name="verifiers", args={"id": id, **args}), seed=seed)
    assert isinstance(environment, Verifiers)
    return environment


def text_of(policy: Policy, tokenizer: FastTokenizer) -> str:
    return tokenizer.decode(policy.transcript().tokens.tolist())


async def test_a_taskset_of_one_turn_plays_and_scores(tokenizer: FastTokenizer) -> None:
    environment = load("vf-echo")
    task = environment.task(0)
    policy = ScriptedPolicy(tokenizer, lambda prompt: prompt.removeprefix("say "))
    outcome = await environment.play(task, policy)
    word = task.prompt.removeprefix("say ")
    assert (outcome.reward, outcome.metrics) == (2.0, {"same": 2.0, "length": float(len(word))})
    assert text_of(policy, tokenizer) == f"<|im_start|>user\nsay {word}<|im_end|>\n<|im_start|>assistant\n{word}{END}"
    wrong = await environment.play(task, ScriptedPolicy(tokenizer, ["<think>\nhm\n</think>\n\nno"]))
    assert (wrong.reward, wrong.metrics) == (0.0, {"same": 0.0, "length": 2.0})


async def test_a_taskset_of_several_turns_calls_tools_in_the_policys_own_words(tokenizer: FastTokenizer) -> None:
    environment = load("vf-calculator")
    task = environment.task(0)
    a = int(task.prompt.split()[-1].split("+")[0])
    # Twice a space and no "\\n": the template would write this call in another way.
    call = f'Hm. <tool_call>{{"name":  "add", "arguments": {{"a": {a}, "b": {a}}}}}</tool_call>'
    policy = ScriptedPolicy(tokenizer, [call, f"it is {2 * a}"])
    outcome = await environment.play(task, policy)
    assert (outcome.reward, outcome.metrics) == (1.0, {"right": 1.0, "calls": 1.0})
    transcript = policy.transcript()
    assert (len(transcript.turns), transcript.starts) == (2, [])
    assert text_of(policy, tokenizer) == (
        f"<|im_start|>system\nuse tools{END}\n<|im_start|>user\n{task.prompt}{END}\n"
        f"<|im_start|>assistant\n{call}{END}\n"
        f"<|im_start|>tool\n{2 * a}{END}\n<|im_start|>assistant\nit is {2 * a}{END}"
    )


async def test_tools_of_the_whole_taskset_are_shared_by_plays_at_once(tokenizer: FastTokenizer) -> None:
    environment = load("vf-calculator", args={"task": {"shared": True}})
    call = '<tool_call>{"name": "add", "arguments": {"a": 40, "b": 2}}</tool_call>'

    async def play(calls: int) -> Outcome:
        policy = ScriptedPolicy(tokenizer, [*[call] * calls, "42"])
        outcome = await environment.play(environment.task(0), policy)
        assert text_of(policy, tokenizer).count(f"<|im_start|>tool\n42{END}") == calls
        return outcome

    # Each rollout has the state of its own calls, although one process has answered them all.
    outcomes = await asyncio.gather(*(play(calls) for calls in range(4)))
    assert [outcome.metrics["calls"] for outcome in outcomes] == [0.0, 1.0, 2.0, 3.0]


async def test_a_tool_that_does_not_exist_is_told_and_turns_are_limited(tokenizer: FastTokenizer) -> None:
    environment = load("vf-calculator", max_turns=2)
    policy = ScriptedPolicy(tokenizer, lambda _: '<tool_call>{"name": "subtract", "arguments": {}}</tool_call>')
    outcome = await environment.play(environment.task(0), policy)
    assert outcome.metrics["calls"] == 0.0
    assert len(policy.transcript().turns) == 2
    assert "error: unknown tool 'subtract'" in text_of(policy, tokenizer)


async def test_replies_that_a_prompt_shows_are_not_taken_for_the_policys(tokenizer: FastTokenizer) -> None:
    from verifiers.v1.dialects.chat import ChatDialect

    from environments.verifiers_rollout import PolicyClient, vf

    own = '<tool_call>{"name":"f","arguments":{}}</tool_call>'
    policy = ScriptedPolicy(tokenizer, [own, "done"])
    client = PolicyClient(policy, None)
    call = {"id": "x", "type": "function", "function": {"name": "g", "arguments": '{"a": 1}'}}
    shown = {"role": "assistant", "content": "", "tool_calls": [call]}
    messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "a"}]}, shown]
    said = await client.get_response(ChatDialect(), {"messages": messages}, vf.SamplingConfig())
    assert said.raw["choices"][0]["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    messages += [said.raw["choices"][0]["message"], {"role": "tool", "content": "b"}]
    await client.get_response(ChatDialect(), {"messages": messages}, vf.SamplingConfig())
    assert policy.transcript().starts == []
    whole = text_of(policy, tokenizer)
    assert '<tool_call>\n{"name": "g", "arguments": {"a": 1}}\n</tool_call>' in whole
    assert f"<|im_start|>assistant\n{own}{END}\n<|im_start|>tool\nb{END}" in whole


async def test_what_the_policy_raises_passes(tokenizer: FastTokenizer) -> None:
    environment = load("vf-echo")
    with pytest.raises(TooLong):
        await environment.play(environment.task(0), ScriptedPolicy(tokenizer, ["a"], max_tokens_total=10))
    with pytest.raises(EnvironmentFault, match="replies are used up"):
        await environment.play(environment.task(0), ScriptedPolicy(tokenizer, []))


def test_each_epoch_has_every_row_once_in_an_order_of_its_own() -> None:
    environment = load("vf-echo", args={"words": [f"w{i}" for i in range(20)]})
    epochs = [[environment.task(20 * epoch + i).prompt for i in range(20)] for epoch in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(f"say w{i}" for i in range(20))
    assert epochs[0] != epochs[1]
    other = load("vf-echo", seed=1, args={"words": [f"w{i}" for i in range(20)]})
    assert [other.task(i).prompt for i in range(20)] != epochs[0]
    assert len({load("vf-echo", tasks=2).task(i).prompt for i in range(9)}) == 2


async def test_a_row_that_is_another_one_here_is_refused(tokenizer: FastTokenizer) -> None:
    task = load("vf-echo", args={"words": ["one"]}).task(0)
    with pytest.raises(EnvironmentFault, match="row 0 of the taskset is not the one"):
        await load("vf-echo", args={"words": ["two"]}).play(task, ScriptedPolicy(tokenizer, ["one"]))


REFUSED = """
import verifiers.v1 as vf
__all__ = ["Set", "Extra"]
class Task(vf.Task[vf.TaskData]):
    NEEDS_CONTAINER = {container}
class Set(vf.Taskset[Task, vf.TasksetConfig]):
    INFINITE = {infinite}
    def load(self):
        yield Task(vf.TaskData({data}))
{extra}
"""
ENV = "class Extra(vf.Env[vf.EnvConfig]):\n    async def run(self, task, agents): ..."
HARNESS = "class Extra(vf.Harness[vf.HarnessConfig]):\n    async def launch(self, *args): ..."
IMAGE = 'prompt=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]'


@pytest.mark.parametrize(
    ("name", "changed", "problem"),
    [
        ("own_env", {"extra": ENV}, "brings Extra, which runs its agents itself"),
        ("own_harness", {"extra": HARNESS}, "brings a harness"),
        ("container", {"container": True}, "need a container"),
        ("endless", {"infinite": True}, "has no end: set tasks"),
        ("image", {"data": IMAGE}, "row 0 .* content other than text"),
        ("mute", {"data": ""}, "row 0 .* has no prompt"),
        ("boxed", {"data": 'prompt="a", image="python:3"'}, "row 0 .* needs a container"),
    ],
)
def test_what_cannot_be_played_is_refused_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, changed: dict[str, Any], problem: str
) -> None:
    parts = {"container": False, "infinite": False, "data": 'prompt="a"', "extra": "Extra = None"} | changed
    (tmp_path / f"vf_{name}.py").write_text(REFUSED.format(**parts), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EnvironmentFault, match=problem):
        load(f"vf-{name}").task(0)


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({"id": "vf-nowhere"}, "cannot be imported: .*vf_nowhere"),
        ({"id": "vf-echo", "args": {"wrods": ["a"]}}, "wrods"),
        ({"id": "vf-echo", "args": {"words": []}}, "has no task"),
    ],
)
def test_arguments_that_do_not_fit_are_named(args: dict[str, Any], problem: str) -> None:
    with pytest.raises(EnvironmentFault, match=problem):
        load_environment(EnvironmentSettings(name="verifiers", args=args), seed=0)


def test_verifiers_is_loaded_only_where_it_is_wanted() -> None:
    program = (
        "import sys; sys.modules['verifiers'] = None; import environments, environments.verifiers_adapter as a\n"
        "try: a.Verifiers(seed=0, id='x')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert told.startswith("EnvironmentFault verifiers cannot be imported")
    assert "pip install 'verifiers==" in told


@pytest.fixture
async def gate(tmp_path: Path) -> AsyncIterator[Gate]:
    """On a stand-in with a model that knows every byte."""
    save_model(tmp_path)
    engine = StandInEngine(tmp_path, GeneratorSettings(threads=1, max_model_len=256), PolicySettings(), "float32", 0)
    gate = Gate(engine, temperature=1.0, max_off_policy_steps=4, abort_late=False, prefix_on_swap="keep")
    await gate.start()
    try:
        await gate.swap(examples.weights(version=0), tmp_path)
        yield gate
    finally:
        await engine.stop()


async def test_an_engines_tokens_are_recorded_as_it_sampled_them(gate: Gate, tokenizer: FastTokenizer) -> None:
    environment = load("vf-echo", max_tokens=24)
    sampler = gate.sampler("12-3")
    policy = Policy(sampler, tokenizer, 256)
    task = environment.task(0)
    outcome = await environment.play(task, policy)
    transcript = policy.transcript()
    (turn,) = transcript.turns
    assert tokenizer.decode(transcript.tokens[: turn.context].tolist()) == (
        f"<|im_start|>user\n{task.prompt}{END}\n<|im_start|>assistant\n"
    )
    assert turn.sampled == len(transcript.logprobs) <= 24
    assert [span.version for span in transcript.spans] == [0]
    assert outcome.reward == 0.0
