"""Progress messages on stderr for the person at the terminal."""

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CONSOLE_LINES = 40
_CONTROL = re.compile(r"\x1b\[[0-9;?!]*[A-Za-z]|[^\t\x20-\x7e\u00a0-\uffff]")


def progress(text: str) -> None:
    """Print *text* after the program's name, in one write, so that lines of several threads stay whole."""
    sys.stderr.write(f"{Path(sys.argv[0]).name}: {text}\n")
    sys.stderr.flush()


def not_running(name: str, state: dict[str, Any]) -> None:
    """Print systemd's verdict over a booted machine unless it is ``running``."""
    if state["state"] != "running":
        progress(f"{name} is {state['state']}; failed units: {' '.join(state['failed']) or 'none'}")


def show_console(console: Path) -> None:
    """Print the last lines of a machine's console, which has its emulator's own output as well."""
    if console.exists():
        plain = [_CONTROL.sub("", line) for line in console.read_text(errors="replace").splitlines()]
        last = [f"    {line}" for line in plain if line.strip()][-CONSOLE_LINES:]
        progress("the last of its console:\n" + "\n".join(last))


@contextmanager
def lasting(work: str, seconds: int) -> Iterator[None]:
    """Report the *work* done in this context, about *seconds* long: its begin, and how long it took."""
    progress(f"{work} (once, about {duration(seconds)}) …")
    began = time.monotonic()
    yield
    progress(f"… {work} took {duration(time.monotonic() - began)}")


def duration(seconds: float) -> str:
    """Return *seconds* as people write it: 45 s, 2 min 5 s, 8 min."""
    minutes, rest = divmod(round(seconds), 60)
    return " ".join([*([f"{minutes} min"] if minutes else []), *([f"{rest} s"] if rest or not minutes else [])])
