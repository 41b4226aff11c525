"""Where `solo5ctl` writes: two byte streams, each a terminal or not."""

import os
import sys
import time
from collections.abc import Mapping
from typing import BinaryIO

from solo5_systemd.cli.render import json_text, visible_line
from solo5_systemd.errors import Solo5Error
from solo5_systemd.text import visible

_COLOURS = {"green": "32", "yellow": "33", "red": "31", "bold": "1"}
_CLEAR = "\x1b[H\x1b[J"


class Screen:
    """Standard output and standard error.

    Args:
        out: standard output.
        err: standard error.
        environment: NO_COLOR (no-color.org) and TERM are looked at.
    """

    def __init__(self, out: BinaryIO, err: BinaryIO, environment: Mapping[str, str]) -> None:
        self._out = out
        self._err = err
        self.is_terminal = out.isatty()
        self._err_is_terminal = err.isatty()
        self.colour = self.is_terminal and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"

    def write(self, text: str) -> None:
        _put(self._out, text.encode("utf-8", "surrogateescape"))

    def json(self, value: object) -> None:
        self.write(json_text(value))

    def redraw(self, text: str) -> None:
        """Replace what stands on the terminal; elsewhere, follow it."""
        self.write(_CLEAR + text if self.is_terminal else text)

    def paint(self, text: str, colour: str) -> str:
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self.colour and colour else text

    def copy(self, line: bytes, *, to_err: bool, prefix: str = "") -> None:
        """One line of a console: as it is, except where a terminal would obey it."""
        stream, is_terminal = (self._err, self._err_is_terminal) if to_err else (self._out, self.is_terminal)
        _put(stream, prefix.encode() + (visible_line(line) if is_terminal else line) + b"\n")

    def say(self, sentence: str) -> None:
        """Write a remark, beside what was asked for; what it quotes does not steer a terminal."""
        lines = "\n".join(map(visible, sentence.split("\n")))
        _put(self._err, f"solo5ctl: {lines}\n".encode())

    def complain(self, error: Solo5Error) -> None:
        self.say(f"{error.sentence}\n{error.hint}" if error.hint else error.sentence)

    def now(self) -> int:
        """Microseconds since the epoch."""
        return time.time_ns() // 1000


def process_screen() -> Screen:
    return Screen(sys.stdout.buffer, sys.stderr.buffer, os.environ)


def abandon_output() -> None:
    """Nobody reads standard output any more: let what the interpreter still flushes at its end go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _put(stream: BinaryIO, data: bytes) -> None:
    stream.write(data)
    stream.flush()
