"""Copies a task's console to the screen: its stdout to stdout, its stderr to stderr."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from solo5_systemd.cli.render import moment
from solo5_systemd.cli.screen import Screen
from solo5_systemd.journal.lines import Line, Stream

Write = Callable[[Line, Screen], None]


def write_plain(line: Line, screen: Screen) -> None:
    """Write the line alone."""
    screen.copy(line.message, to_err=line.stream is Stream.STDERR)


def write_timed(line: Line, screen: Screen) -> None:
    """Write the line after its journal timestamp (RFC 3339, UTC)."""
    screen.copy(line.message, to_err=line.stream is Stream.STDERR, prefix=f"{moment(line.realtime)} ")


def write_json(line: Line, screen: Screen) -> None:
    """Write one JSON object on a line (JSON Lines), so that a followed console can be parsed as it grows."""
    message = line.message.decode("utf-8", "replace")
    fields = {"time": moment(line.realtime), "stream": line.stream.name.lower(), "message": message}
    screen.write(json.dumps(fields) + "\n")


async def copy_console(console: AsyncGenerator[Line, None], screen: Screen, write: Write) -> int:
    """Write the lines of a console to the screen, and return their number."""
    count = 0
    async with aclosing(console) as lines:
        async for line in lines:
            write(line, screen)
            count += 1
    return count
