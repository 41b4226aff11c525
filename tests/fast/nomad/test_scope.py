"""The tenders of scopes as children of the driver: start, wait, and undone failures."""

import asyncio
import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.fast.nomad.agent import agent
from tests.fast.nomad.conftest import Becomes
from tests.fast.nomad.values import SCOPES, TASK_ID, task_config
from tests.support.fakes.backends import Machine
from tests.support.fakes.background import Background
from tests.support.fakes.kernel import failing

from solo5_systemd.base.errors import HostError, Solo5Error
from solo5_systemd.base.names import DeviceName, TaskName, UnitKind, task_scope
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.engine.task import QUIET, Task
from solo5_systemd.host.tenders import IGNORED_SIGNALS
from solo5_systemd.nomad import scope_tenders
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.scope_tenders import INITIAL_NOFILE, ScopeChildren
from solo5_systemd.nomad.workload import name_of
from solo5_systemd.storage.model import DiskRequest
from solo5_systemd.task.workload import Workload
from solo5_systemd.unit.state import MainCode

WEB = TaskName("web")
UNIT = "solo5-task-web.scope"
DISKS = (DiskRequest(disk=DeviceName("storage"), path="/srv/disk.img"),)
WORKLOAD = Workload(name=WEB, image="/srv/full", kind=UnitKind.SCOPE, disks=DISKS)
NOTHING: tuple[set[str], set[TaskName]] = (set(), set())
STEPS = ["open image", "reserve", "lock disks", "open disk", "attach", "open stdout", "open stderr", "start unit"]

DRIVER = """
import asyncio, os, signal, sys
from solo5_systemd.nomad.scope_tenders import Child
async def main():
    Child(sys.argv[1:], (1, 1), ())
    os.write(1, b"the driver ")
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


async def start(scopes: ScopeChildren, runtime: Runtime, workload: Workload = WORKLOAD) -> Task:
    return await scopes.start(runtime, workload, QUIET)


def files() -> list[str]:
    """Return what the file descriptors of this process lead to."""
    found: list[str] = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing's own
            found.append(str(path.readlink()))
    return sorted(found)


def children(machine: Machine) -> list[int]:
    """Return the processes that were put into scopes."""
    found: list[int] = []
    for unit in machine.units.started:
        pids = unit.value("PIDs")
        assert isinstance(pids, list)
        found += pids
    return found


async def ended(pid: int) -> None:
    while is_alive(pid):  # noqa: ASYNC110 - the test is no waiter of its own
        await asyncio.sleep(0.01)


def status(pid: int, key: str) -> str:
    """Return the first word of a line of proc(5), status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{key}:")).split()[1]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("does", "status"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), signal.SIGTERM)", -15), ("sys.exit(0)", 0)]
)
async def test_exit_status_of_a_child_is_reaped(runtime: Runtime, child: Becomes, does: str, status: int) -> None:
    child(does)
    scopes = ScopeChildren()
    await start(scopes, runtime)
    assert await scopes.wait(WEB) == status
    assert await scopes.wait(WEB) == status


async def test_started_scope_has_its_start_time_and_lease(machine: Machine, runtime: Runtime, child: Becomes) -> None:
    child("")
    before, scopes = files(), ScopeChildren()
    started = await start(scopes, runtime)
    state = machine.units.loaded[UNIT]
    assert (started.state.unit, started.state.invocation, started.state.control_group) == (
        UNIT,
        state.invocation,
        state.control_group,
    )
    assert (started.state.main_pid, started.reservation) == (0, machine.networks.held[WEB])
    assert started.started > 1_700_000_000_000_000
    await scopes.wait(WEB)
    scopes.forget(WEB)
    assert await scopes.wait(WEB) is None
    assert files() == before


async def test_child_inherits_its_descriptors_and_no_state_of_the_driver(
    machine: Machine, runtime: Runtime, child: Becomes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "of the agent")
    child(
        "held = [int(fd) for fd in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + fd)]\n"
        "write([sorted(held), [os.readlink(f'/proc/self/fd/{n}') for n in (0, 1, 2)], os.getcwd(),"
        " os.getsid(0) == os.getpid(), 'SECRET' in os.environ, list(resource.getrlimit(resource.RLIMIT_NOFILE)),"
        " sys.argv[-1]])"
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, (INITIAL_NOFILE[0] // 2, INITIAL_NOFILE[1]))
    scopes = ScopeChildren()
    try:
        await start(scopes, runtime)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, INITIAL_NOFILE)
    await scopes.wait(WEB)
    given = sorted([0, 1, 2, *machine.disks.locks, *machine.images.opened])
    [image] = machine.images.opened
    assert child.written() == [
        given, ["/dev/null"] * 3, "/", True, False, list(INITIAL_NOFILE), f"/proc/self/fd/{image}"
    ]  # fmt: skip


async def test_child_executes_nothing_before_it_is_in_its_scope(
    machine: Machine, runtime: Runtime, child: Becomes
) -> None:
    child("write(os.getpid())")
    machine.steps.hang_on, machine.steps.late = "start unit", True
    scopes = ScopeChildren()
    starting = asyncio.ensure_future(start(scopes, runtime))
    await machine.steps.hanging.wait()
    [pid] = children(machine)
    while status(pid, "State") != "S":  # noqa: ASYNC110 - until it reads its stdin
        await asyncio.sleep(0.01)
    assert not child.output.exists()
    ignored = int(status(pid, "SigIgn"), 16)
    assert not [number for number in IGNORED_SIGNALS if ignored & 1 << number - 1], "SIGPIPE: a tender hangs"
    machine.steps.go_on.set()
    await starting
    assert await scopes.wait(WEB) == 0
    assert child.written() == pid


@pytest.mark.parametrize("fault", ["error", "cancelled"])
@pytest.mark.parametrize("step", STEPS)
async def test_failed_start_leaves_nothing(
    machine: Machine, runtime: Runtime, child: Becomes, step: str, fault: str
) -> None:
    child("write(1)")
    before, scopes = files(), ScopeChildren()
    if fault == "error":
        machine.steps.errors[step] = HostError("broken.")
        with pytest.raises(HostError, match="broken"):
            await start(scopes, runtime)
    else:
        machine.steps.hang_on, machine.steps.late = step, True
        async with Background(start(scopes, runtime)) as starting:
            await machine.steps.hanging.wait()
        assert starting.cancelled()
    assert machine.holds == NOTHING
    assert (files(), child.output.exists(), scopes.children) == (before, False, {})
    assert not [pid for pid in children(machine) if is_alive(pid)]


async def test_child_of_a_failed_start_has_ended_before_its_disks_are_freed(
    machine: Machine, runtime: Runtime, child: Becomes, monkeypatch: pytest.MonkeyPatch
) -> None:
    child("")
    freed: list[list[bool]] = []
    release = machine.users.release

    async def freeing(task: TaskName, held: int | None = None) -> None:
        freed.append([is_alive(pid) for pid in children(machine)])
        await release(task, held)

    monkeypatch.setattr(machine.users, "release", freeing)
    machine.steps.hang_on, machine.steps.late = "start unit", True
    async with Background(start(ScopeChildren(), runtime)):
        await machine.steps.hanging.wait()
    assert freed[-1] == [False], "the locks of its disks would be held"


async def test_child_that_was_killed_before_its_tender_fails_the_start(
    machine: Machine, runtime: Runtime, child: Becomes
) -> None:
    child("write(1)")
    before = files()
    machine.steps.hang_on, machine.steps.late = "start unit", True
    starting = asyncio.ensure_future(start(ScopeChildren(), runtime))
    await machine.steps.hanging.wait()
    [pid] = children(machine)
    os.kill(pid, signal.SIGKILL)
    await ended(pid)
    machine.steps.go_on.set()
    with pytest.raises(HostError, match="was killed before it executed the tender"):
        await starting
    assert (machine.holds, files(), child.output.exists()) == (NOTHING, before, False)


def test_child_of_a_driver_that_dies_exits_without_the_tender() -> None:
    driver = [sys.executable, "-c", DRIVER, "/bin/echo", "the tender"]
    done = subprocess.run(driver, stdout=subprocess.PIPE, check=False)
    # The end of the output is the end of the child, which holds its other end.
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"the driver ")


@pytest.mark.parametrize(
    "spoil, words",
    [
        (lambda child, _: child.program.unlink(), "tender cannot be executed: no such program"),
        (lambda child, patch: patch.setattr(scope_tenders, "SHELL", f"{child.program}/sh"), "started: Not a directory"),
        (lambda _, patch: patch.setattr(os, "pipe2", failing(errno.EMFILE)), "cannot be started: Too many open files"),
        (lambda _, patch: patch.setattr(os, "pidfd_open", failing(errno.EMFILE)), "be started: Too many open files"),
    ],
    ids=["no program", "no shell", "pipe2", "pidfd_open"],
)
async def test_tender_that_cannot_be_started_fails_the_start(
    machine: Machine, runtime: Runtime, child: Becomes, monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Becomes, pytest.MonkeyPatch], None], words: str,
) -> None:  # fmt: skip
    child("write(1)")
    before = files()
    spoil(child, monkeypatch)
    with pytest.raises(Solo5Error, match=words):
        await start(ScopeChildren(), runtime)
    assert (machine.holds, files(), child.output.exists()) == (NOTHING, before, False)


async def test_arguments_are_no_shell_text(runtime: Runtime, child: Becomes) -> None:
    child("write(sys.argv[-1])")
    scopes = ScopeChildren()
    text = "$(echo a); `echo b` \"'* $HOME && exit 7"
    await start(scopes, runtime, Workload(name=WEB, image="/srv/app", kind=UnitKind.SCOPE, arguments=(text,)))
    assert await scopes.wait(WEB) == 0
    assert child.written() == text


async def test_tender_that_ended_at_once_is_a_task_that_ended(machine: Machine, child: Becomes) -> None:
    child("sys.exit(3)")
    async with agent(allowed_units=SCOPES) as nomad:
        started = await nomad.start(task_config(unit="scope"))
        assert started.handle.state == wire.RUNNING
        ended = await nomad.wait()
        assert (ended.result.exit_code, ended.err) == (3, "")
        machine.units.end(task_scope(name_of(TASK_ID)), MainCode.NONE, 0)  # as PID 1 does when the cgroup is empty
        await nomad.destroy()
    assert machine.holds == NOTHING
