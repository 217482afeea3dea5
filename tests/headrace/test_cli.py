"""What holds for every command."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import cli
from headrace.cli import COMMANDS, main
from headrace.folder import RunFolder
from tests.headrace.conftest import Headrace

HEADRACE = (sys.executable, "-m", "headrace")
ACTIONS = [
    ("topology", "apply"), ("topology", "show"), ("schemas", "export"), ("schemas", "check"), ("model", "tiny"),
    ("model", "fetch"), ("model", "import"), ("model", "export"), ("env", "try"), ("replay", "train"),
    ("replay", "events"), ("keys", "new"),
]  # fmt: skip
ROLES = ("dispatch", "generate", "train", "sink")
"""Roles log; they print nothing that a program would read."""
OF_A_RUN = [
    ("status",), ("tail",), ("pause",), ("resume",), ("stop",), ("show", "1"), ("topology show",),
    ("model export", "x"), ("replay train",), ("replay events", "--into", "x"),
]  # fmt: skip


def help_of(*words: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("words", [*((name,) for name in COMMANDS), *ACTIONS], ids=" ".join)
def test_every_commands_help_has_an_example_of_it(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    _, example, lines = help_of(*words, capsys=capsys).partition("example:\n")
    assert example
    assert any(line.strip().startswith(f"headrace {' '.join(words)}") for line in lines.splitlines()) or (
        words == ("decode",) and "headrace decode" in lines
    )


@pytest.mark.parametrize(
    "words", [*((n,) for n in COMMANDS if n not in (*ROLES, *(a for a, _ in ACTIONS))), *ACTIONS], ids=" ".join
)
def test_every_command_that_prints_has_json(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert "--json" in help_of(*words, capsys=capsys)


def test_help_lists_every_command_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.split(maxsplit=1) for line in help_of(capsys=capsys).splitlines() if line.startswith("    ")]
    told = {words[0]: words[1:] for words in lines if words[0] in COMMANDS}
    assert list(told) == list(COMMANDS)
    assert all(told.values())


@pytest.mark.parametrize("words", OF_A_RUN, ids=lambda words: words[0])
def test_unknown_run_is_named_with_the_known_ones(words: tuple[str, ...], ended: RunFolder, headrace: Headrace) -> None:
    command, *rest = words
    told = headrace(*command.split(), "dmeo", *rest, "--dir", ended.path.parent)
    assert told.code == 1
    assert told.out == ""
    assert told.err.startswith(f"headrace {command.split()[0]}: there is no run 'dmeo' in ")
    assert "(runs there: demo, other)" in told.err
    assert len(told.err.splitlines()) == 1


@pytest.mark.parametrize("words", OF_A_RUN[:5], ids=lambda words: words[0])
def test_name_that_no_run_can_have_is_refused(words: tuple[str, ...], headrace: Headrace) -> None:
    told = headrace(*words, "../etc/*")
    assert told.code == 1
    assert "run '../etc/*' cannot be used in a subject" in told.err


def test_unreachable_server_is_one_line(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    told = headrace("status", "demo", "--server", "nats://127.0.0.1:1")
    assert told.code == 1
    assert "no NATS server answers at nats://127.0.0.1:1" in told.err
    assert "Traceback" not in told.err


@pytest.mark.parametrize(
    "words",
    [
        ("frobnicate",),
        ("tail", "demo", "--kind", "setp"),
        ("show", "demo", "twelve"),
        ("pause", "demo", "--limit", "0"),
        ("topology", "show"),
        ("schemas",),
    ],
    ids=" ".join,
)
def test_wrong_command_line_ends_with_2_and_says_how_it_goes(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert "usage: headrace" in told
    assert "Traceback" not in told


def test_wrong_kind_is_told_the_right_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tail", "demo", "--kind", "step,setp"])
    assert "'setp' is no kind of event: use task, rollout, evaluated, term, closed, step" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("tail", "demo", "--since-start"), ("runs", "--json")], ids=" ".join)
def test_reader_that_goes_away_ends_a_command_quietly(words: tuple[str, ...], ended: RunFolder) -> None:
    command = [*HEADRACE, *words, "--dir", str(ended.path.parent)]
    # Buffered, as standard output is by default: what is written at the very end meets the broken pipe.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate()
    assert err == b""
    assert process.returncode == 0


def test_decode_loads_neither_the_bus_nor_any_engine() -> None:
    code = (
        "import sys; from headrace.cli import _parser; _parser(['decode']);"
        "print([name for name in ('nats', 'bus', 'rich', 'torch', 'vllm', 'transformers') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_no_commands_arguments_load_an_engine() -> None:
    code = (
        "import sys; from headrace.cli import _parser; _parser(['--help']);"
        "print([name for name in ('torch', 'vllm', 'transformers', 'torchtitan') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def run(self, _: object) -> int:
            raise KeyboardInterrupt

    parser, _ = cli._parser(["runs"])
    monkeypatch.setattr(cli, "_parser", lambda argv: (parser, {"runs": Interrupted()}))
    assert main(["runs", "--dir", str(Path())]) == 130


def test_full_disk_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Full:
        def run(self, _: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device", "runs/demo/config.json")

    parser, _ = cli._parser(["runs"])
    monkeypatch.setattr(cli, "_parser", lambda argv: (parser, {"runs": Full()}))
    assert main(["runs"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("headrace runs: runs/demo/config.json: No space left on device: make room")
