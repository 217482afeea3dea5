"""A run on a real server in which a DigestLearner trains, and trainers can be started, killed and started again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bus import Bus, BusThread, EmbeddedServer, FileWeights, Ledger, Logged
from consumers.trainer import Interrupt, Learner, Provenance, Publication, Rules, Trainer, TrainerSettings
from schemas import LEDGER, ROLLOUTS, TASKS, Event, Span, StreamSpec
from tests.consumers.trainer.digest_learner import START, DigestLearner
from tests.examples import SHA256, rollout, task

SETTINGS = TrainerSettings(groups_per_step=2, group_size=2, row_tokens=64, micro_batch_tokens=64, checkpoint_every=2)
RULES = Rules(max_off_policy_steps=2, stale="drop", advantage="mean", row_tokens=64)


class TrainedRun:
    """A trainer's surroundings in one test."""

    def __init__(self, server: EmbeddedServer, name: str, folder: Path) -> None:
        self.server, self.name, self.folder = server, name, folder
        self.threads: list[BusThread] = []
        self.purges = False
        self.checkpoint_every, self.keep = SETTINGS.checkpoint_every, SETTINGS.keep_checkpoints
        self.start = START
        self.limit_bytes = 2**30
        self.whole_every = 1
        self.settings = SETTINGS
        self.learner: Callable[[], Learner] = lambda: DigestLearner(self.checkpoints, keep=self.keep, start=self.start)

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def weights(self) -> Path:
        return self.folder / "weights"

    def files(self) -> list[str]:
        """Names in the folder of checkpoints."""
        return sorted(path.name for path in self.checkpoints.iterdir())

    def finish(self, *, steps: int) -> Trainer:
        """Run a trainer as its process does: on this thread, to its end."""
        trainer = self.trainer(steps=steps)
        try:
            trainer.run(lambda version: None)
        finally:
            self.threads[-1].stop()
        return trainer

    def trainer(self, *, steps: int, instance: str = "trainer") -> Trainer:
        thread = BusThread(self.server.address("trainer"), run=self.name, role="trainer", id=instance)
        thread.start()
        self.threads.append(thread)

        async def ledger(bus: Bus) -> Ledger:
            return Ledger(bus, f"{instance}-{len(self.threads)}")

        publication = Publication(
            thread,
            thread.call(ledger, 30.0),
            FileWeights(self.weights, 0),
            run=self.name,
            dtype="float32",
            whole_every=self.whole_every,
        )
        return Trainer(
            thread,
            self.learner(),
            publication,
            lambda start: thread.inbox(ROLLOUTS, "trainer", ack="all", ack_wait_s=60.0, start=start),
            msgspec.structs.replace(self.settings, instance=instance, checkpoint_every=self.checkpoint_every),
            RULES,
            Provenance(config_digest=SHA256, seed=0, libraries={}, cpu={}, device="cpu"),
            run=self.name,
            steps=steps,
            purges=self.purges,
            log_limit_bytes=self.limit_bytes,
            vocabulary=64,
            interrupt=Interrupt(),
        )


async def publish_tasks(bus: Bus, groups: int) -> None:
    """Issue groups until there are ``groups``."""
    for group in range((await bus.state(TASKS)).last_sequence, groups):
        await bus.publish(task(run=bus.run, group=group, index=group, size=SETTINGS.group_size))


async def publish_groups(bus: Bus, groups: Sequence[int], *, version: int = 0, **fields: Any) -> None:
    for group in groups:
        for member in (0, 1):
            await bus.publish(
                rollout(
                    run=bus.run, group=group, member=member, reward=float(member), spans=[Span(version, 0, 6)], **fields
                )
            )


async def publish_steps(bus: Bus, steps: int) -> None:
    """Rollouts for so many steps of two groups, each sampled by the weights that its step updates."""
    for group in range(2 * steps):
        await publish_groups(bus, [group], version=group // 2)


async def events(bus: Bus, *kinds: type[Event]) -> list[Any]:
    return [logged.event async for logged in bus.read(LEDGER, kinds=kinds)]


async def messages(bus: Bus, spec: StreamSpec) -> list[Logged]:
    return [logged async for logged in bus.read(spec)]


async def delete_message(admin: Bus, spec: StreamSpec, sequence: int) -> None:
    """Take one message out of a stream, as ``nats stream rmm`` does, without overwriting it."""
    await admin.wire.api(f"STREAM.MSG.DELETE.{spec.name(admin.run)}", {"seq": sequence, "no_erase": True})


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
