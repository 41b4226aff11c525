"""Follows a journal: reads its lines in batches, and waits for more."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from solo5_systemd.journal.lines import Line
    from solo5_systemd.journal.reader import JournalReader

POLL_INTERVAL_S = 0.02
"""Between two polls of a journal without new lines; a poll takes some 30 µs.

journald writes into mapped files, where a poll finds a line at once. It signals new lines by inotify at most four times
a second.
"""

IDLE_INTERVAL_S = 0.25
"""The same after a while without new lines: no longer than journald's signal takes at most."""


async def batches(
    journal: "JournalReader",
    size: int,
    until: Callable[[], bool] | None = None,
    poll_interval_s: float = POLL_INTERVAL_S,
    idle_interval_s: float = IDLE_INTERVAL_S,
) -> AsyncGenerator[list["Line"], None]:
    """Yield the lines from the reader's position on in batches, which may be empty. Other tasks run between two.

    Args:
        journal: a reader; `watch` was called if there is `until`.
        size: lines of a batch.
        until: return whether all lines to come are in the journal already. None: they are; do not wait.
        poll_interval_s: seconds between two polls after a line; doubled with each poll that finds none.
        idle_interval_s: seconds between two polls at most.

    Raises:
        HostError: the journal cannot be read.
    """
    interval_s = poll_interval_s
    while True:
        # Before the lines are read: those that are written in between belong to the next batch.
        is_last = until is None or until()
        lines = journal.read_batch(size)
        yield lines
        if lines:
            interval_s = poll_interval_s
        if len(lines) >= size:
            await asyncio.sleep(0)
        elif is_last:
            return
        else:
            await changed((journal.watch(),), interval_s)
            interval_s = min(interval_s * 2, idle_interval_s)


async def changed(fds: Collection[int], timeout_s: float) -> None:
    """Return when journald has signalled a change by one of these descriptors, or after a timeout.

    It signals an archived file at once, which may be removed within milliseconds, as by
    `journalctl --rotate --vacuum-files=1`: without the descriptors, its last lines could be lost between two polls.

    Args:
        fds: what `JournalReader.watch` returned; they stay readable until `JournalReader.refresh`.
        timeout_s: seconds.
    """
    loop = asyncio.get_running_loop()
    woken = loop.create_future()
    timer = loop.call_later(timeout_s, _wake, woken)
    for fd in fds:
        loop.add_reader(fd, _wake, woken)
    try:
        await woken
    finally:
        timer.cancel()
        for fd in fds:
            loop.remove_reader(fd)


def _wake(woken: "asyncio.Future[None]") -> None:
    if not woken.done():
        woken.set_result(None)
