"""What a verb may use: the screen, and the engine once it asks for it."""

import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from solo5_systemd.cli.screen import Screen
from solo5_systemd.errors import HostError, Solo5Error
from solo5_systemd.names import TaskName

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime
    from solo5_systemd.workload import Workload

Connect = Callable[[], AbstractAsyncContextManager["Runtime"]]
Story = Callable[["Runtime"], Coroutine[Any, Any, int]]

TERMINATED = 128 + 15


def connect() -> "AbstractAsyncContextManager[Runtime]":
    try:
        from solo5_systemd import settings_files, wiring  # D-Bus and asyncio, which `--help` does without
    except ImportError as error:
        from solo5_systemd.dependencies import blamed

        raise blamed(error) from error
    return wiring.connect(settings_files.read_settings)


class Session:
    """One call of `solo5ctl`.

    Args:
        screen: where to write.
        connect: opens the engine.
        root: we may change this machine.
    """

    def __init__(self, screen: Screen, *, connect: Connect = connect, root: bool | None = None) -> None:
        self.screen = screen
        self._connect = connect
        self.root = os.geteuid() == 0 if root is None else root

    def engine(self, story: Story, *, needs_root: bool = True) -> int:
        """Tell a story with the engine; the exit status.

        Raises:
            HostError: root is needed, and we are not.
            Solo5Error: whatever the story raises.
        """
        if needs_root and not self.root:
            raise HostError("only root can do this: tasks and networks are the whole machine's.", "Try sudo.")
        import asyncio  # costs a third of what a quick verb may take

        try:
            return asyncio.run(self._tell(story))
        except asyncio.CancelledError:
            return TERMINATED
        except BaseExceptionGroup as group:
            raise _first(group) from group

    async def _tell(self, story: Story) -> int:
        async with self._connect() as engine:
            return await story(engine)

    async def warn_unenforced(self, engine: "Runtime", workload: "Workload") -> None:
        """Write one sentence to stderr if the kernel will not enforce a limit of the workload: no cgroup controller."""
        limits = await engine.unenforced(workload)
        if limits:
            names, controllers = (", ".join(dict.fromkeys(words)) for words in (limits, limits.values()))
            self.screen.say(
                f"warning: {names} will not hold: cgroup v2 has no {controllers} here; see solo5ctl doctor."
            )

    async def each(self, names: Sequence[TaskName], act: Callable[[TaskName], Awaitable[None]]) -> int:
        """Do one thing for several tasks at once; a failure of one does not keep the others from it."""
        import asyncio

        async def attempt(name: TaskName) -> int:
            try:
                await act(name)
            except Solo5Error as error:
                self.screen.complain(error)
                return error.exit_status
            self.screen.write(f"{name}\n")
            return 0

        return max(await asyncio.gather(*map(attempt, dict.fromkeys(names))))


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What went wrong first: the rest of a group is its consequence."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
