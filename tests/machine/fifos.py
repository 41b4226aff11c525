"""FIFOs as a log collector uses them: two per task, read, not read, or closed."""

import os
import select
import threading
from pathlib import Path


class Reader:
    """One FIFO and its read end, which is open, but read only after `start`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            os.mkfifo(path, 0o600)
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._leave = os.eventfd(0)
        self._thread = threading.Thread(target=self._read)
        self._lock = threading.Lock()
        self._got = bytearray()
        self.ended = self.reads = False

    def start(self) -> None:
        self.reads = True
        self._thread.start()

    @property
    def got(self) -> bytes:
        with self._lock:
            return bytes(self._got)

    def now(self) -> bytes:
        """Return the FIFO's content; for a reader that was not started."""
        got = b""
        while True:
            try:
                data = os.read(self._fd, 1 << 16)
            except BlockingIOError:
                return got
            if not data:
                self.ended = True
                return got
            got += data

    def is_over(self) -> bool:
        """Return whether the FIFO is empty and has no writer."""
        return not self.now() and self.ended

    def close(self) -> None:
        if self._thread.is_alive():
            os.eventfd_write(self._leave, 1)
            self._thread.join()
        for fd in (self._fd, self._leave):
            os.close(fd)

    def _read(self) -> None:
        poll = select.poll()
        poll.register(self._leave, select.POLLIN)
        poll.register(self._fd, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if self._leave in ready:
                return
            data = os.read(self._fd, 1 << 16) if ready.get(self._fd, 0) & select.POLLIN else b""
            if not data:
                self.ended = True
                return
            with self._lock:
                self._got += data
