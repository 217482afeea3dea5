"""``jsonl``: what is read from the file, how a reply is scored, and what is said of a file that cannot be used."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from environments import CharacterTokenizer, Environment, Outcome, ScriptedPolicy, load_environment
from environments.jsonl import REDRAW
from schemas import EnvironmentFault, EnvironmentSettings, Task
from tests.extras import needs

LINES = "".join(f'{{"prompt": "{i}+1?", "answer": {i + 1}, "kind": "k{i}"}}\n' for i in range(8))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "lines.jsonl"
    path.write_text(LINES)
    return path


def made(path: Path, seed: int = 0, **args: Any) -> Environment:
    return load_environment(EnvironmentSettings(name="jsonl", args={"path": str(path), **args}), seed=seed)


async def played(environment: Environment, reply: str, task: Task | None = None) -> Outcome:
    return await environment.play(task or environment.task(0), ScriptedPolicy(CharacterTokenizer(), [reply]))


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "file.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_each_line_comes_once_before_any_comes_again(path: Path) -> None:
    environment = made(path)
    rounds = [[environment.task(8 * turn + i).data["line"] for i in range(8)] for turn in range(3)]
    assert all(sorted(each) == list(range(1, 9)) for each in rounds)
    assert len({tuple(each) for each in rounds}) == 3
    assert [environment.task(i) for i in range(8)] == [made(path).task(i) for i in range(8)]
    assert [environment.task(i) for i in range(8)] != [made(path, seed=1).task(i) for i in range(8)]


def test_without_shuffle_lines_keep_their_order_and_a_redraw_is_another_line(path: Path) -> None:
    environment = made(path, shuffle=False)
    assert [environment.task(i).data["line"] for i in range(9)] == [1, 2, 3, 4, 5, 6, 7, 8, 1]
    assert [environment.task(2 + again * REDRAW).data["line"] for again in range(4)] == [3, 4, 5, 6]


def test_template_takes_any_key_and_system_comes_before(path: Path) -> None:
    environment = made(path, template="{kind}: {prompt} {{}}", shuffle=False)
    assert environment.task(1).prompt == "k1: 1+1? {}"


@pytest.mark.parametrize("chat", [True, False])
async def test_question_is_asked_with_the_system_message(path: Path, chat: bool) -> None:
    environment = made(path, system="Be brief.", shuffle=False, chat=chat)
    policy = ScriptedPolicy(CharacterTokenizer(), ["1"])
    assert (await environment.play(environment.task(0), policy)).reward == 1.0
    said = CharacterTokenizer().decode(policy.transcript().tokens.tolist())
    assert ("<|im_start|>system\nBe brief." in said) is chat
    assert ("Be brief.\n\n0+1?" in said) is not chat


@pytest.mark.parametrize(
    ("answer", "args", "reply", "right"),
    [
        ("edcba", {}, " edcba\n", 1.0),
        ("edcba", {}, "edcb", 0.0),
        ("edcba", {}, "EDCBA", 0.0),
        ("12", {"extract": "#### (.*)"}, "12", 0.0),
        ("12", {"extract": r"\d+"}, "first 11, then 12 it is", 1.0),
        ("(?i)yes|no", {"score": "regex"}, "I say YES", 1.0),
        ("^yes$", {"score": "regex"}, "yes and no", 0.0),
        ("(a+)+b", {"score": "regex"}, "a" * 60, 0.0),
    ],
)
async def test_reply_is_scored(answer: str, args: dict[str, Any], reply: str, right: float, tmp_path: Path) -> None:
    environment = made(written(tmp_path, json.dumps({"prompt": "?", "answer": answer})), **args)
    outcome = await played(environment, reply)
    assert (outcome.reward, outcome.metrics["right"]) == (right, right)


@needs("math_verify")
@pytest.mark.parametrize(
    ("answer", "args", "reply", "right"),
    [
        ("12", {}, "12", 1.0),
        ("12", {}, "12.0", 1.0),
        ("12", {}, "120", 0.0),
        ("1/2", {}, "It is 0.5.", 1.0),
        ("1/2", {}, r"So \boxed{\frac{2}{4}}", 1.0),
        (r"\frac{3}{4}", {}, "75%", 1.0),
        ("50%", {}, "1/2", 1.0),
        ("x^2 + 1", {}, "1", 0.0),
        ("x^2 + 1", {}, "$1 + x^2$", 1.0),
        ("12", {}, "$9^{9^{9^{9^{9}}}}$", 0.0),
        ("12", {}, "", 0.0),
        ("12", {"extract": "#### (.*)"}, "13 or so #### 12", 1.0),
    ],
)
async def test_reply_is_scored_as_a_number(
    answer: str, args: dict[str, Any], reply: str, right: float, tmp_path: Path
) -> None:
    environment = made(written(tmp_path, json.dumps({"prompt": "?", "answer": answer})), score="numeric", **args)
    outcome = await played(environment, reply)
    assert (outcome.reward, outcome.metrics["right"]) == (right, right)


async def test_reply_that_was_cut_is_wrong(path: Path) -> None:
    outcome = await played(made(path, max_tokens=1, shuffle=False), "1")
    assert (outcome.reward, outcome.metrics["cut"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("source", "reward"),
    [
        ("def rate(reply, line): return len(reply) / line['best']", 0.5),
        ("async def rate(reply, line): return 0.25", 0.25),
        ("def rate(reply, line): return True", 1.0),
    ],
)
async def test_function_of_the_user_scores(
    source: str, reward: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_scores.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_scores", raising=False)
    environment = made(written(tmp_path, '{"prompt": "?", "best": 4}'), score="my_scores:rate")
    assert (await played(environment, "ab")).reward == reward


async def test_function_that_returns_no_number_fails_the_play(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd_scores.py").write_text("def rate(reply, line): return 'good'")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EnvironmentFault, match="the score 'odd_scores:rate' returned str: let it return a number"):
        await played(made(path, score="odd_scores:rate"), "1")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty: write one JSON object a line"),
        ("\n \n", "is empty"),
        ('{"prompt": "a", "answer": "b"}\n\nnot json\n', "line 3 is not JSON"),
        ('{"prompt": "a", "answer": "b"}\n{"prompt": "a", ', "line 2 is not JSON"),
        ('[{"prompt": "a"}]', "line 1 is not a JSON object"),
        ("[\n", "jq -c '.[]'"),
        ("3", "line 1 is not a JSON object"),
        (b'{"prompt": "a", "answer": "b"}\n\xff\n', "line 2 is not UTF-8"),
        ('{"question": "a", "answer": "b"}', "line 1 has no 'prompt', it has question, answer: correct the line, or"),
        ('{"question": "a", "answer": "b"}', "or set environments.args.template to what is there"),
        ('{"prompt": "a", "answer": "b"}\n{"prompt": "a", "target": 1}', "line 2 has no 'answer', it has prompt"),
        ('{"prompt": "a", "answer": null}', "line 1 has no 'answer'"),
        ('{"prompt": "a", "answer": " "}', "line 1 has an empty 'answer'"),
        ('{"prompt": " ", "answer": "b"}', "line 1 makes an empty question"),
        ('{"prompt": "a", "answer": "b"}\n{"answer": "b", "prompt": "a"}\n', "line 2 says the same as line 1"),
    ],
)  # fmt: skip
def test_file_that_cannot_be_used_is_named_with_its_line(text: str | bytes, problem: str, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        made(written(tmp_path, text))
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({"path": "/nothing/here.jsonl"}, "/nothing/here.jsonl does not exist"),
        ({"path": "/"}, "cannot be read"),
        ({"template": "What?"}, "names no key of the lines"),
        ({"template": "{prompt"}, "write braces that are meant as such twice"),
        ({"template": "{prompt.upper}"}, "{prompt.upper} is not a key"),
        ({"extract": "("}, "is not a regular expression"),
        ({"score": "exakt"}, "there is no score 'exakt': set environments.args.score to exact, numeric, regex or"),
        ({"score": "nothing_like_this:f"}, "cannot be imported (ModuleNotFoundError"),
        ({"score": "json:nothing"}, "cannot be imported (AttributeError"),
        ({"max_tokens": 0}, "args.max_tokens = 0"),
    ],
)
def test_argument_that_cannot_be_used_is_named(args: dict[str, Any], problem: str, path: Path) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        load_environment(EnvironmentSettings(name="jsonl", args={"path": str(path), **args}), seed=0)
    assert problem in str(caught.value)


def test_answer_that_is_no_pattern_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="line 2: its answer '\\(' is not a regular expression"):
        made(written(tmp_path, '{"prompt": "a", "answer": "b"}\n{"prompt": "b", "answer": "("}'), score="regex")


def test_missing_package_is_named_with_the_command_that_installs_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EnvironmentFault, match=r"pip install 'headrace\[environments\]'"):
        made(path, score="numeric")


async def test_demonstration_writes_the_answer_so_that_it_is_found(path: Path) -> None:
    for extract in ("", "#### (.*)", r"\\boxed\{(.*)\}"):
        environment = made(path, extract=extract)
        script = environment.demonstration(environment.task(0), environment.rng(0))
        assert script is not None
        assert (await played(environment, script(""))).reward == 1.0
    odd = made(path, extract="Therefore (.*) holds")
    assert odd.demonstration(odd.task(0), odd.rng(0)) is None
