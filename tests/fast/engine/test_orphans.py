"""Orphans are found with their reason; resources that may have an owner are not."""

from dataclasses import replace

import pytest
from tests.support.fakes.tasks import LEASE, ended, running

from solo5_systemd.base.names import TaskName, UnitKind
from solo5_systemd.engine.orphans import Snapshot, orphans
from solo5_systemd.engine.task import Task
from solo5_systemd.network.model import LeaseRecord, LeaseState, Reservation

WEB = TaskName("web")
ALLOCATION = "/var/lib/nomad/alloc/3fa85f64"
EMPTY = Snapshot(units=(), outcomes=frozenset(), expired=(), strays=(), consoles={}, missing_directories=frozenset())


def of_nomad(task: Task) -> Snapshot:
    fields = {**task.state.log_fields, "NOMAD_ALLOC_DIR": f"{ALLOCATION}/alloc"}
    return replace(EMPTY, units=(replace(task.state, log_fields=fields),), outcomes=frozenset({WEB}))


def holding(state: LeaseState) -> LeaseRecord:
    return LeaseRecord(reservation=Reservation(task=WEB, leases=(LEASE,)), state=state, expires=0)


def found(snapshot: Snapshot) -> list[str]:
    return list(map(str, orphans(snapshot)))


TASKS = pytest.mark.parametrize(
    "task", [running(), ended(), running(kind=UnitKind.SCOPE)], ids=["running", "ended", "scope"]
)


@TASKS
def test_a_task_of_nomads_is_nobodys_when_its_allocation_is_removed(task: Task) -> None:
    snapshot = of_nomad(task)
    assert found(snapshot) == []
    assert found(replace(snapshot, missing_directories=frozenset({ALLOCATION}))) == [
        f"task web: Nomad has removed its allocation ({ALLOCATION})"
    ]


@TASKS
def test_a_task_of_solo5ctl_is_a_persons(task: Task) -> None:
    kept = replace(EMPTY, units=(task.state,), outcomes=frozenset({WEB}))
    assert found(replace(kept, missing_directories=frozenset({"", "/"}))) == []


def test_what_has_no_unit_is_nobodys() -> None:
    assert found(replace(EMPTY, outcomes=frozenset({WEB}))) == ["outcome of task web: its unit is not loaded"]
    assert found(replace(EMPTY, outcomes=frozenset({WEB}), units=(ended().state,))) == []
    assert found(replace(EMPTY, strays=("tap s5-x",))) == ["network leftover tap s5-x: no matching lease"]
    snapshot = replace(EMPTY, users=frozenset({WEB}))
    assert found(snapshot) == ["user of task web: its unit is not loaded"]
    assert found(replace(snapshot, units=(ended().state,))) == [], "it can be started again by systemctl"


@pytest.mark.parametrize(
    "state, reason",
    [(LeaseState.RESERVED, "its reservation has expired"), (LeaseState.ATTACHED, "its unit is not running")],
)
def test_a_lease_that_is_overdue_is_nobodys_without_its_unit(state: LeaseState, reason: str) -> None:
    snapshot = replace(EMPTY, expired=(holding(state),))
    assert found(snapshot) == [f"network lease of task web: {reason}"]
    assert found(replace(snapshot, units=(ended().state,))) == [f"network lease of task web: {reason}"]
    assert found(replace(snapshot, units=(running().state,))) == []


def test_a_lease_that_is_being_given_back_is_left_alone() -> None:
    for state in (LeaseState.RELEASING, LeaseState.WAITING):
        assert found(replace(EMPTY, expired=(holding(state),))) == []


def test_a_console_is_nobodys_when_its_task_is_long_gone() -> None:
    old = replace(EMPTY, consoles={WEB: 301.0})
    assert found(old) == ["console of task web: its unit is not loaded, and its FIFOs are not read"]
    assert found(replace(old, consoles={WEB: 299.0})) == [], "its task may be about to start, or its lines to be read"
    assert found(replace(old, units=(ended().state,))) == []
