"""Orphans are found with their reason; resources that may have an owner are not."""

from dataclasses import replace
from typing import Any

import pytest
from tests.support.fakes.tasks import LEASE, ended, running

from solo5_systemd.base.names import TaskName, UnitKind
from solo5_systemd.engine.orphans import orphans
from solo5_systemd.engine.task import Task
from solo5_systemd.network.model import LeaseRecord, LeaseState, Reservation

WEB = TaskName("web")
ALLOCATION = "/var/lib/nomad/alloc/3fa85f64"


def holding(state: LeaseState) -> LeaseRecord:
    return LeaseRecord(reservation=Reservation(task=WEB, leases=(LEASE,)), state=state, expires=0)


def found(**changes: Any) -> list[str]:
    return list(map(str, orphans(**changes)))


TASKS = pytest.mark.parametrize(
    "task", [running(), ended(), running(kind=UnitKind.SCOPE)], ids=["running", "ended", "scope"]
)


@TASKS
def test_a_task_of_nomads_is_nobodys_when_its_allocation_is_removed(task: Task) -> None:
    fields = {**task.state.log_fields, "NOMAD_ALLOC_DIR": f"{ALLOCATION}/alloc"}
    kept = {"units": (replace(task.state, log_fields=fields),), "outcomes": frozenset({WEB})}
    assert found(**kept) == []
    assert found(**kept, missing_directories=frozenset({ALLOCATION})) == [
        f"task web: Nomad has removed its allocation ({ALLOCATION})"
    ]


@TASKS
def test_a_task_of_solo5ctl_is_a_persons(task: Task) -> None:
    gone = frozenset({"", "/"})
    assert found(units=(task.state,), outcomes=frozenset({WEB}), missing_directories=gone) == []


def test_what_has_no_unit_is_nobodys() -> None:
    web, ended_web = frozenset({WEB}), (ended().state,)
    assert found(outcomes=web) == ["outcome of task web: its unit is not loaded"]
    assert found(outcomes=web, units=ended_web) == []
    assert found(strays=("tap s5-x",)) == ["network leftover tap s5-x: no matching lease"]
    assert found(users=web) == ["user of task web: its unit is not loaded"]
    assert found(users=web, units=ended_web) == [], "it can be started again by systemctl"


@pytest.mark.parametrize(
    "state, reason",
    [
        (LeaseState.RESERVED, "its reservation has expired"),
        (LeaseState.ATTACHED, "its unit is not running"),
        (LeaseState.RELEASING, ""),
        (LeaseState.WAITING, ""),
    ],
)
def test_a_lease_that_is_overdue_is_nobodys_without_its_unit(state: LeaseState, reason: str) -> None:
    overdue, told = (holding(state),), [f"network lease of task web: {reason}"] if reason else []
    assert found(expired=overdue) == told
    assert found(expired=overdue, units=(ended().state,)) == told
    assert found(expired=overdue, units=(running().state,)) == []


def test_a_console_is_nobodys_when_its_task_is_long_gone() -> None:
    assert found(consoles={WEB: 301.0}) == ["console of task web: its unit is not loaded, and its FIFOs are not read"]
    assert found(consoles={WEB: 299.0}) == [], "its task may be about to start, or its lines to be read"
    assert found(consoles={WEB: 301.0}, units=(ended().state,)) == []
