"""Copies a task's console to the screen: its stdout to stdout, its stderr to stderr."""

import json
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

from solo5_systemd.cli.render import moment
from solo5_systemd.cli.screen import Screen
from solo5_systemd.engine.task import Task
from solo5_systemd.journal.export import Entry, Stream

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime

Write = Callable[[Entry, Screen], None]


def write_plain(entry: Entry, screen: Screen) -> None:
    """Write the line alone."""
    screen.copy(entry.message, to_err=entry.stream is Stream.STDERR)


def write_timed(entry: Entry, screen: Screen) -> None:
    """Write the line after its journal timestamp (RFC 3339, UTC)."""
    screen.copy(entry.message, to_err=entry.stream is Stream.STDERR, prefix=f"{moment(entry.realtime)} ")


def write_json(entry: Entry, screen: Screen) -> None:
    """Write one JSON object on a line (JSON Lines), so that a followed console can be parsed as it grows."""
    message = entry.message.decode("utf-8", "replace")
    line = {"time": moment(entry.realtime), "stream": entry.stream.name.lower(), "message": message}
    screen.write(json.dumps(line) + "\n")


async def copy_console(
    engine: "Runtime", task: Task, screen: Screen, write: Write, *, follow: bool, last: int | None = None
) -> int:
    """Write the console to the screen.

    Args:
        engine: a connected engine.
        task: the task.
        screen: the output.
        write: the format of a line.
        follow: go on until the task has ended.
        last: start with this many last lines; None: with the first.

    Returns:
        the number of lines.
    """
    count = 0
    async with aclosing(engine.console(task, follow=follow, last=last)) as entries:
        async for entry in entries:
            write(entry, screen)
            count += 1
    return count
