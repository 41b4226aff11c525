"""Rows of PID 1's list of units."""

from itertools import product

import pytest

from solo5_systemd.bus.unit_listing import ListedUnit, loaded, task_names
from solo5_systemd.names import TASK_PREFIX, task_scope, task_service
from solo5_systemd.names import TaskName as Name
from solo5_systemd.unit.state import ActiveState, unit_state

UNITS = (task_service(Name("web")), task_scope(Name("web")), f"{TASK_PREFIX}.service", "dbus.service", "web")
JOBS = ("", "start", "restart", "stop", "verify-active")


def row(unit: str, active: str, job: str = "", load: str = "loaded") -> ListedUnit:
    return ListedUnit(unit, "text", load, active, "sub", "", "/x", 7 if job else 0, job, "/")


@pytest.mark.parametrize("unit", UNITS)
def test_a_row_is_over_where_its_state_is(unit: str) -> None:
    for active, job in product((*ActiveState, "of-a-later-systemd"), JOBS):
        state = unit_state(unit, row(unit, active, job).properties())
        assert row(unit, active, job).over == (state is None or state.over), (active, job)
        assert row(unit, active, job).task == (state and state.task)
        assert state is None or row(unit, active, job).kind is state.kind


def test_names_are_those_of_loaded_units_of_tasks() -> None:
    rows = [
        row(task_service(Name("web")), "active"),
        row(task_scope(Name("over")), "failed"),
        row(task_service(Name("waits")), "inactive", "start"),
        row("dbus.service", "active"),
        row(task_service(Name("gone")), "inactive", load="not-found"),
    ]
    found = loaded(map(list, rows))
    assert found == rows[:-1]
    assert task_names(found, ended=True) == ["web", "over", "waits"]
    assert task_names(found, ended=False) == ["web", "waits"]
