"""Follows a journal: reads its lines in batches, and waits for more."""

from collections.abc import AsyncGenerator, Callable, Collection
from typing import TYPE_CHECKING

from solo5_systemd.base.event_loop import pause

if TYPE_CHECKING:
    import asyncio

    from solo5_systemd.journal.lines import Line
    from solo5_systemd.journal.reader import JournalReader

POLL_INTERVAL_S = 0.02
"""Between two polls of a journal without new lines; a poll takes some 30 µs.

journald writes into mapped files, where a poll finds a line at once. It signals new lines by inotify at most four times
a second.
"""

IDLE_INTERVAL_S = 0.25
"""The same after a while without new lines: no longer than journald's signal takes at most."""

SILENT_AFTER_POLLS = 40
"""Polls without a new line, some ten seconds, after which a timer with a `silent_interval_s` relies on the signal."""


class PollTimer:
    """The wait between two polls of journals: doubled with each poll that found no line, up to a limit.

    Args:
        poll_interval_s: seconds of the first wait.
        idle_interval_s: seconds of the longest one.
        silent_interval_s: seconds of a wait after `SILENT_AFTER_POLLS`; None: the same.
    """

    def __init__(
        self,
        poll_interval_s: float = POLL_INTERVAL_S,
        idle_interval_s: float = IDLE_INTERVAL_S,
        silent_interval_s: float | None = None,
    ) -> None:
        self._shortest_s, self._longest_s = poll_interval_s, idle_interval_s
        self._silent_s = silent_interval_s or idle_interval_s
        self._next_s = poll_interval_s
        self._polls = 0
        self._long_wait: asyncio.Future[None] | None = None

    def restart(self) -> None:
        """Begin with the shortest wait again, after a line or for a new console; a longer wait ends now."""
        if self._long_wait is not None:
            _wake(self._long_wait)
        self._next_s, self._polls = self._shortest_s, 0

    async def wait(self, fds: Collection[int]) -> None:
        """Return when journald has signalled a change by one of these descriptors, or after the interval.

        It signals an archived file at once, which may be removed within milliseconds, as by
        `journalctl --rotate --vacuum-files=1`: without the descriptors, its last lines could be lost between two polls.

        Args:
            fds: what `JournalReader.watch` returned; they stay readable until `JournalReader.refresh`.
        """
        import asyncio  # imported here for startup time: lines that are there are read without a loop

        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        self._long_wait = woken if self._next_s > self._shortest_s else None
        timer = loop.call_later(self._next_s, _wake, woken)
        self._polls += 1
        is_silent = self._polls >= SILENT_AFTER_POLLS
        self._next_s = self._silent_s if is_silent else min(self._next_s * 2, self._longest_s)
        for fd in fds:
            loop.add_reader(fd, _wake, woken)
        try:
            await woken
        finally:
            self._long_wait = None
            timer.cancel()
            for fd in fds:
                loop.remove_reader(fd)


def _wake(woken: "asyncio.Future[None]") -> None:
    if not woken.done():
        woken.set_result(None)


async def batches(
    journal: "JournalReader", size: int, until: Callable[[], bool] | None = None, timer: PollTimer | None = None
) -> AsyncGenerator[list["Line"], None]:
    """Yield the lines from the reader's position on in batches, which may be empty. Other tasks run between two.

    Args:
        journal: a reader; `watch` was called if there is `until`.
        until: return whether all lines to come are in the journal already. None: they are; do not wait.

    Raises:
        HostError: the journal cannot be read.
    """
    timer = timer or PollTimer()
    while True:
        # Before the lines are read: those that are written in between belong to the next batch.
        is_last = until is None or until()
        lines = journal.read_batch(size)
        yield lines
        if lines:
            timer.restart()
        if len(lines) >= size:
            await pause()
        elif is_last:
            return
        else:
            await timer.wait((journal.watch(),))
