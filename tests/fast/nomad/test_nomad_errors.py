"""Errors on their way to Nomad: is another try worth while?"""

import grpc
import pytest

from solo5_systemd.base.errors import (
    BY_DBUS_NAME,
    DependencyError,
    HostError,
    ImageError,
    InvalidRequestError,
    NoSuchTaskError,
    NotFoundError,
    SettingsError,
    Solo5Error,
    StartError,
    StoreFullError,
    TakenError,
)
from solo5_systemd.nomad.proto.recoverable_error_pb2 import RecoverableError
from solo5_systemd.nomad.service import to_failure

TRY_AGAIN: set[type[Solo5Error]] = {HostError, DependencyError, StoreFullError, TakenError, StartError}
NEVER: set[type[Solo5Error]] = {
    Solo5Error,
    InvalidRequestError,
    SettingsError,
    ImageError,
    NotFoundError,
    NoSuchTaskError,
}


@pytest.mark.parametrize("error", sorted(TRY_AGAIN | NEVER, key=str))
def test_only_what_can_pass_is_worth_another_try(error: type[Solo5Error]) -> None:
    failure = to_failure(error("port 80 is taken.", "Choose another."))
    assert failure is not None
    assert failure.message == "port 80 is taken. Choose another."
    assert failure.code is grpc.StatusCode.FAILED_PRECONDITION
    assert failure.details == (RecoverableError(recoverable=error in TRY_AGAIN),)


def test_every_class_of_error_is_judged() -> None:
    assert set(BY_DBUS_NAME.values()) == TRY_AGAIN | NEVER


def test_an_unforeseen_error_has_no_explanation() -> None:
    assert to_failure(ValueError("oops")) is None
