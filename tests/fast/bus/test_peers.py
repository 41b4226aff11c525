"""Calls, and D-Bus errors of a peer as exceptions."""

from itertools import product

import pytest

from solo5_systemd.base.errors import HostError, TakenError
from solo5_systemd.base.names import TASK_PREFIX, task_scope, task_service, unit_path
from solo5_systemd.base.names import TaskName as Name
from solo5_systemd.bus.peers import Call, ListedUnit, RemoteError, remote_error
from solo5_systemd.unit.state import ActiveState, unit_state


def test_an_error_of_ours_is_its_class_with_sentence_and_hint() -> None:
    error = remote_error("org.solo5.Error.Taken", "it is taken.\nWait.")
    assert isinstance(error, TakenError)
    assert (error.sentence, error.hint) == ("it is taken.", "Wait.")


@pytest.mark.parametrize("word", ["AccessDenied", "InteractiveAuthorizationRequired"])
def test_a_refusal_is_one_sentence(word: str) -> None:
    error = remote_error(f"org.freedesktop.DBus.Error.{word}", "no.")
    assert isinstance(error, HostError)
    assert str(error) == "the system bus refuses: no. Run it as root."


def test_any_other_error_keeps_its_name() -> None:
    error = remote_error("org.x.Error", "text")
    assert isinstance(error, RemoteError)
    assert (error.name, error.text, str(error)) == ("org.x.Error", "text", "org.x.Error: text")


def test_the_signature_of_a_call_is_that_of_its_arguments() -> None:
    assert Call("/x", "org.x", "X").signature == ""
    assert Call("/x", "org.x", "X", ("text", ("a", "b"), ())).signature == "sasas"


@pytest.mark.parametrize(
    "unit, path",
    [
        ("a.service", "/org/freedesktop/systemd1/unit/a_2eservice"),
        ("0a@-.scope", "/org/freedesktop/systemd1/unit/_30a_40_2d_2escope"),
    ],
)
def test_a_units_path_is_escaped_as_systemd_does(unit: str, path: str) -> None:
    assert unit_path(unit) == path


UNITS = (task_service(Name("web")), task_scope(Name("web")), f"{TASK_PREFIX}.service", "dbus.service", "web")
JOBS = ("", "start", "restart", "stop", "verify-active")


def row(unit: str, active: str, job: str = "", load: str = "loaded") -> ListedUnit:
    return ListedUnit(unit, "text", load, active, "sub", "", "/x", 7 if job else 0, job, "/")


@pytest.mark.parametrize("unit", UNITS)
def test_a_row_is_over_where_its_state_is(unit: str) -> None:
    for active, job in product((*ActiveState, "of-a-later-systemd"), JOBS):
        state = unit_state(unit, {"ActiveState": active, "JobType": job}, row(unit, active, job).task)
        assert state is None or row(unit, active, job).over == state.over, (active, job)
        assert row(unit, active, job).task == (state and state.task)
        assert state is None or row(unit, active, job).kind is state.kind
