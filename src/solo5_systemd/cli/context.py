"""The context in which a verb runs: its screen, and a connection to the engine."""

import os
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from solo5_systemd.base.errors import HostError, NoSuchTaskError
from solo5_systemd.base.names import TaskName
from solo5_systemd.cli.terminal import Screen

if TYPE_CHECKING:
    from argparse import Namespace

    from solo5_systemd.engine.queries import Queries
    from solo5_systemd.engine.runtime import Runtime
    from solo5_systemd.task.workload import Workload

T = TypeVar("T")


class CancelledError(Exception):
    """SIGTERM has cancelled the command."""


def connect() -> "AbstractAsyncContextManager[Runtime]":
    """Return a context manager that connects to the engine of this host."""
    from solo5_systemd.engine.runtime import connect
    from solo5_systemd.settings.files import CachedSettings

    return connect(CachedSettings())  # a start has them six times


class CommandContext:
    """The context of one verb; `root`: the process has the effective UID 0, None: determine it."""

    def __init__(self, screen: Screen, *, root: bool | None = None) -> None:
        self.screen = screen
        self.root = os.geteuid() == 0 if root is None else root

    def run(self, command: Callable[["Runtime"], Coroutine[Any, Any, T]], *, needs_root: bool = True) -> T:
        """Connect to the engine, run a command in an event loop, and return its result.

        Raises:
            HostError: root is required, and the process is not root.
            CancelledError: of the command.
        """
        if needs_root:
            self.require_root()
        import asyncio  # imported here for startup time: a third of that of a short verb

        async def connected() -> T:
            async with connect() as engine:
                return await command(engine)

        try:
            return asyncio.run(connected())
        except asyncio.CancelledError as error:  # by SIGTERM; for SIGINT, asyncio.run() raises KeyboardInterrupt
            raise CancelledError from error
        except BaseExceptionGroup as group:
            raise _root_cause(group) from group

    def require_root(self) -> None:
        """Raise HostError unless the process is root."""
        if not self.root:
            raise HostError("this verb requires root.", "Run it with sudo.")

    def query(self, command: Callable[["Queries"], Coroutine[Any, Any, T]]) -> T:
        """Run a command that only reads, without an event loop, and return its result."""
        from solo5_systemd.engine.queries import queries

        with queries() as engine:
            return finished(command(engine))

    def show(self, arguments: "Namespace", document: Callable[[], object], text: Callable[[], str]) -> int:
        """Write a JSON document if the option --json is given, else a text; return the exit status 0."""
        if arguments.json:
            self.screen.json(document())
        else:
            self.screen.write(text())
        return 0

    async def warn_unenforced(self, engine: "Runtime", workload: "Workload") -> None:
        """Write a warning to stderr if a cgroup controller for a limit of the workload is not available."""
        from solo5_systemd.unit.translate import unenforced

        limits = unenforced(workload, await engine.backends.usages.controllers())
        if limits:
            names, controllers = (", ".join(dict.fromkeys(words)) for words in (limits, limits.values()))
            self.screen.message(
                f"warning: limits not enforced: {names}; cgroup v2 controllers not available: {controllers}; see "
                "solo5ctl doctor."
            )


async def remove_existing(engine: "Runtime", name: TaskName) -> None:
    """Remove the task of a name, if there is one."""
    with suppress(NoSuchTaskError):
        await engine.remove(name, force=True)


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that awaits nothing but coroutines, without an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("the coroutine waits for an event loop")


def _root_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first leaf of an exception group; the others are consequences of it."""
    error = group.exceptions[0]
    return _root_cause(error) if isinstance(error, BaseExceptionGroup) else error
