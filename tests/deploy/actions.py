"""What a role can try on a run, by the name that the table in docs/operations.md has for it.

An action is one or several acts, of which the server lets a role do all or none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, get_args

import msgspec

from bus import Bus, Denied, Unanswered
from bus.received import Received
from schemas import (
    CONTROL,
    DEAD,
    EVALUATIONS,
    LEDGER,
    ROLLOUTS,
    STREAMS,
    TASKS,
    TELEMETRY,
    WEIGHTS_BUCKET,
    Event,
    Role,
    StreamSpec,
)
from tests import examples

Act = Callable[[Bus], Awaitable[Any]]
NUID, CHUNK = "nuid", b"chunk"


def publish(*events: Event) -> list[Act]:
    """Lifecycle and metric events tell of the role itself, or of another one where it has nothing to tell."""

    def publishing(event: Event) -> Act:
        async def act(bus: Bus) -> None:
            teller = bus.role if bus.role in get_args(Role) else "sink"
            mine = {"role": teller} if hasattr(event, "role") else {}
            await bus.publish(msgspec.structs.replace(event, run=bus.run, **mine), deadline_s=5.0)

        return act

    return [publishing(event) for event in events]


def ask(*subjects: str, body: Any = None) -> list[Act]:
    """Send to each subject, and wait for an answer of any kind; {run} and {weights} are filled in."""

    def asking(subject: str) -> Act:
        async def act(bus: Bus) -> None:
            payload = b"" if body is None else _filled(msgspec.json.encode(body).decode(), bus).encode()
            with contextlib.suppress(Unanswered):  # Nobody is there to answer; the server let it through.
                await bus.wire.request(_filled(subject, bus), payload, timeout_s=1.0)

        return act

    return [asking(subject) for subject in subjects]


def listen(*subjects: str) -> list[Act]:
    def listening(subject: str) -> Act:
        async def act(bus: Bus) -> None:
            def take(message: Received) -> None:
                pass

            await bus.wire.unsubscribe(await bus.wire.subscribe(_filled(subject, bus), take))

        return act

    return [listening(subject) for subject in subjects]


def read(spec: StreamSpec) -> list[Act]:
    async def last(bus: Bus) -> None:
        assert await bus.last(spec) is not None

    async def all_of_it(bus: Bus) -> None:
        assert [logged async for logged in bus.read(spec)]

    return [last, all_of_it, *listen(f"hr-stored.{{run}}_{spec.kind}.>")]


def pull(spec: StreamSpec, durable: str, ack: Any) -> list[Act]:
    """Make the consumer, take a message and settle it; and each of the requests by itself."""

    async def act(bus: Bus) -> None:
        consumer = await bus.consumer(spec, durable, ack=ack, ack_wait_s=30)
        (delivery,) = await consumer.fetch(1, 5.0)
        await delivery.ack()

    stream = f"{{run}}_{spec.kind}"
    requests = (f"$JS.API.CONSUMER.{verb}.{stream}.{durable}" for verb in ("CREATE", "MSG.NEXT"))
    return [act, *ask(*requests, f"$JS.ACK.{stream}.{durable}.1.1.1.1.0")]


def make_consumer(stream: str, name: str, **config: Any) -> list[Act]:
    settings = {"name": name, "deliver_policy": "all", "ack_policy": "none", **config}
    return ask(f"$JS.API.CONSUMER.CREATE.{stream}.{name}", body={"stream_name": stream, "config": settings})


def read_weights() -> list[Act]:
    """The chunks, through a consumer of its own."""
    chunks = f"$O.{{run}}_weights.C.{NUID}"
    settings = {"name": "r", "deliver_policy": "all", "ack_policy": "none", "filter_subject": chunks}

    async def chunk(bus: Bus) -> None:
        pulls = f"$JS.API.CONSUMER.MSG.NEXT.{WEIGHTS_BUCKET.name(bus.run)}.r"
        got = await bus.wire.collect(pulls, {"batch": 1, "no_wait": True}, most=1, quiet_s=5)
        assert [message.data for message in got.messages] == [CHUNK]

    return [
        *ask(f"$JS.API.CONSUMER.CREATE.{{weights}}.r.{chunks}", body={"stream_name": "{weights}", "config": settings}),
        chunk,
        *ask("$JS.API.CONSUMER.DELETE.{weights}.r"),
    ]


ACTIONS: dict[str, list[Act]] = {
    "publish `task`": publish(examples.task(group=1)),
    "publish `rollout`": publish(examples.rollout(group=1)),
    "publish `evaluated`": publish(examples.evaluated(task=18)),
    "publish `term`": publish(examples.term()),
    "publish `closed`": publish(examples.closed()),
    "publish `step`": publish(examples.step()),
    "publish `weights`": publish(examples.weights()),
    "publish `control`": publish(examples.control()),
    "publish `dead`": publish(examples.dead()),
    "publish its own `lifecycle` and `metric`": publish(examples.lifecycle(), examples.metric()),
    "read TASKS": read(TASKS),
    "read ROLLOUTS": read(ROLLOUTS),
    "read LEDGER": read(LEDGER),
    "read TELEMETRY": read(TELEMETRY),
    "read DEAD": read(DEAD),
    "read CONTROL": read(CONTROL),
    "read EVALUATIONS": read(EVALUATIONS),
    "see the state of streams": ask(
        *(f"$JS.API.STREAM.INFO.{{run}}_{spec.kind}" for spec in STREAMS), "$JS.API.STREAM.INFO.{weights}"
    ),
    "see consumers": ask(
        "$JS.API.CONSUMER.LIST.{run}_TASKS",
        "$JS.API.CONSUMER.NAMES.{run}_ROLLOUTS",
        "$JS.API.CONSUMER.INFO.{run}_LEDGER.any",
    ),
    "listen to live events": listen("hr.{run}.>"),
    "pull from TASKS as `generators`": pull(TASKS, "generators", "explicit"),
    "pull from ROLLOUTS as `trainer`": pull(ROLLOUTS, "trainer", "all"),
    "reset the consumer `trainer`": ask("$JS.API.CONSUMER.RESET.{run}_ROLLOUTS.trainer", body={"seq": 1}),
    "see what the weights bucket holds": [
        *ask("$JS.API.STREAM.MSG.GET.{weights}", body={"last_by_subj": "$O.{run}_weights.M.>"}),
        *ask("$JS.API.DIRECT.GET.{weights}", body={"seq": 1}),
    ],
    "read weights": read_weights(),
    "write weights": ask("$O.{run}_weights.C.other", "$O.{run}_weights.M.bmFtZQ=="),
    "remove weights": ask("$JS.API.STREAM.PURGE.{weights}", body={"filter": "$O.{run}_weights.C.other"}),
    "purge TASKS and ROLLOUTS": ask("$JS.API.STREAM.PURGE.{run}_TASKS", "$JS.API.STREAM.PURGE.{run}_ROLLOUTS"),
    "back streams up": ask("$JS.API.STREAM.SNAPSHOT.{run}_LEDGER", "$JS.SNAPSHOT.ACK.{run}_LEDGER.x.y"),
    "make and change streams": ask(
        *(f"$JS.API.STREAM.{verb}.{{run}}_{spec.kind}" for verb in ("CREATE", "UPDATE") for spec in STREAMS),
        *(f"$JS.API.STREAM.{verb}.{{weights}}" for verb in ("CREATE", "UPDATE")),
        body={},
    ),
    "restore streams": ask("$JS.API.STREAM.RESTORE.{run}_LEDGER", "$JS.SNAPSHOT.RESTORE.{run}_LEDGER.x"),
    "delete streams": ask("$JS.API.STREAM.DELETE.{run}_DEAD", "$JS.API.STREAM.DELETE.{weights}"),
}
"""In this order: what destroys comes last."""


def _forbidden(spec: StreamSpec) -> dict[str, list[Act]]:
    stream = f"{{run}}_{spec.kind}"
    asked = {
        "make a consumer without a name": f"CONSUMER.CREATE.{stream}",
        "make a consumer with a filter": f"CONSUMER.CREATE.{stream}.x.hr.{{run}}.>",
        "make a consumer in the old way": f"CONSUMER.DURABLE.CREATE.{stream}.x",
        "pull as another": f"CONSUMER.MSG.NEXT.{stream}.x",
        "delete a consumer": f"CONSUMER.DELETE.{stream}.generators",
        "delete the trainer's consumer": f"CONSUMER.DELETE.{stream}.trainer",
        "pause a consumer": f"CONSUMER.PAUSE.{stream}.trainer",
        "delete a message": f"STREAM.MSG.DELETE.{stream}",
        "move the leader": f"STREAM.LEADER.STEPDOWN.{stream}",
    }
    acts = {what: ask(f"$JS.API.{request}", body={"seq": 1}) for what, request in asked.items()}
    acts |= {
        "make a durable consumer": make_consumer(stream, "x", durable_name="x"),
        "make an ephemeral consumer": make_consumer(stream, "x", inactive_threshold=10**10),
        # The server asks nobody whether he may publish there.
        "have the server deliver into the ledger": make_consumer(stream, "x", deliver_subject="hr.{run}.step"),
        "acknowledge as another": ask(f"$JS.ACK.{stream}.x.1.1.1.1.0"),
    }
    if spec not in (TASKS, ROLLOUTS):
        acts["purge"] = ask(f"$JS.API.STREAM.PURGE.{stream}")
    return {f"{what}: {spec.kind}": act for what, act in acts.items()}


FORBIDDEN: dict[str, list[Act]] = {
    **{what: acts for spec in STREAMS for what, acts in _forbidden(spec).items()},
    "make a stream of another name": ask("$JS.API.STREAM.CREATE.other", body={}),
    "see a stream of another name": ask("$JS.API.STREAM.INFO.other"),
    "remove the account's data": ask("$JS.API.ACCOUNT.PURGE.$G"),
    "remove a server": ask("$JS.API.SERVER.REMOVE"),
    "listen to requests": listen("$JS.>", "$JS.API.>", "$JS.ACK.>", "$O.>"),
    "listen to the system": listen("$SYS.>"),
    "listen to everything": listen(">", "*.>", "hr.>", "hr-stored.>"),
    "tell of another role": ask("hr.{run}.lifecycle.nobody.x"),
    "publish an event that there is not": ask("hr.{run}.other"),
    "say that something was stored": ask("hr-stored.{run}_LEDGER.hr.{run}.step"),
    "delete a message: weights": ask("$JS.API.STREAM.MSG.DELETE.{weights}", body={"seq": 1}),
    "make a durable consumer: weights": make_consumer("{weights}", "x", durable_name="x"),
}
"""What no role but ``admin`` may."""


def _filled(text: str, bus: Bus) -> str:
    return text.replace("{run}", bus.run).replace("{weights}", WEIGHTS_BUCKET.name(bus.run))


async def may(bus: Bus, acts: list[Act]) -> bool:
    """Whether the server lets all of them pass, and then they did what they should; or none."""
    let_through = [await _passes(bus, act) for act in acts]
    assert len(set(let_through)) == 1, f"{bus.role} may do some of it: {let_through}"
    return let_through[0]


async def _passes(bus: Bus, act: Act) -> bool:
    try:
        await act(bus)
    except Denied:
        return False
    return True
