"""Python's logging as lines of HashiCorp's hclog in JSON, written to the host's pipe by a thread.

The format is that which go-plugin's host parses (client.go, log_entry.go). The host panics at an @-key that is not a
string, takes a time of another layout for plain text, and cuts lines at 64 KiB. It parses numbers as floats, and would
print a million as 1e+06, so values are strings.

While any process holds one of the pipes on stdout and stderr, the host takes the plugin for alive and waits for it,
even at its own shutdown (go-plugin's client.go). So the pipes move to file descriptors with FD_CLOEXEC, and 0, 1 and 2
become /dev/null. Python's output becomes log lines. The output of C libraries is lost, except for a crash, which
faulthandler writes to the log.
"""

import faulthandler
import fcntl
import io
import json
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType

LINE_MAX_BYTES = 60_000
"""Bytes of a line, within the host's 64 KiB."""


def log_line(*, level: str, message: str, time: float, fields: Mapping[str, object]) -> bytes:
    """Return a log line, newline included.

    Args:
        level: trace, debug, info, warn or error.
        message: one sentence; several lines are joined.
        time: seconds since the epoch.
        fields: printed by the host as key=value; values of several lines, below the message.
    """
    head = {
        "@level": level,
        "@message": " | ".join(message.splitlines()),
        "@timestamp": datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }
    entry = head | {key.lstrip("@") or "at": _plain(value) for key, value in fields.items()}
    while len(encoded := _encoded(entry)) > LINE_MAX_BYTES:
        _shorten(entry)
    return encoded


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _encoded(entry: Mapping[str, str]) -> bytes:
    text = json.dumps(entry, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace") + b"\n"  # a file name may have bytes that are not Unicode


def _shorten(entry: dict[str, str]) -> None:
    """Halve the longest value, by removing its middle."""
    key = max(entry, key=lambda key: len(entry[key]))
    value = entry.pop(key)
    if quarter := len(value) // 4:
        entry[key] = f"{value[:quarter]} … {value[-quarter:]}"


QUEUE_LINES = 2000
"""Lines in the queue for a slow host; further ones are dropped and counted."""

_CLOSE_TIMEOUT_S = 0.2
"""Seconds that `close` waits for room in the queue, and as many for the queue to be written."""


class HostLog(logging.Handler):
    """A handler that writes JSON lines to *descriptor* from a thread, so that logging never blocks on the host.

    `extra={"fields": {…}}` becomes key=value. If the host has died, lines are discarded.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: queue.Queue[bytes | None] = queue.Queue(QUEUE_LINES)
        self._dropped = 0
        self._writer = threading.Thread(target=self._write, name="log", daemon=True)
        self._writer.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record, or count it as dropped if the queue is full."""
        self._report_dropped()
        if not self._queued(_record_line(record)):
            self._dropped += 1

    def close(self) -> None:
        """Write the queue, unless the host is too slow."""
        self._report_dropped(_CLOSE_TIMEOUT_S)
        if self._queued(None, _CLOSE_TIMEOUT_S):
            self._writer.join(_CLOSE_TIMEOUT_S)
        super().close()

    def _report_dropped(self, timeout_s: float = 0) -> None:
        """Log the number of dropped lines, once the queue has room."""
        if not self._dropped:
            return
        message = f"dropped {self._dropped} log lines before this one: the host reads this log too slowly"
        if self._queued(log_line(level="warn", message=message, time=time.time(), fields={}), timeout_s):
            self._dropped = 0

    def _queued(self, line: bytes | None, timeout_s: float = 0) -> bool:
        try:
            self._lines.put(line, timeout=timeout_s)
        except queue.Full:
            return False
        return True

    def _write(self) -> None:
        broken = False
        while (line := self._lines.get()) is not None:
            # After an error lines are still taken from the queue, and discarded.
            broken = broken or not _written(self._descriptor, line)


class LoggedOutput(io.TextIOBase):
    """A replacement of stdout and stderr that logs each printed line, since the host's pipes are for the protocol."""

    def __init__(self) -> None:
        self._rest = ""

    def write(self, text: str) -> int:
        """Log the complete lines, and keep the rest."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in filter(str.strip, lines):
            logging.getLogger(__name__).warning("%s", line)
        return len(text)


def log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Log an unhandled exception in one line; a `sys.excepthook`."""
    logging.getLogger(__name__).critical("unhandled exception: %s", error, exc_info=(kind, error, traceback))


def _record_line(record: logging.LogRecord) -> bytes:
    fields = dict(getattr(record, "fields", {}))
    if record.exc_info:
        fields["traceback"] = logging.Formatter().formatException(record.exc_info)
    return log_line(level=_level(record.levelno), message=record.getMessage(), time=record.created, fields=fields)


def _level(number: int) -> str:
    names = {logging.ERROR: "error", logging.WARNING: "warn", logging.INFO: "info", logging.DEBUG: "debug"}
    return next((name for least, name in names.items() if number >= least), "trace")


def _written(descriptor: int, line: bytes) -> bool:
    """Write a line, and return whether the pipe still has a reader."""
    try:
        while line:
            line = line[os.write(descriptor, line) :]
    except OSError:
        return False
    return True


def redirect_stdio() -> tuple[int, int]:
    """Replace stdin, stdout and stderr by /dev/null; return the pipes for the handshake line and for the log."""
    handshake, log = (fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3) for descriptor in (1, 2))
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    return handshake, log


def log_to(descriptor: int) -> None:
    """Log to a file descriptor: log records, warnings, printed lines, unhandled exceptions and crashes."""
    logging.basicConfig(level=logging.INFO, handlers=[HostLog(descriptor)], force=True)
    logging.captureWarnings(capture=True)
    sys.stdout = sys.stderr = LoggedOutput()
    sys.excepthook = log_uncaught
    faulthandler.enable(descriptor)
