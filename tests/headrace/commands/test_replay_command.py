from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bus import ApiError, EmbeddedServer, connect
from headrace.config import stored
from headrace.folder import RunFolder
from headrace.replay.what_if import CHANGEABLE
from headrace.server import environment_for
from schemas import LEDGER, ROLLOUTS, Rollout
from tests import examples
from tests.headrace.conftest import GoingOn, Headrace
from tests.waiting import eventually


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps", "2..9"], "run 'demo' has committed steps 1 to 3: --steps 2..9 is not in them"),
        (["--steps", "3..2"], "run 'demo' has committed steps 1 to 3: --steps 3..2 is not in them"),
        (["--steps", "0..2"], "run 'demo' has committed steps 1 to 3: --steps 0..2 is not in them"),
        (["--set", "trainer.lrr=1"], "--set: trainer.lrr is an unknown key: did you mean trainer.lr?"),
        (["--set", "trainr.lr=1"], "--set: trainr is an unknown key: did you mean trainer?"),
        (["--set", "trainer.lr"], "--set 'trainer.lr' is not KEY=VALUE: write for example --set trainer.lr=1e-5"),
    ],
)
def test_what_cannot_be_trained_again_is_refused_in_one_line(
    words: list[str], message: str, ended: RunFolder, headrace: Headrace
) -> None:
    told = headrace("replay", "train", "demo", *words, "--dir", ended.path.parent)
    assert (told.code, told.out) == (1, "")
    assert told.err == f"headrace replay: {message}\n"


MAY_CHANGE = ", ".join(f"trainer.{name}" for name in CHANGEABLE)


@pytest.mark.parametrize("key", ["run.steps=3", "policy.temperature=2.0", "environments=[]", "trainer={}"])
def test_a_what_if_changes_the_loss_and_the_optimizer_alone(key: str, ended: RunFolder, headrace: Headrace) -> None:
    told = headrace("replay", "train", "demo", "--set", key, "--dir", ended.path.parent)
    assert told.code == 1
    assert told.err == (
        f"headrace replay: --set {key}: a what-if trains the recorded batches again: it may change only {MAY_CHANGE}\n"
    )


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("groups_per_step", "the log holds the groups of each step"),
        ("group_size", "the log holds the members of each group"),
        ("row_tokens", "the log holds the packing of each step"),
        ("truncated", "each step is trained by the rules that it was taken with"),
        ("tensor_parallel", "steps are trained again in one process, however many it were"),
        ("max_logprob_gap", "it does not decide what a step makes of its batch"),
        ("activation_checkpointing", "it does not decide what a step makes of its batch"),
    ],
)
def test_a_key_of_the_trainer_that_would_change_nothing_is_refused(
    name: str, reason: str, ended: RunFolder, headrace: Headrace
) -> None:
    told = headrace("replay", "train", "demo", "--set", f"trainer.{name}=4", "--dir", ended.path.parent)
    assert (told.code, told.out) == (1, "")
    assert told.err == (
        f"headrace replay: --set trainer.{name}=4: a what-if cannot change trainer.{name}, as {reason}: "
        f"it may change only {MAY_CHANGE}\n"
    )


@pytest.mark.parametrize(
    "words",
    [
        *(["train", "demo", "--steps", steps] for steps in ("a..b", "", "-1..2")),
        *(["events", "demo", "--into", "dev", "--speed", speed] for speed in ("0", "inf", "nan", "fast")),
        ["train"],
        ["events", "demo"],
        [],
    ],
)
def test_a_wrong_command_line_is_told(words: list[str], capsys: pytest.CaptureFixture[str], headrace: Headrace) -> None:
    with pytest.raises(SystemExit) as wrong:
        headrace("replay", *words)
    assert wrong.value.code == 2
    assert "usage: headrace replay" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("into", "message"),
    [
        ("demo", "--into demo is the run itself: give the new run another name"),
        ("other", "there is a run 'other' in "),
        ("a.b", "--into 'a.b' cannot be used in a subject"),
    ],
)
def test_a_name_that_the_new_run_cannot_have_is_refused(
    into: str, message: str, ended: RunFolder, headrace: Headrace
) -> None:
    told = headrace("replay", "events", "demo", "--into", into, "--dir", ended.path.parent)
    assert told.code == 1
    assert told.err.startswith(f"headrace replay: {message}")


def test_on_a_named_server_rollouts_are_published_and_that_is_all(going_on: GoingOn, tmp_path: Path) -> None:
    """``demo`` goes on there, on weights 2 of 10; the new run is announced as many."""
    address = going_on.server.address("admin")
    parent = going_on.folder.path.parent
    words = ["replay", "events", "demo", "--into", "dev", "--speed", "max", "--server", address.url, "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", *words, "--dir", str(parent)],
        env=os.environ | environment_for(address), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip

    async def announce() -> list[tuple[int, int]]:
        bus = await connect(address, run="dev", role="admin", id="test")

        async def there() -> bool:
            try:
                return (await bus.state(LEDGER)).messages == 0 and (parent / "dev" / "config.json").exists()
            except ApiError:
                return False

        await eventually(there)
        for version in (0, 1):
            await bus.publish(examples.weights(run="dev", version=version))

        async def done() -> bool:
            return process.poll() is not None

        await eventually(done)
        found = [each.event async for each in bus.read(ROLLOUTS)]
        await bus.close()
        return [(each.group, each.member) for each in found if isinstance(each, Rollout)]

    published = asyncio.run(announce())
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert published == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    result = json.loads(out)
    assert (result["run"], result["into"], result["rollouts"], result["steps"]) == ("demo", "dev", 6, 1)
    assert f"train it with: headrace train {parent / 'dev' / 'config.json'}" in err
    assert EmbeddedServer.find(RunFolder(parent / "dev").nats) is None
    new, old = stored(parent / "dev"), stored(going_on.folder.path)
    assert (new.run.name, new.run.steps, new.trainer) == ("dev", 2, old.trainer)
