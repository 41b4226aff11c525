"""Standard output and standard error of `solo5ctl`: the only module that writes to them.

What it writes may have text of guests, jobs and clients in it. So control characters are escaped here, whatever the
caller has done, also for a pipe, which may end at a terminal. Exceptions: colours of `paint`, the lines of a console
that are copied to a file or a pipe as they are, and the content of disks, which is refused for a terminal.
"""

import json
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import BinaryIO

from solo5_systemd.base.errors import HostError, Solo5Error
from solo5_systemd.base.event_loop import is_event_loop
from solo5_systemd.base.sanitize import printable
from solo5_systemd.cli.render import size, visible_line

_COLOURS = {"green": "32", "yellow": "33", "red": "31"}
_CLEAR = b"\x1b[H\x1b[J"
_CLEAR_LINE = "\r\x1b[K"
_CONTROL = rf"(\x1b\[(?:0|{'|'.join(_COLOURS.values())})m)|([\x00-\x08\x0b-\x1f\x7f-\x9f\udc80-\udc9f])"
"""A colour; or a control character, which could move the cursor or change the terminal."""


class Screen:
    """Standard output and standard error; NO_COLOR (no-color.org) and TERM=dumb disable colour (SGR sequences)."""

    def __init__(self, out: BinaryIO, err: BinaryIO, environment: Mapping[str, str]) -> None:
        self._out = out
        self._err = err
        self.is_terminal = out.isatty()
        self._err_is_terminal = err.isatty()
        self.colour = self.is_terminal and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"

    def write(self, text: str) -> None:
        """Write text to standard output, control characters other than newline, tab and colours escaped."""
        if not text.replace("\n", "").isprintable():  # in a tenth of the time that the pattern takes
            text = re.sub(_CONTROL, lambda found: found[1] or printable(found[2]), text)
        _put(self._out, text.encode("utf-8", "surrogateescape"))

    def json(self, value: object) -> None:
        """Write an indented JSON document to standard output. Lone surrogates (bytes not in UTF-8) are escaped."""
        self.write(json.dumps(value, indent=2) + "\n")

    def redraw(self, text: str) -> None:
        """Clear the terminal and write; without a terminal, append."""
        if self.is_terminal:
            self._out.write(_CLEAR)  # which is flushed with the text
        self.write(text)

    def paint(self, text: str, colour: str) -> str:
        """Return text in a colour of `_COLOURS`, or unchanged if colour is disabled or empty."""
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self.colour and colour else text

    def copy(self, line: bytes, *, to_err: bool, prefix: str = "") -> None:
        """Write one console line: raw bytes, or with control characters escaped on a terminal."""
        stream, is_terminal = (self._err, self._err_is_terminal) if to_err else (self._out, self.is_terminal)
        _put(stream, prefix.encode() + (visible_line(line) if is_terminal else line) + b"\n")

    def message(self, sentence: str) -> None:
        """Write a message to standard error, control characters escaped."""
        lines = "\n".join(map(printable, sentence.split("\n")))
        with suppress(HostError):  # without room for it, a warning is lost, and the verb goes on
            _put(self._err, f"solo5ctl: {lines}\n".encode())

    def error(self, error: Solo5Error) -> None:
        """Write an error's sentence and hint to standard error."""
        self.message(f"{error.sentence}\n{error.hint}" if error.hint else error.sentence)

    @contextmanager
    def progress(self, total: int) -> Iterator[Callable[[int], None]]:
        """Show the progress of a copy of `total` bytes (0: unknown) on stderr; yield what takes the bytes done."""
        shown = ""

        def show(done: int) -> None:
            nonlocal shown
            text = f"{size(done)} of {size(total)} ({100 * done // total} %)" if total else size(done)
            if text != shown and self._err_is_terminal:  # most blocks change no digit
                shown = text
                _put(self._err, f"{_CLEAR_LINE}{text}".encode())

        try:
            yield show
        finally:  # before an error, too, whose line would have the rest of it
            if shown:
                _put(self._err, _CLEAR_LINE.encode())

    @contextmanager
    def until_closed(self) -> Iterator[None]:
        """End the block of a task of an event loop as soon as the reader of a pipe has closed it: `logs -f | head -1`.

        Without, the next line would, which may never come.

        Raises:
            BrokenPipeError: the reader has.
        """
        if not is_event_loop() or not _is_pipe(self._out):
            yield
            return
        import asyncio  # imported here for startup time

        loop, task, pipe, closed = asyncio.get_running_loop(), asyncio.current_task(), self._out.fileno(), False

        def end() -> None:
            nonlocal closed
            closed = True
            loop.remove_reader(pipe)
            if task is not None:
                task.cancel()

        loop.add_reader(pipe, end)  # epoll(7) reports EPOLLERR in any case, and of this end of a pipe nothing else
        try:
            yield
        except asyncio.CancelledError:
            if not closed:
                raise
            raise BrokenPipeError from None
        finally:
            loop.remove_reader(pipe)

    def now(self) -> int:
        """Return the time in microseconds since the epoch."""
        return time.time_ns() // 1000


def standard_screen() -> Screen:
    """Return the screen of this process's stdout, stderr and environment.

    Of 0, 1 and 2, those that the caller has closed are opened first: else what is opened next gets their numbers.
    """
    while (opened := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    return Screen(sys.stdout.buffer, sys.stderr.buffer, os.environ)


def _is_pipe(stream: BinaryIO) -> bool:
    with suppress(OSError):  # of a test, it has no descriptor
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    return False


def _put(stream: BinaryIO, data: bytes) -> None:
    """Write and flush.

    Raises:
        BrokenPipeError: the reader has closed it.
        HostError: of another error, such as a full file system.
    """
    try:
        stream.write(data)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise HostError(f"output cannot be written: {error.strerror}.") from error
