"""Errors as Nomad has them: one sentence, and whether another try can help."""

import grpc

from solo5_systemd.errors import HostError, Solo5Error, StartError, TakenError
from solo5_systemd.goplugin.rpc import Failure
from solo5_systemd.nomad.proto.recoverable_error_pb2 import RecoverableError

PASSING = (HostError, TakenError, StartError)
"""What the host lacks now, what somebody else holds now, what systemd could not start now. Everything else is wrong in
the job or in its image, and stays so however often it is tried."""


def explain(error: Exception) -> Failure | None:
    """An error of ours for gRPC; None for what nobody foresaw.

    Nomad's client looks at nothing but the detail (plugins/drivers/client.go), and restarts a task for as long as its
    restart policy has it where that says so.
    """
    if not isinstance(error, Solo5Error):
        return None
    return Failure(
        code=grpc.StatusCode.FAILED_PRECONDITION,
        message=str(error),
        details=(RecoverableError(recoverable=isinstance(error, PASSING)),),
    )
