"""How it travels: connecting, publishing, pulling, the ledger, moving weights, the embedded server."""

from .address import Address
from .answers import ApiError, Denied, Unanswered
from .connection import Bus, connect
from .consumer import Consumer, ConsumerState, Delivery
from .inbox import Inbox
from .ledger import Ledger
from .patience import OutOfPatience
from .permissions import BUS_ROLES, BusRole, Permissions, permissions
from .publication import Published, WrongSequence
from .server import EmbeddedServer
from .stream import Logged, StreamState
from .telemetry import Telemetry
from .thread import BusThread
from .topology import stream_config
from .weights_store import Stored, WeightsStore

__all__ = [
    "BUS_ROLES", "Address", "ApiError", "Bus", "BusRole", "BusThread", "Consumer", "ConsumerState", "Delivery",
    "Denied", "EmbeddedServer", "Inbox", "Ledger", "Logged", "OutOfPatience", "Permissions", "Published", "Stored",
    "StreamState", "Telemetry", "Unanswered", "WeightsStore", "WrongSequence", "connect", "permissions",
    "stream_config",
]  # fmt: skip
