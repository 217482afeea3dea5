"""A recorded run, trained again and published again. The run is short and real but for its engine."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from safetensors.numpy import load_file, save_file

from bus import Bus, EmbeddedServer, connect
from headrace import config as configuration
from headrace.folder import RunFolder
from headrace.inquiry import Place, ask
from headrace.replay.what_if import CHANGEABLE
from headrace.server import PASSWORD, USER, environment_for
from schemas import LEDGER, ROLLOUTS, STREAMS, Event, Rollout, Step
from tests import examples
from tests.end_to_end.conftest import ROOT
from tests.headrace.conftest import STEPS, Headrace
from tests.headrace.recorded import record

pytestmark = pytest.mark.timeout(400)
Alter = Callable[[Event], Event | None]


@pytest.fixture
def copied(whole: RunFolder, tmp_path: Path) -> RunFolder:
    """The run, for a test that changes it."""
    return RunFolder(Path(shutil.copytree(whole.path, tmp_path / whole.name)))


@pytest.fixture
def altered(whole: RunFolder, tmp_path: Path) -> Callable[[Alter], RunFolder]:
    """The run with another log: each event as a function gives it back; None leaves it out."""

    async def question(bus: Bus, goes_on: bool) -> list[Event]:
        found = [each.event for spec in (ROLLOUTS, LEDGER) async for each in bus.read(spec)]
        return [event for event in found if event is not None]

    def make(alter: Alter) -> RunFolder:
        log = [event for each in ask(Place(whole.name, whole), question) if (event := alter(each)) is not None]
        folder = RunFolder(
            Path(shutil.copytree(whole.path, tmp_path / whole.name, ignore=shutil.ignore_patterns("nats", "weights")))
        )
        server = EmbeddedServer.start(folder.nats)
        try:
            asyncio.run(record(server, whole.name, log))
        finally:
            server.stop()
        return folder

    return make


def replay(headrace: Headrace, run: RunFolder, *words: str) -> tuple[int, dict[str, Any], list[dict[str, Any]]]:
    """Exit code, the object at the end, and those of the steps."""
    told = headrace("replay", "train", run.name, "--dir", run.path.parent, "--json", *words)
    *steps, last = [json.loads(line) for line in told.out.splitlines()] or [{}]
    return told.code, last, steps


def files_of(run: RunFolder) -> dict[str, str]:
    """Digest by name, but for the server's own: a reader wakes the store of a run that has ended."""
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(run.path.rglob("*"))
        if path.is_file() and not (name := str(path.relative_to(run.path))).startswith("nats/") and name != ".turn"
    }


def streams_of(run: RunFolder) -> list[Any]:
    async def question(bus: Bus, goes_on: bool) -> list[Any]:
        return [await bus.state(spec) for spec in STREAMS]

    return ask(Place(run.name, run), question)


def test_a_run_trains_again_to_the_same_bits(whole: RunFolder, headrace: Headrace) -> None:
    code, last, steps = replay(headrace, whole)
    assert code == 0
    assert last == {
        "run": "whole", "steps": STEPS, "first_step": 1, "last_step": STEPS, "checkpoint": 0, "what_if": [],
        "identical": True, "first_difference": None, "environment_differs": [], "bits_promised": True,
        "loss_difference": 0.0, "grad_norm_difference": 0.0,
    }  # fmt: skip
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    assert all(step["weights"] == step["weights_recorded"] for step in steps)


@pytest.mark.parametrize(
    ("words", "checkpoint", "compared"), [("5..6", 4, [5, 6]), ("6", 4, [6]), ("3..4", 0, [3, 4]), ("..2", 0, [1, 2])]
)
def test_steps_in_the_middle_begin_at_the_checkpoint_before_them(
    words: str, checkpoint: int, compared: list[int], whole: RunFolder, headrace: Headrace
) -> None:
    code, last, steps = replay(headrace, whole, "--steps", words)
    assert (code, last["checkpoint"], last["identical"]) == (0, checkpoint, True)
    assert [step["step"] for step in steps] == compared


def test_the_table_marks_no_difference_where_there_is_none(whole: RunFolder, headrace: Headrace) -> None:
    told = headrace("replay", "train", whole.name, "--dir", whole.path.parent, "--steps", "6")
    title, step, _, outcome = told.out.splitlines()
    assert title.split() == ["step", "loss", "now", "grad", "norm", "now", "weights", "now"]
    number, loss, loss_now, norm, norm_now, weights, weights_now = step.split()
    assert (number, loss, norm, weights) == ("6", loss_now, norm_now, weights_now)
    assert outcome == "steps 6 to 6 from checkpoint 4: identical"
    assert told.err == "step 5 (on the way): the same\n"


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(copied: RunFolder, headrace: Headrace) -> None:
    (damaged := next((copied.checkpoints / "step-4").glob("*.distcp"))).write_bytes(b"damaged")
    code, last, _ = replay(headrace, copied, "--steps", "5..6")
    assert (code, last["checkpoint"], last["identical"]) == (0, 0, True)
    assert damaged.read_bytes() == b"damaged"


def test_without_checkpoints_it_begins_with_the_model(copied: RunFolder, headrace: Headrace) -> None:
    shutil.rmtree(copied.checkpoints)
    code, last, _ = replay(headrace, copied, "--steps", "2..3")
    assert (code, last["checkpoint"], last["identical"]) == (0, 0, True)
    assert not copied.checkpoints.exists()


def test_the_run_stays_as_it_was(whole: RunFolder, headrace: Headrace) -> None:
    before = files_of(whole), streams_of(whole)
    assert {"config.json", "checkpoints/step-4/manifest.json"} <= before[0].keys()
    replay(headrace, whole, "--steps", "4..5", "--set", "trainer.lr=1e-3")
    replay(headrace, whole, "--steps", "5..6", "--set", "trainer.lr=1e-3")
    assert (files_of(whole), streams_of(whole)) == before


def test_another_learning_rate_counts_from_the_first_step_asked_for(whole: RunFolder, headrace: Headrace) -> None:
    code, last, steps = replay(headrace, whole, "--steps", "5..6", "--set", "trainer.lr=1e-9")
    assert code == 0
    assert (last["identical"], last["first_difference"], last["what_if"]) == (False, 5, ["trainer.lr=1e-9"])
    assert last["environment_differs"] == []
    fifth, sixth = steps
    assert fifth["loss"] == fifth["loss_recorded"], "the weights before the step are the recorded ones"
    assert fifth["weights"] != fifth["weights_recorded"]
    assert sixth["loss"] != sixth["loss_recorded"]
    assert replay(headrace, whole, "--steps", "4..5", "--set", "trainer.lr=1e-9")[1]["first_difference"] == 4


def test_another_loss_shows_how_far_it_is_from_what_was(whole: RunFolder, headrace: Headrace) -> None:
    told = headrace("replay", "train", whole.name, "--dir", whole.path.parent, "--set", "trainer.loss=reinforce")
    assert told.code == 0
    title, first, *others, _, outcome = told.out.splitlines()
    assert title.split().count("difference") == 2
    assert first.endswith("<- first difference")
    assert len(others) == STEPS - 1
    assert all(line.endswith("  differs") for line in others)
    assert outcome.endswith("with trainer.loss=reinforce from step 1 on: NOT identical, first at step 1")


def test_a_what_if_that_changes_nothing_is_identical(whole: RunFolder, headrace: Headrace) -> None:
    code, last, _ = replay(headrace, whole, "--steps", "6", "--set", "trainer.lr=5e-4")
    assert (code, last["identical"]) == (0, True)


EFFECTS = {
    "loss": ("loss=gspo",),
    "loss_args": ("loss_args.clip_high=1e-6",),
    "aggregation": ("aggregation=sequence_mean",),
    "length_constant": ("length_constant=7", "aggregation=constant"),
    "clip_low": ("clip_low=1e-6",),
    "clip_high": ("clip_high=1e-6",),
    "divergence_bound": ("divergence_bound=1e-6", "loss=dppo"),
    "tis_cap": ("tis_cap=0.5",),
    "kl_coef": ("kl_coef=0.1",),
    "lr": ("lr=1e-4",),
    "lr_decay": ("lr_decay=linear", "warmup_steps=1"),
    "warmup_steps": ("warmup_steps=50",),
    "betas": ("betas=[0.5,0.6]",),
    "weight_decay": ("weight_decay=0.1",),
    "max_grad_norm": ("max_grad_norm=1e-4",),
}
"""For each key another value, and then what else it takes for the key to count."""


@pytest.mark.parametrize("name", CHANGEABLE)
def test_each_key_that_a_what_if_takes_changes_what_is_trained(name: str, whole: RunFolder, headrace: Headrace) -> None:
    key, *besides = [f"trainer.{each}" for each in EFFECTS[name]]
    words = [word for each in besides for word in ("--set", each)]
    code, _, steps = replay(headrace, whole, "--steps", "5..6", "--set", key, *words)
    without = replay(headrace, whole, "--steps", "5..6", *words)[2] if besides else steps
    assert code == 0
    other = "weights" if besides else "weights_recorded"
    assert steps[-1]["weights"] != without[-1][other]


def with_advantage(step: Step, value: float) -> Step:
    group = step.groups[0]
    member = next(number for number, advantage in enumerate(group.advantages) if advantage is not None)
    advantages = [*group.advantages]
    advantages[member] = value
    return msgspec.structs.replace(
        step, groups=[msgspec.structs.replace(group, advantages=advantages), *step.groups[1:]]
    )


def test_an_advantage_that_was_altered_is_found(altered: Callable[[Alter], RunFolder], headrace: Headrace) -> None:
    run = altered(lambda event: with_advantage(event, 9.0) if isinstance(event, Step) and event.number == 3 else event)
    told = headrace("replay", "train", run.name, "--dir", run.path.parent)
    marked = [line.split()[0] for line in told.out.splitlines() if line.endswith("<- first difference")]
    assert (told.code, marked) == (1, ["3"])
    assert "NOT identical, first at step 3" in told.out
    assert "all that decides bits is as recorded: the log, a checkpoint or the model has changed" in told.out


def test_a_rollout_that_was_altered_is_found_before_the_steps_asked_for(
    altered: Callable[[Alter], RunFolder], headrace: Headrace
) -> None:
    def alter(event: Event) -> Event:
        if isinstance(event, Rollout) and event.group in (0, 1):
            return msgspec.structs.replace(event, logprobs=examples.packed_logprobs([-9.0] * event.sampled_tokens))
        return event

    run = altered(alter)
    code, last, _ = replay(headrace, run, "--steps", "4")
    assert (code, last["identical"], last["first_difference"]) == (1, False, 1)


def test_a_rollout_that_is_gone_is_named(altered: Callable[[Alter], RunFolder], headrace: Headrace) -> None:
    steps: list[Step] = []

    def note(event: Event) -> Event:
        if isinstance(event, Step):
            steps.append(event)
        return event

    run = altered(note)
    gone = min(sequence for group in steps[0].groups for sequence in group.sequences)
    server = EmbeddedServer.start(run.nats)

    async def purge() -> None:
        bus = await connect(server.address("trainer"), run=run.name, role="trainer", id="purge")
        await bus.purge(ROLLOUTS, before=gone + 1)
        await bus.close()

    asyncio.run(purge())
    server.stop()
    told = headrace("replay", "train", run.name, "--dir", run.path.parent)
    assert told.code == 1
    assert f"headrace replay: step 1 trains the rollout at sequence {gone} of ROLLOUTS, which is not there" in told.err
    assert "begin at a later checkpoint" in told.err
    assert replay(headrace, run, "--steps", "5..6")[1]["identical"] is True
    told = headrace("replay", "events", run.name, "--into", "dev", "--dir", run.path.parent)
    assert told.code == 1
    assert f"its rollouts begin at sequence {gone + 1}" in told.err
    assert not (run.path.parent / "dev").exists()


def test_what_decides_bits_and_is_not_as_recorded_is_told(
    altered: Callable[[Alter], RunFolder], headrace: Headrace
) -> None:
    def alter(event: Event) -> Event:
        if isinstance(event, Step):
            return msgspec.structs.replace(
                event, libraries=event.libraries | {"torch": "1.0"}, cpu={"machine": "abacus"}
            )
        return event

    run = altered(alter)
    path = run.path / configuration.FILE_NAME
    code, last, _ = replay(headrace, run, "--steps", "1")
    assert (code, last["identical"]) == (0, True)
    assert [line.partition(",")[0] for line in last["environment_differs"]] == [
        "torch: recorded 1.0", "cpu machine: recorded abacus"
    ]  # fmt: skip
    path.write_text(path.read_text().replace('"lr": 0.0005', '"lr": 0.001'))
    told = headrace("replay", "train", run.name, "--dir", run.path.parent, "--steps", "1")
    assert told.code == 0, "no bits were promised"
    assert "not as recorded: configuration: recorded " in told.out
    assert "bits are promised only where all of this is as recorded" in told.out


def test_a_step_records_the_device_that_computed_it(whole: RunFolder) -> None:
    async def question(bus: Bus, goes_on: bool) -> set[str]:
        steps = [each.event async for each in bus.read(LEDGER, kinds=(Step,))]
        return {step.device for step in steps if isinstance(step, Step)}

    assert ask(Place(whole.name, whole), question) == {"cpu"}


def with_other_advantages(device: str) -> Alter:
    """As on a GPU: what comes out is not what was recorded."""

    def alter(event: Event) -> Event:
        if not isinstance(event, Step):
            return event
        return msgspec.structs.replace(with_advantage(event, 9.0) if event.number == 1 else event, device=device)

    return alter


def test_where_a_gpu_computed_the_device_is_the_reason_and_not_the_log(
    altered: Callable[[Alter], RunFolder], headrace: Headrace
) -> None:
    run = altered(with_other_advantages("NVIDIA H200"))
    code, last, steps = replay(headrace, run, "--steps", "1..2")
    assert (code, last["identical"], last["bits_promised"]) == (0, False, False)
    assert last["environment_differs"] == ["device: recorded NVIDIA H200, now cpu"]
    assert last["loss_difference"] == max(abs(step["loss"] - step["loss_recorded"]) for step in steps) > 0
    assert last["grad_norm_difference"] > 0


@pytest.mark.parametrize("recorded", ["NVIDIA H200", ""])
def test_the_same_gpu_is_told_to_promise_no_bits_and_by_how_much_they_differ(
    recorded: str, altered: Callable[[Alter], RunFolder], headrace: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.replay.retraining.device_name", lambda: "NVIDIA H200")
    run = altered(with_other_advantages(recorded))
    told = headrace("replay", "train", run.name, "--dir", run.path.parent, "--steps", "1")
    assert told.code == 0
    assert "NOT identical, first at step 1" in told.out
    assert "bits are not promised on a GPU, then or now: at most, the loss differs by " in told.out
    assert "not as recorded" not in told.out
    assert "has changed" not in told.out


def test_a_log_without_a_device_is_compared_as_before(
    altered: Callable[[Alter], RunFolder], headrace: Headrace
) -> None:
    code, last, _ = replay(headrace, altered(with_other_advantages("")), "--steps", "1")
    assert (code, last["bits_promised"], last["environment_differs"]) == (1, True, [])


def test_another_model_is_refused(copied: RunFolder, tmp_path: Path, headrace: Headrace) -> None:
    other = shutil.copytree(configuration.stored(copied.path).model.path, tmp_path / "other")
    tensors = load_file(other / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, other / "model.safetensors")
    shutil.rmtree(copied.checkpoints)
    told = headrace("replay", "train", copied.name, "--dir", copied.path.parent, "--model", other)
    assert told.code == 1
    assert f"the model in {other} has " in told.err
    assert "give the model that the run started from with --model DIR" in told.err


def test_a_run_that_goes_on_is_trained_again_beside_it(copied: RunFolder, headrace: Headrace) -> None:
    server = EmbeddedServer.start(copied.nats)
    try:
        code, last, _ = replay(headrace, copied, "--steps", "5..")
        assert (code, last["identical"]) == (0, True)
        assert server.running
    finally:
        server.stop()


def test_a_log_on_another_server_is_trained_again_with_the_run_s_folder(
    copied: RunFolder, headrace: Headrace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As after a restored backup: streams there, configuration and checkpoints here."""
    elsewhere = tmp_path / "elsewhere"
    shutil.move(copied.nats, elsewhere)
    server = EmbeddedServer.start(elsewhere)
    address = server.address("reader")
    monkeypatch.setenv(USER, str(address.user))
    monkeypatch.setenv(PASSWORD, str(address.password))
    try:
        assert replay(headrace, copied, "--steps", "5..6", "--server", server.url)[1]["identical"] is True
        (copied.path / configuration.FILE_NAME).unlink()
        told = headrace("replay", "train", copied.name, "--dir", tmp_path, "--server", server.url)
        assert told.code == 1
        assert "has the config.json of run 'whole', and this needs the configuration" in told.err
    finally:
        server.stop()


@pytest.fixture
def publishing(whole: RunFolder, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], RunFolder]]:
    """``headrace replay events`` at full speed into a new run ``dev``, from a copy."""
    shutil.copytree(whole.path, tmp_path / whole.name)
    words = ["replay", "events", whole.name, "--into", "dev", "--speed", "max", "--dir", str(tmp_path), "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", *words], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    yield process, RunFolder(tmp_path / "dev")
    if process.poll() is None:
        process.kill()
    process.communicate()


def until_ready(process: subprocess.Popen[str]) -> None:
    """Read what it says up to the command for a trainer."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("  headrace train "):
            return
    raise AssertionError("it ended")


def test_a_trainer_without_a_generator_makes_the_same_weights(
    publishing: tuple[subprocess.Popen[str], RunFolder], whole: RunFolder
) -> None:
    process, dev = publishing
    until_ready(process)
    addresses = EmbeddedServer.find(dev.nats)
    assert addresses is not None
    command = [sys.executable, "-m", "headrace", "train", str(dev.path / "config.json"), "--dir", str(dev.path.parent)]
    environment = os.environ | environment_for(addresses["trainer"])
    trainer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert trainer.returncode == 0, trainer.stderr
    out, err = process.communicate()
    assert process.returncode == 0, err
    result = json.loads(out.splitlines()[-1])
    assert (result["steps"], result["unreadable"], result["duplicates"]) == (STEPS, 0, 0)
    assert EmbeddedServer.find(dev.nats) is None

    async def question(bus: Bus, goes_on: bool) -> tuple[list[Any], int]:
        steps = [each.event async for each in bus.read(LEDGER, kinds=(Step,))]
        return [(step.groups, step.packing, step.weights_after) for step in steps if isinstance(step, Step)], (
            await bus.state(ROLLOUTS)
        ).messages

    old, new = ask(Place("whole", whole), question), ask(Place("dev", dev), question)
    assert new == old, "the same batches, and the same weights"
    assert result["rollouts"] == new[1]


def test_an_interrupt_ends_it_and_its_server(publishing: tuple[subprocess.Popen[str], RunFolder]) -> None:
    process, dev = publishing
    until_ready(process)
    process.send_signal(2)
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert EmbeddedServer.find(dev.nats) is None
