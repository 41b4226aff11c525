"""The consoles of tasks in the journal."""

import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, closing, suppress
from typing import TYPE_CHECKING

from solo5_systemd.base.declared_units import task_of
from solo5_systemd.base.errors import HostError
from solo5_systemd.base.event_loop import off_the_loop, on_a_loop
from solo5_systemd.base.names import TaskName
from solo5_systemd.base.paths import open_in_thread
from solo5_systemd.journal.journald import log_hung, open_stream
from solo5_systemd.unit.state import UnitState

if TYPE_CHECKING:
    from solo5_systemd.journal.lines import Line
    from solo5_systemd.unit.exit_messages import ExitMessages

# The reader is imported where it is used, for startup time: most commands do not read the journal.


class Journal:
    """The journal, for the consoles of tasks. A namespace is a journal namespace; empty: the host's journal.

    Reads, without `until`, need no event loop.

    Attributes:
        namespace: returns the journal namespace for the consoles of new tasks; empty: the host's journal.
    """

    def __init__(self, namespace: Callable[[], str]) -> None:
        self.namespace = namespace

    async def open_stream(self, unit: str, priority: int, namespace: str) -> int:
        """Open a journal stream for a guest's console or a tender's stderr; the caller closes the descriptor.

        In a thread, since a journald that hangs would block the event loop.
        """
        return await open_in_thread(lambda: open_stream(str(task_of(unit) or unit), unit, priority, namespace))

    async def lines(
        self, state: UnitState, *, until: Callable[[], bool] | None = None, last: int | None = None
    ) -> AsyncGenerator["Line", None]:
        """Yield the console lines of one run, oldest first; without PID 1's messages about the unit.

        Args:
            until: wait for new lines until this is true, then yield those that are left. None: do not wait.
        """
        from solo5_systemd.journal.follow import batches
        from solo5_systemd.journal.reader import BATCH_LINES, run_reader, seek

        with closing(run_reader(state)) as journal:
            if until is not None:
                journal.watch()
                if os.geteuid() != 0 and not journal.has_files:
                    return  # no permission: there is nothing to wait for
            seek(journal, state, last)
            async with aclosing(batches(journal, BATCH_LINES, until)) as found:
                async for batch in found:
                    for line in batch:
                        if line.realtime >= state.started:
                            yield line

    async def failure_messages(self, unit: str, namespace: str) -> Sequence[str]:
        """Return why a unit failed to start: PID 1's messages, then the lines of the unit's processes."""
        from solo5_systemd.journal.exit_messages import read_failure_messages

        await self.sync(task_of(unit) or TaskName(unit), namespace)
        return await off_the_loop(lambda: read_failure_messages(unit, namespace))

    async def exit_messages(self, state: UnitState) -> "ExitMessages":
        """Return the exit messages of a run; empty ones if the journal cannot be read."""
        from solo5_systemd.journal.exit_messages import read_exit_messages
        from solo5_systemd.unit.exit_messages import ExitMessages

        with suppress(HostError):
            return await off_the_loop(lambda: read_exit_messages(state))
        return ExitMessages()

    async def log_hung(self, state: UnitState) -> None:
        """Log that the tender of a task hangs and is killed."""
        log_hung(state)

    async def sync(self, task: TaskName, namespace: str) -> None:
        """Wait until journald has written all lines that a task wrote before."""
        from solo5_systemd.journal.sync import synchronize

        await on_a_loop(synchronize(task, namespace))
