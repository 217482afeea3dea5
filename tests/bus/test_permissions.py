"""What each role may do, as data and as the server applies it."""

from __future__ import annotations

import re

import msgspec
import pytest

from bus import BUS_ROLES, Bus, BusRole, Denied, permissions
from schemas import ROLLOUTS, STREAMS, TASKS, Event, PublishFailed, stream_for
from tests import examples
from tests.conftest import ConnectAs

OWN: dict[BusRole, set[str]] = {
    "dispatcher": {"GroupTask", "Lifecycle", "Metric", "Dead"},
    "generator": {"Rollout", "Evaluated", "Lifecycle", "Metric", "Dead"},
    "trainer": {"Term", "Closed", "Step", "Weights", "Lifecycle", "Metric", "Dead"},
    "sink": {"Lifecycle", "Metric", "Dead"},
    "supervisor": {"Control", "Lifecycle", "Metric"},
    "topology": set(),
    "operator": {"Control"},
    "reader": set(),
}

OF_NO_RUN = ("$JS.API.INFO", "$JS.API.STREAM.LIST", "$JS.API.STREAM.NAMES")
"""Requests that name no stream."""


def events_of(run: str, role: BusRole) -> list[Event]:
    told_by = role if role in ("dispatcher", "generator", "trainer", "sink", "supervisor") else "sink"
    return [
        examples.lifecycle(run=run, role=told_by)
        if type(event).__name__ == "Lifecycle"
        else examples.metric(run=run, role=told_by)
        if type(event).__name__ == "Metric"
        else msgspec.structs.replace(event, run=run)
        for event in examples.every_event()
    ]


async def may_publish(bus: Bus, event: Event) -> bool:
    try:
        await bus.publish(event, deadline_s=10.0)
    except Denied:
        return False
    return True


@pytest.mark.parametrize("role", OWN)
async def test_role_publishes_its_own_events_and_is_denied_all_others_at_once(
    connect_as: ConnectAs, run: str, role: BusRole
) -> None:
    bus = await connect_as(role)
    allowed = {type(event).__name__ for event in events_of(run, role) if await may_publish(bus, event)}
    assert allowed == OWN[role]


async def test_denial_names_role_subject_user_and_remedy(connect_as: ConnectAs, run: str) -> None:
    bus = await connect_as("generator")
    with pytest.raises(PublishFailed) as caught:
        await bus.publish(examples.step(run=run))
    message = str(caught.value)
    assert f"role generator may not publish to 'hr.{run}.step'" in message
    assert "user generator" in message
    assert "use the credentials of a role that may" in message


@pytest.mark.parametrize("role", ["sink", "supervisor", "operator", "reader", "admin"])
async def test_roles_that_look_read_every_stream(connect_as: ConnectAs, run: str, role: BusRole) -> None:
    admin = await connect_as("admin")
    for event in examples.every_event():
        await admin.publish(msgspec.structs.replace(event, run=run))
    bus = await connect_as(role)
    kinds = [type(logged.event) for spec in STREAMS async for logged in bus.read(spec)]
    assert sorted(kind.__name__ for kind in kinds) == sorted(type(event).__name__ for event in examples.every_event())
    for event in examples.every_event():
        assert await bus.last(stream_for(event), type(event)) is not None


@pytest.mark.parametrize("role", ["dispatcher", "operator", "reader", "topology", "supervisor"])
async def test_role_that_pulls_from_nothing_can_take_no_delivery(connect_as: ConnectAs, role: BusRole) -> None:
    bus = await connect_as(role)
    with pytest.raises(PublishFailed, match="may not publish to"):
        await bus.consumer(TASKS, "generators", ack="explicit", ack_wait_s=10)


async def test_trainer_purges_and_generator_may_not(connect_as: ConnectAs) -> None:
    trainer, generator = await connect_as("trainer"), await connect_as("generator")
    await trainer.purge(ROLLOUTS, before=2)
    with pytest.raises(PublishFailed):
        await generator.purge(ROLLOUTS, before=2)


def test_ledger_is_purged_by_nobody() -> None:
    purges = {subject for role in BUS_ROLES for subject in permissions(role, "mine").publish if "PURGE" in subject}
    assert purges == {
        f"$JS.API.STREAM.PURGE.{stream}" for stream in ("mine_TASKS", "mine_ROLLOUTS", "OBJ_mine_weights")
    }


def test_named_run_confines_a_role_to_its_streams() -> None:
    for role in set(BUS_ROLES) - {"admin"}:
        for subject in permissions(role, "mine").publish + permissions(role, "mine").subscribe:
            of_no_run = subject in OF_NO_RUN or subject.startswith("_INBOX.")
            assert of_no_run or re.search(r"\.(OBJ_)?mine[._]", subject), f"{role}: {subject}"


@pytest.mark.parametrize(
    ("role", "durable"),
    [("generator", "mine_TASKS.generators"), ("trainer", "mine_ROLLOUTS.trainer"), ("reader", ""), ("operator", "")],
)
def test_role_makes_one_consumer_of_the_log_and_others_of_weights_alone(role: BusRole, durable: str) -> None:
    """Whoever makes a consumer chooses where the server delivers to."""
    prefix = "$JS.API.CONSUMER.CREATE."
    made = {each.removeprefix(prefix) for each in permissions(role, "mine").publish if each.startswith(prefix)}
    assert {each for each in made if not each.startswith("OBJ_mine_weights.*.$O.mine_weights.")} == {durable} - {""}


def test_permissions_for_several_runs_are_those_for_each() -> None:
    for role in BUS_ROLES:
        one, two, both = permissions(role, "one"), permissions(role, "two"), permissions(role, "one", "two")
        assert set(both.publish) == set(one.publish) | set(two.publish)
        assert set(both.subscribe) == set(one.subscribe) | set(two.subscribe)
        assert len(both.publish) == len(set(both.publish))


def test_no_role_but_admin_hears_anothers_answers() -> None:
    for role in set(BUS_ROLES) - {"admin"}:
        inboxes = [subject for subject in permissions(role).subscribe if "INBOX" in subject or subject == ">"]
        assert inboxes == [f"_INBOX.{role}.>"]
