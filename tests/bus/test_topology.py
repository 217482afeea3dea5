"""The streams on the server."""

from __future__ import annotations

import msgspec
import pytest

from bus import EmbeddedServer, connect
from bus.settings import LogSettings, WeightsSettings
from schemas import ROLLOUTS, STREAMS, ServerUnfit, StreamMismatch
from tests import examples
from tests.conftest import ConnectAs


async def test_streams_are_made_as_their_specs_say(connect_as: ConnectAs, run: str) -> None:
    bus = await connect_as("reader")
    for spec in STREAMS:
        config = (await bus.wire.api(f"STREAM.INFO.{spec.name(run)}"))["config"]
        assert config["storage"] == "file"
        assert config["retention"] == "limits"
        assert config["discard"] == spec.discard
        assert config["allow_direct"]
        assert config["max_age"] == 0
        assert sorted(config["subjects"]) == sorted(spec.subjects(run))
        assert config["max_bytes"] == (4 * 1024**3 if spec.max_bytes is None else spec.max_bytes)


async def test_bucket_is_made_only_for_weights_that_travel_through_nats(connect_as: ConnectAs, run: str) -> None:
    topology, by_nats = await connect_as("topology"), WeightsSettings(store="jetstream", max_gib=2)
    with pytest.raises(StreamMismatch, match=f"stream OBJ_{run}_weights does not exist"):
        await topology.verify_topology(LogSettings(), by_nats)
    assert await topology.apply_topology(LogSettings(), by_nats) == [f"OBJ_{run}_weights: made"]
    assert await topology.apply_topology(LogSettings(), by_nats) == []
    for role in ("dispatcher", "generator", "trainer", "sink", "operator", "reader"):
        await (await connect_as(role)).verify_topology(LogSettings(), by_nats)
    config = (await topology.wire.api(f"STREAM.INFO.OBJ_{run}_weights"))["config"]
    assert sorted(config["subjects"]) == [f"$O.{run}_weights.C.>", f"$O.{run}_weights.M.>"]
    assert (config["discard"], config["allow_rollup_hdrs"], config["max_bytes"]) == ("new", True, 2 * 1024**3)


async def test_bucket_s_limit_is_the_one_to_lower_where_there_is_no_room(connect_as: ConnectAs) -> None:
    with pytest.raises(ServerUnfit, match=r"OBJ_.*_weights .*: lower weights\.max_gib"):
        await (await connect_as("topology")).apply_topology(
            LogSettings(), WeightsSettings(store="jetstream", max_gib=2**21)
        )


async def test_applying_again_changes_nothing(connect_as: ConnectAs) -> None:
    bus = await connect_as("topology")
    assert await bus.apply_topology(LogSettings(), WeightsSettings()) == []
    await bus.verify_topology(LogSettings(), WeightsSettings())


async def test_a_run_that_was_made_before_there_were_evaluations_gets_their_stream(
    connect_as: ConnectAs, run: str
) -> None:
    topology, reader = await connect_as("topology"), await connect_as("reader")
    await topology.wire.api(f"STREAM.DELETE.{run}_EVALUATIONS")
    with pytest.raises(StreamMismatch, match=f"stream {run}_EVALUATIONS does not exist: run headrace topology apply"):
        await reader.verify_topology(LogSettings(), WeightsSettings())
    assert await topology.apply_topology(LogSettings(), WeightsSettings()) == [f"{run}_EVALUATIONS: made"]
    await reader.verify_topology(LogSettings(), WeightsSettings())


async def test_every_role_may_verify(connect_as: ConnectAs) -> None:
    for role in ("dispatcher", "generator", "trainer", "sink", "operator", "reader"):
        await (await connect_as(role)).verify_topology(LogSettings(), WeightsSettings())


async def test_mismatch_names_setting_both_values_and_the_remedy(connect_as: ConnectAs, run: str) -> None:
    bus = await connect_as("trainer")
    with pytest.raises(StreamMismatch) as caught:
        await bus.verify_topology(LogSettings(max_gib=8), WeightsSettings())
    assert str(caught.value) == (
        f"{run}_ROLLOUTS: max_bytes: the server has 4294967296, this run wants 8589934592; "
        f"{run}_EVALUATIONS: max_bytes: the server has 4294967296, this run wants 8589934592: "
        "run headrace topology apply"
    )


async def test_apply_changes_what_differs_and_says_so(connect_as: ConnectAs, run: str) -> None:
    bus = await connect_as("topology")
    assert await bus.apply_topology(LogSettings(max_gib=8), WeightsSettings()) == [
        f"{run}_{kind}: max_bytes: the server has 4294967296, this run wants 8589934592"
        for kind in ("ROLLOUTS", "EVALUATIONS")
    ]
    await bus.verify_topology(LogSettings(max_gib=8), WeightsSettings())


async def test_rollouts_of_a_run_that_was_made_when_they_had_an_echo_lose_it(connect_as: ConnectAs, run: str) -> None:
    topology, stream = await connect_as("topology"), f"{run}_ROLLOUTS"
    config = (await topology.wire.api(f"STREAM.INFO.{stream}"))["config"]
    echo = {"src": ">", "dest": f"hr-stored.{stream}.>", "headers_only": True}
    await topology.wire.api(f"STREAM.UPDATE.{stream}", config | {"republish": echo})
    (change,) = await topology.apply_topology(LogSettings(), WeightsSettings())
    assert change.startswith(f"{stream}: republish: the server has")
    await topology.verify_topology(LogSettings(), WeightsSettings())


async def test_missing_streams_are_named(server: EmbeddedServer) -> None:
    bus = await connect(server.address("reader"), run="nothing-here", role="reader", id="r")
    with pytest.raises(
        StreamMismatch, match=r"stream nothing-here_TASKS does not exist; .*: run headrace topology apply"
    ):
        await bus.verify_topology(LogSettings(), WeightsSettings())
    await bus.close()


async def test_limit_below_what_is_held_is_refused_because_it_would_evict(connect_as: ConnectAs, run: str) -> None:
    generator, topology = await connect_as("generator"), await connect_as("topology")
    await generator.publish(examples.rollout(run=run))
    with pytest.raises(StreamMismatch, match=r"throws messages away: raise log\.max_gib"):
        await topology.apply_topology(LogSettings(max_gib=1e-8), WeightsSettings())
    assert (await generator.state(ROLLOUTS)).messages == 1


async def test_change_that_the_server_refuses_is_named(connect_as: ConnectAs, run: str) -> None:
    admin, topology = await connect_as("admin"), await connect_as("topology")
    config = (await admin.wire.api(f"STREAM.INFO.{run}_DEAD"))["config"]
    await admin.wire.api(f"STREAM.DELETE.{run}_DEAD")
    await admin.wire.api(f"STREAM.CREATE.{run}_DEAD", {**config, "storage": "memory", "max_bytes": 1000})
    with pytest.raises(StreamMismatch, match=f"the server refuses to make {run}_DEAD as wanted: .*storage type"):
        await topology.apply_topology(LogSettings(), WeightsSettings())


async def test_many_runs_of_large_limits_fit_on_a_small_disk(server: EmbeddedServer) -> None:
    for number in range(4):
        bus = await connect(server.address("topology"), run=f"large{number}", role="topology", id="t")
        await bus.apply_topology(LogSettings(max_gib=1000), WeightsSettings())
        await bus.close()


async def test_more_replicas_than_servers_is_refused_by_name(server: EmbeddedServer) -> None:
    bus = await connect(server.address("topology"), run="replicas", role="topology", id="t")
    with pytest.raises((StreamMismatch, ServerUnfit), match="replicas"):
        await bus.apply_topology(msgspec.structs.replace(LogSettings(), replicas=3), WeightsSettings())
    await bus.close()


async def test_subjects_that_another_stream_has_are_named(connect_as: ConnectAs) -> None:
    admin = await connect_as("admin")
    await admin.wire.api("STREAM.CREATE.squatter", {"name": "squatter", "subjects": ["hr.squatted.>"]})
    admin.run = "squatted"
    with pytest.raises(StreamMismatch, match=r"subjects of squatted_TASKS belong to another stream already"):
        await admin.apply_topology(LogSettings(), WeightsSettings())


async def test_one_stream_without_room_names_the_setting(connect_as: ConnectAs) -> None:
    admin = await connect_as("admin")
    admin.run = "huge"
    with pytest.raises(ServerUnfit, match=r"no room for huge_ROLLOUTS .*10047.* lower log\.max_gib, or raise"):
        await admin.apply_topology(LogSettings(max_gib=2**21), WeightsSettings())


async def test_compression_can_be_turned_on_and_off_again_without_losing_a_message(
    connect_as: ConnectAs, run: str
) -> None:
    topology, bus = await connect_as("topology"), await connect_as("generator")
    await bus.publish(examples.rollout(run=run, group=0))
    changed = await topology.apply_topology(LogSettings(compression="s2"), WeightsSettings())
    assert f"{run}_ROLLOUTS: compression: the server has 'none', this run wants 's2'" in changed
    assert len(changed) == len(STREAMS)
    await bus.publish(examples.rollout(run=run, group=1))
    await topology.apply_topology(LogSettings(), WeightsSettings())
    await bus.publish(examples.rollout(run=run, group=2))
    read = [logged.event async for logged in (await connect_as("reader")).read(ROLLOUTS)]
    assert [event.group for event in read] == [0, 1, 2]  # type: ignore[union-attr]


async def test_bucket_is_never_compressed(connect_as: ConnectAs, run: str) -> None:
    topology = await connect_as("topology")
    await topology.apply_topology(LogSettings(compression="s2"), WeightsSettings(store="jetstream", max_gib=2))
    config = (await topology.wire.api(f"STREAM.INFO.OBJ_{run}_weights"))["config"]
    assert config.get("compression", "none") == "none"
