"""Orphans are found with their reason; resources that may have an owner are not."""

from pathlib import Path
from typing import Any

import pytest
from tests.support.fakes.backends import Machine
from tests.support.fakes.tasks import LEASE, ended, running

from solo5_systemd.base.names import TaskName, UnitKind
from solo5_systemd.engine import gc
from solo5_systemd.engine.gc import is_removed
from solo5_systemd.engine.orphans import orphans
from solo5_systemd.engine.runtime import Runtime
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
def test_a_task_of_nomads_is_an_orphan_when_its_allocation_is_removed(task: Task) -> None:
    fields = {**task.state.log_fields, "NOMAD_ALLOC_DIR": f"{ALLOCATION}/alloc"}
    kept = {"units": (task.state._replace(log_fields=fields),), "outcomes": frozenset({WEB})}
    assert found(**kept) == []
    assert found(**kept, missing_directories=frozenset({ALLOCATION})) == [
        f"task web: Nomad has removed its allocation ({ALLOCATION})"
    ]


@TASKS
def test_a_task_of_solo5ctl_is_a_persons(task: Task) -> None:
    gone = frozenset({"", "/"})
    assert found(units=(task.state,), outcomes=frozenset({WEB}), missing_directories=gone) == []


def test_what_has_no_unit_is_an_orphan() -> None:
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
def test_an_overdue_lease_without_its_unit_is_an_orphan(state: LeaseState, reason: str) -> None:
    overdue, told = (holding(state),), [f"network lease of task web: {reason}"] if reason else []
    assert found(expired=overdue) == told
    assert found(expired=overdue, units=(ended().state,)) == told
    assert found(expired=overdue, units=(running().state,)) == []


def test_a_console_is_an_orphan_when_its_task_is_long_gone() -> None:
    assert found(consoles={WEB: 301.0}) == ["console of task web: its unit is not loaded, and its FIFOs are not read"]
    assert found(consoles={WEB: 299.0}) == [], "its task may be about to start, or its lines to be read"
    assert found(consoles={WEB: 301.0}, units=(ended().state,)) == []


# -- orphans are found without activating a service, and removed by the component that owns the resource -------------


IMAGE = f"image {'ab' * 32}"
WAKES = {"collect networks", "drain", "open_tasks", "networks"}


@pytest.fixture(autouse=True)
def removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have one directory of an allocation that was removed."""
    monkeypatch.setattr(gc, "is_removed", lambda directory: str(directory) == ALLOCATION)


def forgotten(machine: Machine, task: Task) -> None:
    fields = {**task.state.log_fields, "NOMAD_ALLOC_DIR": f"{ALLOCATION}/alloc"}
    machine.units.loaded[task.state.unit] = task.state._replace(log_fields=fields)


async def test_nothing_is_woken_to_find_it(machine: Machine, runtime: Runtime) -> None:
    forgotten(machine, ended())
    machine.networks.late = (holding(LeaseState.ATTACHED),)
    machine.networks.stray = ("tap s5-x",)
    assert [str(orphan.kind) for orphan in await runtime.gc.orphans()] == [
        "task",
        "network lease of task",
        "network leftover",
    ]
    assert not WAKES & set(machine.steps.taken)


async def test_a_dry_run_returns_the_same_lines_and_changes_nothing(machine: Machine, runtime: Runtime) -> None:
    forgotten(machine, running())
    machine.networks.stray = ("tap s5-x",)
    machine.relay.silent = {WEB: 1000.0}
    before = dict(machine.units.loaded)
    told = await runtime.gc.collect(dry_run=True)
    assert not WAKES & set(machine.steps.taken)
    assert machine.units.loaded == before
    assert await runtime.gc.collect(dry_run=False) == told
    assert "network leftover tap s5-x: no matching lease" in told
    assert "collect networks" in machine.steps.taken


async def test_a_disk_that_cannot_be_taken_back_is_listed_though_no_task_has_a_user(
    machine: Machine, runtime: Runtime
) -> None:
    machine.users.kept = ("disk '/srv/a.img' cannot be reclaimed from user 61200: Input/output error.",)
    assert await runtime.gc.collect(dry_run=False) == (*machine.users.kept, IMAGE)
    assert await runtime.gc.collect(dry_run=True) == (IMAGE,)
    assert machine.steps.taken.count("reclaim disks") == 1


async def test_consoles_alone_are_let_go_where_their_tasks_are_long_gone(machine: Machine, runtime: Runtime) -> None:
    """A drain may have failed while the relay was not running; the driver repeats it from time to time."""
    machine.units.loaded[running("idle").state.unit] = running("idle").state
    machine.relay.silent = {WEB: 1000.0, TaskName("idle"): 1000.0, TaskName("starting"): 10.0}
    assert await runtime.gc.consoles() == [WEB]
    assert machine.relay.drained == [WEB]


async def test_where_no_console_is_silent_no_unit_is_listed(machine: Machine, runtime: Runtime) -> None:
    machine.relay.silent = {WEB: 10.0}
    assert await runtime.gc.consoles() == []
    assert machine.steps.taken == ["records"]


async def test_images_are_kept_that_any_task_refers_to(machine: Machine, runtime: Runtime) -> None:
    machine.units.loaded[running().state.unit] = running().state
    machine.units.loaded["solo5-task-b.service"] = ended("b").state
    await runtime.gc.collect(dry_run=True)
    assert machine.images.collected == frozenset({running().sha256})


def test_a_directory_is_gone_where_the_one_around_it_is_still_there(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    assert [is_removed(tmp_path / name) for name in ("there", "gone", "away/gone")] == [False, True, False]
