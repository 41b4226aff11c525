"""The tenders of scopes, which are child processes of the driver: only it gets their exit status.

A later driver process finds such a task by its unit, and can stop and measure it, but its outcome is unknown.
"""

import asyncio
import os
import time
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from solo5_systemd.engine.task import StartCallbacks, Started
from solo5_systemd.errors import HostError
from solo5_systemd.host.exec import check_executable
from solo5_systemd.names import TaskName, task_scope
from solo5_systemd.nomad.process import restore_nofile_limit
from solo5_systemd.workload import Workload

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime

SHELL = "/bin/sh"
EXEC_AFTER_NEWLINE = 'read -r _ && exec "$@" </dev/null'
"""The script of a waiting child. At end of file, which is also the driver's death, it exits without the tender."""


@dataclass(frozen=True, kw_only=True)
class ScopeChildren:
    """The child processes, by task."""

    children: dict[TaskName, Process] = field(default_factory=dict)

    async def start(
        self, engine: "Runtime", workload: Workload, log_namespace: str, progress: StartCallbacks
    ) -> Started:
        """Start a child in a scope of its own, and let it execute the tender.

        Args:
            engine: the engine.
            workload: the task.
            log_namespace: as `Runtime.log_namespace` returned it.
            progress: as of a service.

        Raises:
            Solo5Error: the start failed, and is undone.
        """
        since = time.time_ns() // 1000  # systemd has no start time of a scope
        async with (
            _WaitingChild(lambda: engine.open_console(task_scope(workload.name), log_namespace)) as child,
            engine.start_scope(workload, child.spawn, progress) as started,
        ):
            self.children[workload.name] = child.execute()
        return replace(started, started=since)

    async def wait(self, name: TaskName) -> int | None:
        """Wait for a child, and return its exit status, negative for a signal; None: the task has no child here."""
        child = self.children.get(name)
        return None if child is None else await child.wait()

    def forget(self, name: TaskName) -> None:
        """Drop the child of a removed task."""
        self.children.pop(name, None)


class _WaitingChild:
    """A child that executes a command line after a newline from this process; killed if the block raises.

    Args:
        open_console: returns new file descriptors for its stdout and stderr.
    """

    def __init__(self, open_console: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        self._open_console = open_console
        self._process: Process | None = None
        self._pipe: int | None = None
        self._descriptors: Sequence[int] = ()

    async def __aenter__(self) -> "_WaitingChild":
        return self

    async def __aexit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
        if error is not None and self._process is not None:
            await asyncio.shield(_kill(self._process))

    async def spawn(self, argv: Sequence[str], descriptors: Sequence[int]) -> int:
        """Start the child; see `SpawnProcess`.

        Raises:
            NotFoundError: the program cannot be executed.
            HostError: there are no resources for a process.
        """
        check_executable(argv[0])
        stdout, stderr = await self._open_console()
        stdin, self._pipe = os.pipe2(os.O_CLOEXEC)
        try:
            self._process = await asyncio.create_subprocess_exec(
                SHELL, "-c", EXEC_AFTER_NEWLINE, SHELL, *argv,
                stdin=stdin, stdout=stdout, stderr=stderr, pass_fds=descriptors,
                env={}, start_new_session=True, cwd="/",
            )  # fmt: skip
        except OSError as error:
            raise HostError(f"a process for the task's tender cannot be started: {error.strerror}.") from error
        finally:
            for descriptor in (stdin, stdout, stderr):
                os.close(descriptor)
        with suppress(ProcessLookupError):
            restore_nofile_limit(self._process.pid)
        self._descriptors = descriptors
        return self._process.pid

    def execute(self) -> Process:
        """Let the child, which is in its scope, execute the command line; return it.

        Raises:
            HostError: it has been killed before.
        """
        assert self._process is not None and self._pipe is not None  # noqa: S101, PT018 - the scope has started
        try:
            os.write(self._pipe, b"\n")
        except BrokenPipeError as error:
            raise HostError("the process of the task's tender was killed before it executed the tender.") from error
        # The child's copies are the last ones: the disk locks end with it.
        for descriptor in self._descriptors:
            os.close(descriptor)
        return self._process


async def _kill(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()
