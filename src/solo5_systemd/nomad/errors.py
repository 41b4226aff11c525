"""Which errors Nomad takes for recoverable."""

from solo5_systemd.base.errors import HostError, SettingsError, Solo5Error, StartError, TakenError
from solo5_systemd.nomad.proto.structs_pb2 import RecoverableError

RECOVERABLE = (HostError, SettingsError, TakenError, StartError)
"""Errors of the host, of the operator's files, of a name or resource in use, and of systemd. All others are errors of
the job or its image, which a retry cannot change."""


def detail_of(error: Exception) -> RecoverableError | None:
    """Return the detail of an error's gRPC status; None: it is an internal error.

    Nomad's client reads only the detail (plugins/drivers/client.go): a recoverable error is retried by the task's
    restart policy, any other fails the task.
    """
    return RecoverableError(recoverable=isinstance(error, RECOVERABLE)) if isinstance(error, Solo5Error) else None
