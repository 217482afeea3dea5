"""How it travels: connecting, publishing, pulling, the ledger, moving weights, the embedded server."""

from .address import Address
from .answers import ApiError, Denied, Unanswered
from .connection import Bus, connect
from .consumer import Consumer, ConsumerState, Delivery
from .dead_letter import bury
from .inbox import Inbox
from .keys import Key, make_keys
from .ledger import Ledger
from .memory import keep_freed_memory
from .patience import OutOfPatience, Patience
from .permissions import BUS_ROLES, BusRole, Permissions, permissions
from .publication import Published, StreamFull, WrongSequence
from .server import LEAST_FREE_BYTES, EmbeddedServer
from .stream import Logged, StreamState
from .telemetry import Telemetry
from .thread import BusThread
from .threads import in_thread
from .topology import run_streams, stream_config
from .weights import (
    Bucket,
    Delta,
    FileWeights,
    JetStreamWeights,
    RunFiles,
    Stored,
    WeightsStore,
    make_delta,
    open_run_files,
    open_weights,
)

__all__ = [
    "BUS_ROLES", "LEAST_FREE_BYTES", "Address", "ApiError", "Bucket", "Bus", "BusRole", "BusThread", "Consumer",
    "ConsumerState", "Delivery", "Delta", "Denied", "EmbeddedServer", "FileWeights", "Inbox", "JetStreamWeights",
    "Key", "Ledger", "Logged", "OutOfPatience", "Patience", "Permissions", "Published", "RunFiles", "Stored",
    "StreamFull", "StreamState", "Telemetry", "Unanswered", "WeightsStore", "WrongSequence", "bury", "connect",
    "in_thread", "keep_freed_memory", "make_delta", "make_keys", "open_run_files", "open_weights", "permissions",
    "run_streams", "stream_config",
]  # fmt: skip
