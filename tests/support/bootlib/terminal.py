"""An interactive shell in the machine, on the terminal of whoever started it."""

import os
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager

from .channel import CHUNK, Kind
from .session import Session


def shell(session: Session, backend: str) -> int:
    """Connect this terminal with a login shell in the machine until that ends; return its exit status."""
    keyboard = sys.stdin.fileno()
    with _raw(keyboard):
        signal.signal(signal.SIGWINCH, lambda *_: session.channel.send_json(Kind.WINDOW, _size(keyboard)))
        threading.Thread(target=_type, args=(session, keyboard), daemon=True).start()
        return session.run(["bash", "--login"], backend, window=_size(keyboard))


def _type(session: Session, keyboard: int) -> None:
    while data := os.read(keyboard, CHUNK):
        session.channel.send(Kind.INPUT, data)


def _size(keyboard: int) -> tuple[int, int]:
    size = os.get_terminal_size(keyboard)
    return size.lines, size.columns


@contextmanager
def _raw(keyboard: int) -> Iterator[None]:
    before = termios.tcgetattr(keyboard)
    tty.setraw(keyboard)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
