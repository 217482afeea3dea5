"""What is said: event types, codec, subjects, stream definitions and schema snapshots."""

from .codec import (
    JSON,
    MESSAGE_ID,
    MSGPACK,
    as_json,
    content_type,
    decode,
    decode_as,
    encode,
    headers_of,
    message_id,
)
from .errors import (
    BusError,
    ConfigError,
    EngineError,
    EnvironmentFault,
    EventInvalid,
    Fenced,
    HeadraceError,
    LogGap,
    ModelError,
    PublishFailed,
    RunError,
    ServerUnfit,
    ServerUnreachable,
    StreamMismatch,
    WeightsError,
)
from .events import (
    EVENT_TYPES,
    AnyEvent,
    Closed,
    Control,
    Dead,
    Event,
    Failure,
    GroupTask,
    LeftOutReason,
    Lifecycle,
    Metric,
    Role,
    Rollout,
    Span,
    Step,
    Task,
    Term,
    Timings,
    TrainedGroup,
    Turn,
    Weights,
    event_name,
    event_tag,
)
from .settings import EnvironmentSettings, ModelSettings, PolicySettings, RunSettings
from .streams import (
    CONTROL,
    DEAD,
    LEDGER,
    MAX_PAYLOAD_BYTES,
    ROLLOUTS,
    STREAMS,
    TASKS,
    TELEMETRY,
    StreamSpec,
    stream_for,
)
from .subjects import check_name, subject_filter, subject_of
from .validation import validate

__all__ = [
    "CONTROL", "DEAD", "EVENT_TYPES", "JSON", "LEDGER", "MAX_PAYLOAD_BYTES", "MESSAGE_ID", "MSGPACK", "ROLLOUTS",
    "STREAMS", "TASKS", "TELEMETRY", "AnyEvent", "BusError", "Closed", "ConfigError", "Control", "Dead",
    "EngineError", "EnvironmentFault", "EnvironmentSettings", "Event", "EventInvalid", "Failure", "Fenced",
    "GroupTask", "HeadraceError", "LeftOutReason", "Lifecycle", "LogGap", "Metric", "ModelError", "ModelSettings",
    "PolicySettings", "PublishFailed", "Role", "Rollout", "RunError", "RunSettings", "ServerUnfit",
    "ServerUnreachable", "Span", "Step", "StreamMismatch", "StreamSpec", "Task", "Term", "Timings", "TrainedGroup",
    "Turn", "Weights", "WeightsError", "as_json", "check_name", "content_type", "decode", "decode_as", "encode",
    "event_name", "event_tag", "headers_of", "message_id", "stream_for", "subject_filter", "subject_of", "validate",
]  # fmt: skip
