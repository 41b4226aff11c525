"""The tenders of scopes, which are child processes of the driver: only it gets their exit status.

A later driver process finds such a task by its unit, and can stop and measure it, but its outcome is unknown.
"""

import asyncio
import os
import resource
import subprocess
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from solo5_systemd.base.errors import HostError
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
"""The soft and hard RLIMIT_NOFILE that this process was started with; `plugin` raises its own."""


class Child:
    """A child process, watched by a pidfd (pidfd_open(2)).

    asyncio's own kill their process when the loop is closed, at the end of the driver: a tender has to survive it.

    Raises:
        OSError: there are no file descriptors left.
    """

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.pid = process.pid
        self._process = process
        self._pidfd = os.pidfd_open(process.pid)
        loop = asyncio.get_running_loop()
        self._status: asyncio.Future[int] = loop.create_future()
        loop.add_reader(self._pidfd, self._reap)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._status.set_result(self._process.wait())

    async def wait(self) -> int:
        """Wait for the process, and return its exit status, negative for a signal."""
        return await asyncio.shield(self._status)

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        self._process.kill()


@dataclass(frozen=True, kw_only=True)
class ScopeChildren:
    """The child processes, by task.

    Attributes:
        stop_requested: tasks whose stop was requested: systemd has no such record of a child's scope.
    """

    children: dict[TaskName, Child] = field(default_factory=dict)
    stop_requested: set[TaskName] = field(default_factory=set)

    async def start(self, engine: "Runtime", workload: Workload, progress: StartCallbacks) -> Task:
        """Start a child in a scope of its own, and let it execute the tender.

        Raises:
            Solo5Error: the start failed, and is undone.
        """
        since = time.time_ns() // 1000  # systemd has no start time of a scope
        waiting = _WaitingChild(lambda namespace: engine.open_console(task_scope(workload.name), namespace))
        async with engine.start_scope(workload, waiting.spawn, progress) as started:
            self.children[workload.name] = waiting.execute()
        return replace(started, state=replace(started.state, started=since))

    async def wait(self, name: TaskName) -> int | None:
        """Wait for a child, and return its exit status, negative for a signal; None: the task has no child here."""
        child = self.children.get(name)
        return None if child is None else await child.wait()

    def forget(self, name: TaskName) -> None:
        """Drop the records of a removed task."""
        self.children.pop(name, None)
        self.stop_requested.discard(name)


@dataclass
class _WaitingChild:
    """A child that executes a command line after a newline from this process.

    Attributes:
        open_console: returns new file descriptors for its stdout and stderr, in a journal namespace.
    """

    open_console: Callable[[str], Awaitable[tuple[int, int]]]
    _child: Child | None = None
    _pipe: int = -1
    _descriptors: Sequence[int] = ()

    @asynccontextmanager
    async def spawn(
        self, argv: Sequence[str], descriptors: Sequence[int], log_namespace: str
    ) -> AsyncGenerator[int, None]:
        """Start the child, and kill it if the block raises; see `SpawnProcess`.

        Raises:
            NotFoundError: the program cannot be executed.
            HostError: there are no resources for a process.
        """
        check_executable(argv[0])
        console = await self.open_console(log_namespace)
        self._descriptors = descriptors
        with ExitStack() as kept:
            with ExitStack() as passed:
                for end in console:
                    passed.callback(os.close, end)
                try:
                    stdin, self._pipe = os.pipe2(os.O_CLOEXEC)
                    passed.callback(os.close, stdin)
                    kept.callback(os.close, self._pipe)
                    child = self._child = _start(argv, (stdin, *console), descriptors)
                except OSError as error:
                    raise HostError(f"a process for the task's tender cannot be started: {error.strerror}.") from error
            try:
                yield child.pid
            except BaseException:
                child.kill()
                await asyncio.shield(child.wait())  # its copies of the disk locks are closed before the disks are freed
                raise

    def execute(self) -> Child:
        """Let the child, which is in its scope, execute the command line; return it."""
        assert self._child is not None  # noqa: S101 - the scope has started
        try:
            os.write(self._pipe, b"\n")
        except BrokenPipeError as error:
            raise HostError("the process of the task's tender was killed before it executed the tender.") from error
        # The child's copies are the last ones: the disk locks end with it.
        for descriptor in self._descriptors:
            os.close(descriptor)
        return self._child


def _start(argv: Sequence[str], stdio: Sequence[int], descriptors: Sequence[int]) -> Child:
    stdin, stdout, stderr = stdio
    process = subprocess.Popen(
        [SHELL, "-c", EXEC_AFTER_NEWLINE, SHELL, *argv],
        stdin=stdin, stdout=stdout, stderr=stderr, pass_fds=descriptors,
        env={}, start_new_session=True, cwd="/",
    )  # fmt: skip
    try:
        child = Child(process)
    except OSError:
        process.kill()
        process.wait()
        raise
    with suppress(ProcessLookupError):
        restore_limits(child.pid)
    return child


def restore_limits(pid: int) -> None:
    """Set the limits of a child as systemd sets those of a service (systemd.exec(5)).

    * RLIMIT_NOFILE as it was: the child may use select(2) (LimitNOFILE=).
    * No core file: it would contain the guest's memory.
    * No OOMScoreAdjust=: many units of the agent have -1000, with which the kernel finds no process to kill when a task
      reaches its MemoryMax=.

    Raises:
        ProcessLookupError: the child has ended.
    """
    resource.prlimit(pid, resource.RLIMIT_NOFILE, INITIAL_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        (PROC / str(pid) / "oom_score_adj").write_text("0", encoding="ascii")
