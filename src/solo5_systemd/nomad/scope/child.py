"""The child process that enters a task's scope and executes the tender: `python3 -m … DESCRIPTOR`.

It reads its input from stdin, and writes its report to the file descriptor. The kernel closes that descriptor when the
tender is executed (FD_CLOEXEC), which is the success.
"""

import asyncio
import os
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from solo5_systemd.engine.task import StartCallbacks, StartedScope
from solo5_systemd.errors import HostError, Solo5Error
from solo5_systemd.host.execution import execute
from solo5_systemd.nomad.events.messages import TaskEvent
from solo5_systemd.nomad.events.start_progress import EngineProgress
from solo5_systemd.nomad.scope.protocol import ReportLine, ScopeEntered, StepBegun, encode
from solo5_systemd.settings import Settings
from solo5_systemd.workload import Workload

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from solo5_systemd.engine.runtime import Runtime


class ReportPipe:
    """The pipe to the driver; a `ProgressSink`. If the driver has died, lines are dropped, and the start goes on."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def on_step(self, step: str) -> None:
        """Report the next step."""
        self.write(StepBegun(doing=step))

    def publish(self, event: TaskEvent) -> None:
        """Report an event."""
        self.write(event)

    def write(self, line: ReportLine) -> None:
        """Write a line."""
        with suppress(BrokenPipeError):
            os.write(self._descriptor, encode(line))


def main() -> None:
    """Enter the scope and execute the tender, or report the error and exit."""
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)  # closed by execve(2)
    report = ReportPipe(descriptor)
    settings, workload, rule = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the driver itself
    try:
        entered = asyncio.run(_enter(settings, workload, EngineProgress(report, rule)))
        report.write(ScopeEntered(invocation=entered.invocation, control_group=entered.control_group))
        execute(entered.argv)
    except Exception as error:  # noqa: BLE001 - reported to the driver, which logs it
        report.write(_reported(error))
        sys.exit(Solo5Error.exit_status)


def _reported(error: Exception) -> Solo5Error:
    return error if isinstance(error, Solo5Error) else HostError(f"the task's tender was not executed: {error!r}.")


def connect(settings: Callable[[], Settings]) -> "AbstractAsyncContextManager[Runtime]":
    """Connect to the engine.

    Raises:
        DependencyError: a Python module was removed after the driver was launched.
    """
    try:
        from solo5_systemd import wiring
    except ImportError as error:
        from solo5_systemd.dependencies import dependency_error

        raise dependency_error(error) from error
    return wiring.connect(settings)


async def _enter(settings: Settings, workload: Workload, progress: StartCallbacks) -> StartedScope:
    async with connect(lambda: settings) as engine:
        return await engine.start_scope(workload, os.getpid(), progress)


if __name__ == "__main__":
    main()
