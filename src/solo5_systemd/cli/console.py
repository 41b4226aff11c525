"""A task's console, line by line: stdout to stdout, stderr to stderr."""

from contextlib import aclosing
from typing import TYPE_CHECKING

from solo5_systemd.cli.render import moment
from solo5_systemd.cli.screen import Screen
from solo5_systemd.journal.export import Entry, Stream
from solo5_systemd.task import Task

if TYPE_CHECKING:
    from solo5_systemd.runtime import Runtime


async def copy_console(
    engine: "Runtime", task: Task, screen: Screen, *, follow: bool, last: int | None = None, timestamps: bool = False
) -> None:
    """Copy what there is, and with `follow` what comes until the task has ended."""
    async with aclosing(engine.console(task, follow=follow, last=last)) as entries:
        async for entry in entries:
            _copy(entry, screen, timestamps=timestamps)


def _copy(entry: Entry, screen: Screen, *, timestamps: bool) -> None:
    prefix = f"{moment(entry.realtime)} " if timestamps else ""
    screen.copy(entry.message, to_err=entry.stream is Stream.STDERR, prefix=prefix)
