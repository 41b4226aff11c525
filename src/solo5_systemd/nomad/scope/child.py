"""The process that becomes a scope's tender: started by the driver, in a scope of its own from its first deed on.

What the driver wants comes on stdin. The descriptor whose number is the one argument tells the driver how far it is:
lines of `report`. The kernel closes it when the tender is executed, and that is success.
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
from solo5_systemd.nomad.events.messages import Announcement
from solo5_systemd.nomad.events.start_progress import Steps
from solo5_systemd.nomad.scope.protocol import Begins, Enters, Said, encode
from solo5_systemd.settings import Settings
from solo5_systemd.workload import Workload

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from solo5_systemd.engine.runtime import Runtime


class Report:
    """The driver as an audience; one that has died hears nothing, and the task goes on without it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def on_step(self, doing: str) -> None:
        self.say(Begins(doing=doing))

    def tell(self, announcement: Announcement) -> None:
        self.say(announcement)

    def say(self, said: Said) -> None:
        with suppress(BrokenPipeError):
            os.write(self._descriptor, encode(said))


def main() -> None:
    """Execute the tender, or tell why not."""
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    report = Report(descriptor)
    settings, workload, rule = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the driver itself
    try:
        entered = asyncio.run(_enter(settings, workload, Steps(report, rule)))
        report.say(Enters(invocation=entered.invocation, control_group=entered.control_group))
        execute(entered.argv)
    except Exception as error:  # noqa: BLE001 - whatever it is, the driver is told
        report.say(_told(error))
        sys.exit(Solo5Error.exit_status)


def _told(error: Exception) -> Solo5Error:
    return error if isinstance(error, Solo5Error) else HostError(f"the task's tender was not reached: {error!r}.")


def connect(settings: Callable[[], Settings]) -> "AbstractAsyncContextManager[Runtime]":
    """The engine; a package may have been removed since the driver was launched."""
    try:
        from solo5_systemd import wiring
    except ImportError as error:
        from solo5_systemd.dependencies import blamed

        raise blamed(error) from error
    return wiring.connect(settings)


async def _enter(settings: Settings, workload: Workload, progress: StartCallbacks) -> StartedScope:
    async with connect(lambda: settings) as engine:
        return await engine.start_scope(workload, os.getpid(), progress)


if __name__ == "__main__":
    main()
