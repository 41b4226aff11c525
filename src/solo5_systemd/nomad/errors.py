"""Errors as Nomad's client reads them: whether a restart of the task can help."""

import grpc

from solo5_systemd.base.errors import HostError, Solo5Error, StartError, TakenError
from solo5_systemd.goplugin.rpc import Failure
from solo5_systemd.nomad.proto.recoverable_error_pb2 import RecoverableError

RECOVERABLE = (HostError, TakenError, StartError)
"""Errors of the host, of a name or resource in use, and of systemd. All others are errors of the job or its image,
which a retry cannot change."""


def to_failure(error: Exception) -> Failure | None:
    """Return the gRPC status of an error; None: it is an internal error.

    Nomad's client reads only the detail (plugins/drivers/client.go): a recoverable error is retried by the task's
    restart policy, any other fails the task.
    """
    if not isinstance(error, Solo5Error):
        return None
    return Failure(
        code=grpc.StatusCode.FAILED_PRECONDITION,
        message=str(error),
        details=(RecoverableError(recoverable=isinstance(error, RECOVERABLE)),),
    )
