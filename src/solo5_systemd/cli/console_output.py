"""A task's console, line by line: stdout to stdout, stderr to stderr."""

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
    screen.copy(entry.message, to_err=entry.stream is Stream.STDERR)


def write_timed(entry: Entry, screen: Screen) -> None:
    screen.copy(entry.message, to_err=entry.stream is Stream.STDERR, prefix=f"{moment(entry.realtime)} ")


def write_json(entry: Entry, screen: Screen) -> None:
    """One object a line, so that a reader of a followed console need not wait for the end."""
    message = entry.message.decode("utf-8", "replace")
    line = {"time": moment(entry.realtime), "stream": entry.stream.name.lower(), "message": message}
    screen.write(json.dumps(line) + "\n")


async def copy_console(
    engine: "Runtime", task: Task, screen: Screen, write: Write, *, follow: bool, last: int | None = None
) -> int:
    """Write what there is, and with `follow` what comes until the task has ended; the number of lines."""
    count = 0
    async with aclosing(engine.console(task, follow=follow, last=last)) as entries:
        async for entry in entries:
            write(entry, screen)
            count += 1
    return count
