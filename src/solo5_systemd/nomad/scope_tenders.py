"""The tenders of scopes, which are child processes of the driver: only it gets their exit status.

A later driver process finds such a task by its unit, and can stop and measure it, but its outcome is unknown.
"""

import asyncio
import os
import resource
import subprocess
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from solo5_systemd.base.errors import HostError, host_errors
from solo5_systemd.base.locks import closing
from solo5_systemd.base.names import TaskName, task_scope
from solo5_systemd.engine.task import StartCallbacks, Task
from solo5_systemd.host.tenders import check_executable
from solo5_systemd.task.workload import Workload

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime

PROC = Path("/proc")

SHELL = "/bin/sh"
EXEC_AFTER_NEWLINE = 'read -r _ && exec "$@" </dev/null'
"""The script of a waiting child. At end of file, which is also the driver's death, it exits without the tender."""

INITIAL_NOFILE = resource.getrlimit(resource.RLIMIT_NOFILE)
"""The soft and hard RLIMIT_NOFILE that this process was started with."""


def raise_nofile_limit() -> None:
    """Raise the soft RLIMIT_NOFILE to the hard one: statistics hold five file descriptors for each task."""
    _, hard = INITIAL_NOFILE
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Child:
    """A child process that executes a command line after a newline from this process; watched by a pidfd.

    Raises OSError if it cannot be started.
    asyncio's own kill their process when the loop is closed, at the end of the driver: a tender has to survive it.

    Args:
        console: for its stdout and stderr; the caller closes its own copies.
        descriptors: which it inherits; `execute` closes this process's copies.

    Attributes:
        pipe: the write end of its stdin, which the caller closes.
    """

    def __init__(self, argv: Sequence[str], console: tuple[int, int], descriptors: Sequence[int]) -> None:
        self._descriptors = descriptors
        stdin, self.pipe = os.pipe2(os.O_CLOEXEC)
        with ExitStack() as undo, closing(stdin):
            undo.callback(os.close, self.pipe)
            self._process = subprocess.Popen(
                [SHELL, "-c", EXEC_AFTER_NEWLINE, SHELL, *argv],
                stdin=stdin, stdout=console[0], stderr=console[1], pass_fds=descriptors,
                env={}, start_new_session=True, cwd="/",
            )  # fmt: skip
            undo.callback(self._process.wait)
            undo.callback(self._process.kill)
            self._pidfd = os.pidfd_open(self._process.pid)
            undo.pop_all()
        self.pid = self._process.pid
        with suppress(ProcessLookupError):  # it was killed, which `execute` reports
            restore_limits(self.pid)
        loop = asyncio.get_running_loop()
        self._status: asyncio.Future[int] = loop.create_future()
        loop.add_reader(self._pidfd, self._reap)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._status.set_result(self._process.wait())

    def execute(self) -> None:
        """Let the child, which is in its scope, execute the command line; raises HostError if it was killed before."""
        try:
            os.write(self.pipe, b"\n")
        except BrokenPipeError as error:
            raise HostError("the process of the task's tender was killed before it executed the tender.") from error
        # The child's copies are the last ones: the disk locks end with it.
        for descriptor in self._descriptors:
            os.close(descriptor)

    async def wait(self) -> int:
        """Wait for the process, and return its exit status, negative for a signal."""
        return await asyncio.shield(self._status)

    async def kill(self) -> None:
        """Send SIGKILL, unless the process has ended, and wait for its end."""
        self._process.kill()
        await self.wait()


@dataclass(frozen=True, kw_only=True)
class ScopeChildren:
    """The child processes, by task.

    Attributes:
        stop_requested: tasks whose stop was requested: systemd has no such record of a child's scope.
    """

    children: dict[TaskName, Child] = field(default_factory=dict)
    stop_requested: set[TaskName] = field(default_factory=set)

    async def start(self, engine: "Runtime", workload: Workload, progress: StartCallbacks) -> Task:
        """Start a child in a scope of its own, and let it execute the tender; raises Solo5Error, undone."""
        since = time.time_ns() // 1000  # systemd has no start time of a scope
        spawned: list[Child] = []

        @asynccontextmanager
        async def spawn(
            argv: Sequence[str], descriptors: Sequence[int], log_namespace: str
        ) -> AsyncGenerator[int, None]:
            """Start the child, and kill it if the block raises; see `SpawnProcess`."""
            check_executable(argv[0])
            console = await engine.open_console(task_scope(workload.name), log_namespace)
            try:
                with host_errors("a process for the task's tender cannot be started"):
                    child = Child(argv, console, descriptors)
            finally:
                for end in console:
                    os.close(end)
            spawned.append(child)
            with closing(child.pipe):
                try:
                    yield child.pid
                except BaseException:
                    await asyncio.shield(child.kill())  # its copies of the disk locks are closed before disks are freed
                    raise

        async with engine.start_scope(workload, spawn, progress) as started:
            [child] = spawned
            child.execute()
            self.children[workload.name] = child
        return started._replace(state=started.state._replace(started=since))

    async def wait(self, name: TaskName) -> int | None:
        """Wait for a child, and return its exit status, negative for a signal; None: the task has no child here."""
        child = self.children.get(name)
        return None if child is None else await child.wait()

    def forget(self, name: TaskName) -> None:
        """Drop the records of a removed task."""
        self.children.pop(name, None)
        self.stop_requested.discard(name)


def restore_limits(pid: int) -> None:
    """Set the limits of a child as systemd sets those of a service (systemd.exec(5)).

    * RLIMIT_NOFILE as it was: the child may use select(2) (LimitNOFILE=).
    * No core file: it would contain the guest's memory.
    * No OOMScoreAdjust=: many units of the agent have -1000, with which the kernel finds no process to kill when a task
      reaches its MemoryMax=.

    Raises ProcessLookupError if the child has ended.
    """
    resource.prlimit(pid, resource.RLIMIT_NOFILE, INITIAL_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        (PROC / str(pid) / "oom_score_adj").write_text("0", encoding="ascii")
