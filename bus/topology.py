"""The streams of a run on the server: made, brought up to date, or found to differ."""

from __future__ import annotations

from typing import Any

from schemas import (
    MAX_PAYLOAD_BYTES,
    STREAMS,
    WEIGHTS_BUCKET,
    BucketSpec,
    ServerUnfit,
    StreamMismatch,
    StreamSpec,
)

from .answers import ApiError
from .permissions import stored_subject
from .settings import LogSettings, WeightsSettings
from .wire import Wire

GIB = 1024**3
WRAPPING_BYTES = 64 * 1024
"""Room for what a dead letter adds to the message in it; the server's largest message has it too."""
UNKNOWN_STREAM, NO_ROOM, TAKEN = 10059, (10047, 10028, 10023), 10065


def largest_message_bytes(spec: StreamSpec) -> int:
    """Headers and payload of one message; a dead letter holds another stream's largest one whole."""
    return MAX_PAYLOAD_BYTES + (WRAPPING_BYTES if spec.kind == "DEAD" else 0)


def run_streams(weights: WeightsSettings) -> tuple[StreamSpec, ...]:
    """The streams of a run, with the weights bucket's where weights travel through NATS."""
    return (*STREAMS, WEIGHTS_BUCKET) if weights.store == "jetstream" else STREAMS


def stream_config(spec: StreamSpec, run: str, log: LogSettings, weights: WeightsSettings) -> dict[str, Any]:
    """A stream's settings as the JetStream API takes them; times in nanoseconds."""
    config = {
        "name": spec.name(run),
        "subjects": spec.subjects(run),
        "storage": "file",
        "retention": "limits",
        "discard": spec.discard,
        "max_bytes": spec.max_bytes,
        "max_msgs": -1,
        "max_age": 0,
        "num_replicas": log.replicas,
        "duplicate_window": int(spec.duplicate_window_s * 1e9),
        "allow_direct": True,
    }
    if isinstance(spec, BucketSpec):
        return config | {"max_bytes": int(weights.max_gib * GIB), "allow_rollup_hdrs": True}
    if spec.max_bytes is None:
        config["max_bytes"] = int(log.max_gib * GIB)
    echo = {"src": ">", "dest": stored_subject(spec.name(run)), "headers_only": True}
    return config | {
        "compression": log.compression,
        "max_msg_size": largest_message_bytes(spec),
        "republish": echo if spec.echoed else None,
    }


def differences(server: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    """Settings that are not as wanted, each as ``setting: the server has X, this run wants Y``."""
    return [
        f"{setting}: the server has {server.get(setting)!r}, this run wants {value!r}"
        for setting, value in ours.items()
        if server.get(setting) != value
    ]


async def verify_topology(wire: Wire, run: str, log: LogSettings, weights: WeightsSettings) -> None:
    """Raise StreamMismatch with all that is missing or differs."""
    faults = []
    for spec in run_streams(weights):
        ours = stream_config(spec, run, log, weights)
        server = await _stream_info(wire, spec.name(run))
        if server is None:
            faults.append(f"stream {spec.name(run)} does not exist")
        else:
            faults += [f"{spec.name(run)}: {difference}" for difference in differences(server["config"], ours)]
    if faults:
        raise StreamMismatch(f"{'; '.join(faults)}: run headrace topology apply")


async def apply_topology(wire: Wire, run: str, log: LogSettings, weights: WeightsSettings) -> list[str]:
    """Make the streams that are missing and change those that differ; the answer says what was done, a line each.

    Raises StreamMismatch where the server refuses a change, or it would throw messages away; ServerUnfit where
    the server's JetStream has no room for the limits.
    """
    done = []
    for spec in run_streams(weights):
        ours = stream_config(spec, run, log, weights)
        server = await _stream_info(wire, spec.name(run))
        if server is None:
            await _make(wire, "CREATE", ours, spec)
            done.append(f"{spec.name(run)}: made")
        elif changes := differences(server["config"], ours):
            _refuse_to_evict(server, ours, spec)
            # The server has settings that we leave alone; an update without them would ask to change them.
            await _make(wire, "UPDATE", {**server["config"], **ours}, spec)
            done += [f"{spec.name(run)}: {change}" for change in changes]
    return done


def _refuse_to_evict(server: dict[str, Any], ours: dict[str, Any], spec: StreamSpec) -> None:
    held, limit = server["state"]["bytes"], ours["max_bytes"]
    if held > limit:
        raise StreamMismatch(
            f"{ours['name']} holds {held} bytes and max_bytes would become {limit}, which throws messages away: "
            f"raise {_limit_key(spec)}"
        )


def _limit_key(spec: StreamSpec) -> str:
    """The setting that bounds the stream, or most of what a run asks of the server."""
    return "weights.max_gib" if isinstance(spec, BucketSpec) else "log.max_gib"


async def _make(wire: Wire, verb: str, config: dict[str, Any], spec: StreamSpec) -> None:
    name = config["name"]
    try:
        await wire.api(f"STREAM.{verb}.{name}", config)
    except ApiError as error:
        if error.fault.err_code in NO_ROOM:
            raise ServerUnfit(
                f"JetStream has no room for {name} of {config['max_bytes']} bytes ({error.fault}): "
                f"lower {_limit_key(spec)}, or raise the server's jetstream.max_file_store"
            ) from None
        if error.fault.err_code == TAKEN:
            raise StreamMismatch(
                f"subjects of {name} belong to another stream already ({error.fault}): "
                "find it with `nats stream find`, or give the run another name"
            ) from None
        raise StreamMismatch(f"the server refuses to make {name} as wanted: {error.fault}") from None


async def _stream_info(wire: Wire, name: str) -> dict[str, Any] | None:
    try:
        info: dict[str, Any] = await wire.api(f"STREAM.INFO.{name}")
    except ApiError as error:
        if error.fault.err_code == UNKNOWN_STREAM:
            return None
        raise
    return info
