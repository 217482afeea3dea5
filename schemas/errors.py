"""Every error that Headrace raises on purpose.

    HeadraceError
    ├── ConfigError         a configuration cannot be used; nothing was started
    ├── ModelError          a model directory is missing or unfit
    ├── EventInvalid        bytes that came over the bus are not a valid event
    ├── BusError
    │   ├── ServerUnreachable   no NATS server answers, or it refuses us
    │   ├── ServerUnfit         a server answers but cannot carry a run (JetStream off, too old)
    │   ├── StreamMismatch      a stream exists with other settings
    │   ├── PublishFailed       an event was not acknowledged and retrying cannot help
    │   ├── LogGap              a stream's sequences have a hole that retention does not explain
    │   └── Fenced              another writer owns the ledger
    ├── WeightsError        weights are missing, damaged or not what was announced
    ├── EngineError         the inference engine failed and must be restarted
    ├── EnvironmentFault    an environment cannot be found, built or played
    └── RunError            a run is missing, finished, or not in the state a command needs

A message says what happened, to which value, and what to do about it. The command line prints the
message alone: none of these is shown with a stack trace.
"""

_REASON_LIMIT = 1000


class HeadraceError(Exception):
    """Base of all errors with a message meant for a person."""


class ConfigError(HeadraceError):
    """A configuration file or ``--set`` value cannot be used."""


class ModelError(HeadraceError):
    """A model directory is missing, incomplete, or of an architecture that is not supported."""


class EventInvalid(HeadraceError):
    """A payload is not a valid event; ``reason`` is what the dead letter records, at most 1,000 characters of it.

    A reason may quote the payload, and the dead letter of a large one must still fit into a message.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason if len(reason) <= _REASON_LIMIT else f"{reason[:_REASON_LIMIT]}..."
        super().__init__(self.reason)


class BusError(HeadraceError):
    """NATS or JetStream did not do what was asked."""


class ServerUnreachable(BusError):
    """No connection to a NATS server could be made in time."""


class ServerUnfit(BusError):
    """The server lacks something that a run needs."""


class StreamMismatch(BusError):
    """A stream's settings on the server differ from the ones in schemas/streams.py."""


class PublishFailed(BusError):
    """A publish was refused, and trying again would be refused too."""


class LogGap(BusError):
    """Messages that should be in a stream are not."""


class Fenced(BusError):
    """Another writer appended to the ledger; this one must stop and must not be restarted."""


class WeightsError(HeadraceError):
    """Weights are missing, damaged, or differ from what their event announced."""


class EngineError(HeadraceError):
    """The inference engine is unusable; its process must be replaced."""


class EnvironmentFault(HeadraceError):
    """An environment is unknown, cannot be built, or broke its contract."""


class RunError(HeadraceError):
    """A run is missing, finished, or otherwise not in the state that a command needs."""
