"""A start: complete, or undone."""

import asyncio
import os
from collections.abc import Coroutine
from dataclasses import replace
from ipaddress import IPv4Address

import pytest
from tests.support.fakes.backends import Machine, Spawn
from tests.support.fakes.background import yields
from tests.support.fakes.images import stored

from solo5_systemd.base.errors import HostError, InvalidRequestError, NotFoundError, Solo5Error, StartError, TakenError
from solo5_systemd.base.names import DeviceName, TaskName, UnitKind
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.engine.task import Phase, Task
from solo5_systemd.network.model import GuestNames
from solo5_systemd.settings.node_limits import OPERATOR, Node, Resource, tenant
from solo5_systemd.settings.resolver import Resolver
from solo5_systemd.storage.model import DiskRequest
from solo5_systemd.task.workload import Publish, Workload
from solo5_systemd.unit.state import ActiveState, MainCode

WEB = TaskName("web")
UNIT = "solo5-task-web.service"
WORKLOAD = Workload(
    name=WEB,
    image="/srv/full",
    disks=(DiskRequest(disk=DeviceName("storage"), path="/srv/disk.img"),),
    publish=(Publish(host_port=8080, port=80),),
)
NOTHING: tuple[set[str], set[TaskName]] = (set(), set())
CHANGES = {
    *("acquire user", "reserve", "lock disks", "change owner", "open stderr", "attach", "start unit", "release"),
    "collect images",
}
"""Steps that make, take or remove anything."""


async def test_a_start_takes_each_step_once_and_returns_what_a_read_would(machine: Machine, runtime: Runtime) -> None:
    started = await runtime.start(WORKLOAD)
    assert len(machine.steps.taken) == len({*machine.steps.taken}) <= 17, "a start costs no more"
    assert machine.holds == ({UNIT}, {WEB})
    assert (machine.disks.directories, machine.disks.seen) == ({}, ("/run/solo5-disks/storage",))
    task = await runtime.task(WEB)
    assert task.phase is Phase.RUNNING
    assert started == task


async def test_a_task_without_nics_never_wakes_the_network(machine: Machine, runtime: Runtime) -> None:
    del machine.disks  # which is imported for a task with disks only
    started = await runtime.start(Workload(name=WEB, image="/srv/plain"))
    assert (started.reservation, machine.networks.held) == (None, {})
    await runtime.remove(WEB, force=True)
    assert not {"reserve", "attach", "release"} & set(machine.steps.taken)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"arguments": ("a\nb",)}, InvalidRequestError, "argument “a\\x0ab” has the character \\x0a: expected"),
        ({"image": "/srv/none"}, NotFoundError, "/srv/none"),
        ({"properties": (("User", "root"),)}, InvalidRequestError, "unit property 'User' cannot be set"),
        ({"kind": UnitKind.SCOPE, "namespace": "/run/netns/group"}, InvalidRequestError, "expected a service, which"),
    ],
)
async def test_what_can_be_known_to_fail_is_refused_before_anything_is_made(
    machine: Machine, runtime: Runtime, changes: dict[str, object], error: type[Solo5Error], words: str
) -> None:
    """The refusals themselves: test_plan.py."""
    workload = replace(WORKLOAD, **changes)  # type: ignore[arg-type]
    for act in (runtime.start, runtime.starter.preview):
        with pytest.raises(error) as caught:
            await (scoped(runtime, workload) if workload.kind is UnitKind.SCOPE else act(workload))
        assert words in str(caught.value)
    assert not CHANGES & set(machine.steps.taken)


async def test_a_name_that_a_task_has_is_refused_before_anything_is_made(machine: Machine, runtime: Runtime) -> None:
    await runtime.start(WORKLOAD)
    before, steps = machine.holds, len(machine.steps.taken)
    with pytest.raises(TakenError, match="task name 'web' is taken.*solo5ctl rm web"):
        await runtime.start(WORKLOAD)
    assert (machine.holds, machine.steps.taken[steps:]) == (before, ["is_taken"])


@pytest.mark.parametrize(
    "result, unit, messages, words",
    [
        ("failed", UNIT, ["older", "exec: no"], "task web did not start: its tender failed: exec: no"),
        ("failed", UNIT, [], "task web did not start: its tender failed: job result 'failed'"),
        (
            "dependency",
            "solo5-network@web.service",
            ["port 80 is taken."],
            "task web did not start: its network failed: port 80 is taken.",
        ),
    ],
)
async def test_a_failed_job_names_the_part_that_failed_and_leaves_nothing(
    machine: Machine, runtime: Runtime, result: str, unit: str, messages: list[str], words: str
) -> None:
    machine.units.job_result = result
    machine.console.failures[unit] = messages
    with pytest.raises(StartError) as caught:
        await runtime.start(WORKLOAD)
    assert str(caught.value) == f"{words} See: journalctl -u {unit}"
    assert machine.holds == NOTHING
    assert "solo5-task-web.service" in machine.units.forgotten


@pytest.mark.parametrize("ended", [(MainCode.EXITED, 1), (MainCode.KILLED, 11)])
async def test_a_tender_that_ends_before_its_start_does_was_started(
    machine: Machine, runtime: Runtime, ended: tuple[int, int]
) -> None:
    machine.units.job_result, machine.units.ended_at_once = "failed", ended
    started = await runtime.start(WORKLOAD)
    assert (started.state.main_pid, started.state.control_group) == (0, "")
    task = await runtime.wait_for_run(started.state)
    assert (task.phase, task.state.main_status) == (Phase.ENDED, ended[1])


async def test_an_undoing_that_fails_does_not_hide_why_it_was_needed(machine: Machine, runtime: Runtime) -> None:
    machine.units.job_result = "failed"
    machine.console.failures[UNIT] = ["the reason"]
    machine.steps.errors["release"] = HostError("the network service is gone.")
    with pytest.raises(StartError, match="the reason"):
        await runtime.start(WORKLOAD)


@pytest.mark.parametrize("fault", ["reserve", "lock disks", "bind disks", "attach", "start unit", None])
async def test_a_start_that_comes_second_undoes_nothing_of_the_first(
    machine: Machine, runtime: Runtime, fault: str | None
) -> None:
    """It read the unit before the first start made it; the locked disk that it finds is the first start's."""
    machine.steps.hang_on = "acquire user"
    second = asyncio.ensure_future(runtime.start(WORKLOAD))
    await machine.steps.hanging.wait()
    await runtime.start(WORKLOAD)
    before = dict(machine.networks.held), dict(machine.users.held), dict(machine.units.loaded)
    if fault is not None:
        machine.steps.errors[fault] = TakenError("in use.") if fault == "lock disks" else HostError("no answer.")
    machine.steps.go_on.set()
    with pytest.raises(TakenError, match="task name 'web' has just been taken"):
        await second
    assert (machine.networks.held, machine.users.held, machine.units.loaded) == before
    assert machine.networks.released == []
    assert machine.units.loaded[UNIT].active is ActiveState.ACTIVE


async def test_the_request_of_a_start_that_failed_is_removed_after_its_release(
    machine: Machine, runtime: Runtime
) -> None:
    machine.steps.errors["start unit"] = HostError("no answer.")
    with pytest.raises(HostError, match="no answer"):
        await runtime.start(WORKLOAD)
    assert machine.steps.taken.index("release") < machine.steps.taken.index("forget")
    assert (machine.networks.marked, set(machine.networks.forgotten)) == (set(), {WEB})


async def test_users_of_tasks_that_are_gone_are_freed_when_a_start_finds_none(
    machine: Machine, runtime: Runtime
) -> None:
    machine.users.most, machine.users.held = 1, {TaskName("gone"): 61200}
    await runtime.start(WORKLOAD)
    assert machine.users.held == {WEB: 61200}
    assert machine.networks.forgotten == ["gone"]
    with pytest.raises(TakenError, match="all users are in use"):
        await runtime.start(Workload(name=TaskName("more"), image="/srv/plain"))
    assert machine.holds == ({UNIT}, {WEB})


@pytest.mark.parametrize("former", [61300, 0, 990, 61200], ids=["a task", "root", "solo5", "its own last start"])
async def test_the_user_of_a_task_that_had_a_disk_before_has_lost_it(
    machine: Machine, runtime: Runtime, former: int
) -> None:
    machine.disks.owners["/srv/disk.img"] = former
    await runtime.start(WORKLOAD)
    expected = [(former, "/srv/disk.img")] if former == 61300 else []
    assert [(uid, disk.path) for uid, disk in machine.users.taken] == expected


def _full(job_result: str, hang_at: int | None, *, late: bool = False) -> Machine:
    machine = Machine()
    machine.units.job_result = job_result
    machine.steps.hang_at, machine.steps.late = hang_at, late
    return machine


async def _cancelled_while_it_hangs(machine: Machine, starting: Coroutine[object, object, object]) -> None:
    task = asyncio.ensure_future(starting)
    await machine.steps.hanging.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    machine.steps.go_on.set()
    await yields(100)


STORAGE = DiskRequest(disk=DeviceName("storage"), path="/srv/disk.img")
CREATING = replace(WORKLOAD, disks=(replace(STORAGE, create=1 << 20),))
PRIVATE = replace(WORKLOAD, disks=(replace(STORAGE, private=True),))
WRITTEN = ("check bound disks", "release disks")
"""Steps at which the tender may have written to a file that was created: it stays."""


@pytest.mark.parametrize("fault", ["error", "cancelled before its effect", "cancelled after its effect"])
@pytest.mark.parametrize("kind", UnitKind)
@pytest.mark.parametrize("workload", [WORKLOAD, CREATING, PRIVATE], ids=["a file", "a new file", "a private copy"])
async def test_a_start_that_fails_or_is_cancelled_at_any_step_leaves_nothing(
    workload: Workload, kind: UnitKind, fault: str
) -> None:
    workload = replace(workload, kind=kind)

    def start(machine: Machine, spawn: Spawn) -> Coroutine[object, object, object]:
        runtime = Runtime(machine.backends)
        return scoped(runtime, workload, spawn) if kind is UnitKind.SCOPE else runtime.start(workload)

    complete = _full("done", None)
    await start(complete, Spawn(complete.steps))
    for number, step in enumerate(complete.steps.taken):
        machine = _full("done", None if fault == "error" else number, late=fault.endswith("after its effect"))
        spawn = Spawn(machine.steps)
        if fault != "error":
            await _cancelled_while_it_hangs(machine, start(machine, spawn))
        else:
            machine.steps.errors[step] = HostError("broken.")
            if step == "release disks":  # its error undoes no start
                await start(machine, spawn)
                continue
            with pytest.raises(HostError, match="broken"):
                await start(machine, spawn)
        kept = complete.disks.files if step in WRITTEN else set()
        held = (machine.holds, machine.disks.directories, machine.disks.files)
        assert held == (NOTHING, {}, kept), f"{fault} in {step!r}"
        opened = {each for each in (*machine.disks.locks, *machine.images.opened) if is_open(each)}
        assert opened <= ({*spawn.descriptors} if step == "release disks" else set()), f"{fault} in {step!r}"
        for descriptor in opened:  # the caller's, once its process was executed
            os.close(descriptor)


async def test_a_file_that_is_there_is_neither_created_nor_removed(machine: Machine, runtime: Runtime) -> None:
    machine.disks.files.add("/srv/disk.img")
    machine.steps.errors["start unit"] = HostError("no answer.")
    with pytest.raises(HostError):
        await runtime.start(CREATING)
    assert "make disk" not in machine.steps.taken
    assert machine.disks.files == {"/srv/disk.img"}


async def test_user_image_and_mark_are_held_until_the_unit_is_there(machine: Machine, runtime: Runtime) -> None:
    """A start may take longer than a collection keeps an image without a task; PID 1 sees the mark."""
    machine.steps.hang_on = "start unit"
    starting = asyncio.ensure_future(runtime.start(WORKLOAD))
    await machine.steps.hanging.wait()
    assert (machine.networks.marked, machine.steps.taken[-2:]) == ({WEB}, ["attach", "start unit"])
    held = [*machine.images.held, *machine.users.descriptors]
    assert [is_open(each) for each in held] == [True, True]
    machine.steps.go_on.set()
    await starting
    assert (machine.networks.marked, [is_open(each) for each in held]) == (set(), [False, False])


async def test_a_removal_leaves_a_start_of_its_name_alone_that_begins_meanwhile(
    machine: Machine, runtime: Runtime
) -> None:
    """Once the unit is gone, the name is free, and what is removed by the name is the new task's."""
    started = await runtime.start(WORKLOAD)
    machine.units.end(started.state.unit, MainCode.EXITED, 0)
    machine.steps.hang_on = "release"
    removing = asyncio.ensure_future(runtime.remove(WORKLOAD.name))
    await machine.steps.hanging.wait()
    assert machine.users.starting == {WORKLOAD.name}, "a start waits for this lock"
    machine.steps.go_on.set()
    await removing
    machine.users.starting.add(WORKLOAD.name)
    with pytest.raises(TakenError, match="another start of it is in progress"):
        await runtime.discard(WORKLOAD.name)


async def test_undoing_continues_although_it_is_cancelled_too() -> None:
    failed = _full("failed", None)
    with pytest.raises(StartError):
        await Runtime(failed.backends).start(WORKLOAD)
    steps = failed.steps.taken
    for number in range(steps.index("failure_messages"), len(steps)):
        machine = _full("failed", number)
        await _cancelled_while_it_hangs(machine, Runtime(machine.backends).start(WORKLOAD))
        assert machine.holds == NOTHING, f"cancelled in {steps[number]!r}"


async def scoped(runtime: Runtime, workload: Workload, spawn: Spawn | None = None) -> Task:
    """Start a scope, and close what its process inherits."""
    spawn = spawn or Spawn()
    async with runtime.start_scope(workload, spawn) as started:
        pass
    for descriptor in spawn.descriptors:
        os.close(descriptor)
    return started


def is_open(descriptor: int) -> bool:
    return os.path.lexists(f"/proc/self/fd/{descriptor}")


async def test_the_plan_that_is_printed_is_executed(machine: Machine, runtime: Runtime) -> None:
    plan = await runtime.starter.preview(WORKLOAD)
    started = await runtime.start(WORKLOAD)
    assert machine.units.started == [plan.unit]
    assert plan.unit.value("ExecStart") == [(plan.argv[0], list(plan.argv), False)]
    assert started.reservation == plan.reservation


# --- name servers --------------------------------------------------------------------------------------------


FOUND = Resolver(servers=(IPv4Address("192.0.2.53"),), search=("host.example",))


@pytest.mark.parametrize("arguments", [(), ("{name}", "{{dns}}", "{mirage}")])
async def test_name_servers_are_not_looked_up_without_an_argument_that_has_them(
    machine: Machine, runtime: Runtime, arguments: tuple[str, ...]
) -> None:
    await runtime.starter.preview(replace(WORKLOAD, arguments=arguments))
    assert "find name servers" not in machine.steps.taken


async def test_name_servers_and_names_by_dhcp_are_those_of_the_networks(machine: Machine, runtime: Runtime) -> None:
    machine.resolvers.found, machine.resolvers.serving = FOUND, {"default"}
    await runtime.start(replace(WORKLOAD, hostname="shop", arguments=("{dns}",)))
    assert machine.resolvers.networks == ("default",)
    assert (await runtime.task(WEB)).of_placeholder("dns") == ("192.0.2.53",)
    assert machine.networks.names[WEB] == GuestNames(resolver=FOUND, hostname="shop")


async def test_a_start_beyond_a_limit_makes_nothing(machine: Machine, runtime: Runtime) -> None:
    machine.users.node = Node(capacity=lambda: {Resource.PORTS: 10, f"{Resource.ADDRESSES}/default": 100})
    of_job = replace(WORKLOAD, tenant=tenant("shop", "web"))
    await runtime.start(of_job)
    [claim] = machine.users.claims.values()
    assert dict(claim.amounts) == {
        Resource.TASKS: 1,
        Resource.PORTS: 1,
        Resource.COPIES: 0,
        Resource.COPIED: 0,
        Resource.ARCHIVES: 0,
        f"{Resource.IMAGES}/{stored().sha256}": stored().size,
        f"{Resource.ADDRESSES}/default": 1,
    }
    second = replace(of_job, name=TaskName("second"))
    for act in (runtime.starter.preview, runtime.start):
        with pytest.raises(TakenError, match="task second would have 1 published ports: expected at most 0"):
            await act(second)
    assert machine.steps.taken.count("reserve") == 1
    assert machine.holds == ({UNIT}, {WEB})
    await runtime.start(replace(second, tenant=OPERATOR))
    await runtime.discard(WEB, keep=True)
    assert [*machine.users.claims] == ["second"], "it has ended"


async def test_a_disk_that_is_created_counts_for_the_job(machine: Machine, runtime: Runtime) -> None:
    await runtime.start(replace(CREATING, tenant=tenant("shop", "web")))
    assert machine.disks.tenants == [tenant("shop", "web")] * 2
