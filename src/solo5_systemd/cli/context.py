"""The context in which a verb runs: its screen, and a connection to the engine."""

import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from solo5_systemd.base.errors import HostError, NoSuchTaskError, Solo5Error
from solo5_systemd.base.names import TaskName
from solo5_systemd.cli.screen import Screen

if TYPE_CHECKING:
    from argparse import Namespace

    from solo5_systemd.engine.queries import Queries
    from solo5_systemd.engine.runtime import Runtime
    from solo5_systemd.task.workload import Workload

EngineCommand = Callable[["Runtime"], Coroutine[Any, Any, int]]
Query = Callable[["Queries"], Coroutine[Any, Any, int]]

EXIT_SIGTERM = 128 + 15

T = TypeVar("T")


def connect() -> "AbstractAsyncContextManager[Runtime]":
    """Return a context manager that connects to the engine of this host."""
    from solo5_systemd.engine.runtime import connect
    from solo5_systemd.settings.files import CachedSettings

    return connect(CachedSettings())  # a start has them six times


class CommandContext:
    """The context of one verb.

    Args:
        root: the process has the effective UID 0; None: determine it.
    """

    def __init__(self, screen: Screen, *, root: bool | None = None) -> None:
        self.screen = screen
        self.root = os.geteuid() == 0 if root is None else root

    def run(self, command: EngineCommand, *, needs_root: bool = True) -> int:
        """Connect to the engine, run a command in an event loop, and return its exit status.

        Raises:
            HostError: root is required, and the process is not root.
            Solo5Error: raised by the command.
        """
        if needs_root:
            self.require_root()
        import asyncio  # imported here for startup time: a third of that of a short verb

        async def connected() -> int:
            async with connect() as engine:
                return await command(engine)

        try:
            return asyncio.run(connected())
        except asyncio.CancelledError:
            return EXIT_SIGTERM
        except BaseExceptionGroup as group:
            raise _root_cause(group) from group

    def require_root(self) -> None:
        """Check that the process is root.

        Raises:
            HostError: it is not.
        """
        if not self.root:
            raise HostError("this verb requires root.", "Run it with sudo.")

    def query(self, command: Query) -> int:
        """Run a command that only reads, without an event loop, and return its exit status.

        Raises:
            Solo5Error: raised by the command.
        """
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
        from solo5_systemd.task.properties import unenforced

        limits = unenforced(workload, await engine.backends.usages.controllers())
        if limits:
            names, controllers = (", ".join(dict.fromkeys(words)) for words in (limits, limits.values()))
            self.screen.message(
                f"warning: limits not enforced: {names}; cgroup v2 controllers not available: {controllers}; see "
                "solo5ctl doctor."
            )

    def for_each(self, names: Sequence[TaskName], act: Callable[["Runtime", TaskName], Awaitable[object]]) -> int:
        """Await `act` for all tasks concurrently, and print the name of each that succeeded.

        Returns:
            0, or the highest exit status of the errors, which are written to stderr.

        Raises:
            HostError: the process is not root.
        """

        async def attempt(engine: "Runtime", name: TaskName) -> int:
            try:
                await act(engine, name)
            except Solo5Error as error:
                self.screen.error(error)
                return error.exit_status
            self.screen.write(f"{name}\n")
            return 0

        async def command(engine: "Runtime") -> int:
            import asyncio

            return max(await asyncio.gather(*(attempt(engine, name) for name in dict.fromkeys(names))))

        return self.run(command)


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
