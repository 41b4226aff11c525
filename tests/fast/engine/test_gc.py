"""Orphans are found without activating a service, and removed by the component that owns the resource."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.fast.engine.test_orphans import ALLOCATION, WEB, holding
from tests.support.fakes.backends import Machine
from tests.support.fakes.tasks import ended, running

from solo5_systemd.base.names import TaskName
from solo5_systemd.engine import gc
from solo5_systemd.engine.gc import is_removed
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.engine.task import Task
from solo5_systemd.network.model import LeaseState

IMAGE = f"image {'ab' * 32}"
WAKES = {"collect networks", "drain", "open_tasks", "networks"}


@pytest.fixture(autouse=True)
def removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have one directory of an allocation that was removed."""
    monkeypatch.setattr(gc, "is_removed", lambda directory: str(directory) == ALLOCATION)


def forgotten(machine: Machine, task: Task) -> None:
    fields = {**task.state.log_fields, "NOMAD_ALLOC_DIR": f"{ALLOCATION}/alloc"}
    machine.units.loaded[task.state.unit] = replace(task.state, log_fields=fields)


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


async def test_a_dry_run_says_the_same_and_changes_nothing(machine: Machine, runtime: Runtime) -> None:
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


async def test_users_of_tasks_that_are_gone_are_freed(machine: Machine, runtime: Runtime) -> None:
    starting = TaskName("starting")
    machine.units.loaded[running("lives").state.unit] = running("lives").state
    machine.users.held = {WEB: 61200, TaskName("lives"): 61201, starting: 61202}
    machine.users.starting = {starting}
    told = "user of task web: its unit is not loaded"
    assert await runtime.gc.collect(dry_run=True) == (told, IMAGE)
    assert (len(machine.users.held), machine.networks.forgotten) == (3, [])
    assert await runtime.gc.collect(dry_run=False) == (told, IMAGE)
    assert machine.users.held.keys() == {"lives", "starting"}
    assert machine.networks.forgotten == [WEB], "its request, too"
    machine.users.held[WEB] = 61203
    assert await runtime.gc.users() == [WEB]
    assert machine.networks.forgotten == [WEB, WEB]


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
