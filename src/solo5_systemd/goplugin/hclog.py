"""The log: Python's logging on the host's pipe, which may be slow to drain, or broken."""

import io
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType

from solo5_systemd.goplugin import hclog

# A log line as HashiCorp's hclog writes it in JSON, and as go-plugin's host reads it (client.go, log_entry.go).
#
# The host panics at an @-key that is no string, takes a time of any other layout for plain text, and cuts lines at
# 64 KiB. It reads numbers as floats and would print a million as 1e+06, so values travel as text.

LONGEST = 60_000
"""Bytes, within the host's 64 KiB."""


def line(*, level: str, message: str, time: float, fields: Mapping[str, object]) -> bytes:
    """One line, newline included.

    Args:
        level: trace, debug, info, warn or error.
        message: one sentence; should it have several lines, they are joined.
        time: seconds since the epoch.
        fields: the host shows each as key=value; a value of several lines, below the message.
    """
    head = {
        "@level": level,
        "@message": " | ".join(message.splitlines()),
        "@timestamp": datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }
    entry = head | {key.lstrip("@") or "at": _plain(value) for key, value in fields.items()}
    while len(encoded := _encoded(entry)) > LONGEST:
        _shorten(entry)
    return encoded


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _encoded(entry: Mapping[str, str]) -> bytes:
    text = json.dumps(entry, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace") + b"\n"  # a file name may hold what is not Unicode


def _shorten(entry: dict[str, str]) -> None:
    """Halve the longest value: how it begins and how it ends says most."""
    key = max(entry, key=lambda key: len(entry[key]))
    value = entry.pop(key)
    if quarter := len(value) // 4:
        entry[key] = f"{value[:quarter]} … {value[-quarter:]}"


QUEUED = 2000
"""Lines that wait for a slow host before further ones are dropped, and counted."""

_FAREWELL = 0.2
"""Seconds that the last lines may take when we leave, to be queued and to be written."""


class HostLog(logging.Handler):
    """Writes records to *descriptor* as hclog's JSON lines, from a thread: whoever logs never waits for the host.

    `extra={"fields": {…}}` becomes key=value. When the host is gone, so is the log, and nothing else.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: queue.Queue[bytes | None] = queue.Queue(QUEUED)
        self._lost = 0
        self._writer = threading.Thread(target=self._write, name="log", daemon=True)
        self._writer.start()

    def emit(self, record: logging.LogRecord) -> None:
        self._own_up()
        if not self._queued(_line(record)):
            self._lost += 1

    def close(self) -> None:
        """Write what is queued, if the host takes it soon."""
        self._own_up(_FAREWELL)
        if self._queued(None, _FAREWELL):
            self._writer.join(_FAREWELL)
        super().close()

    def _own_up(self, patience: float = 0) -> None:
        """Say how many lines were dropped, as soon as there is room to say it."""
        if not self._lost:
            return
        message = f"the host reads this log too slowly: {self._lost} lines before this one are lost"
        if self._queued(hclog.line(level="warn", message=message, time=time.time(), fields={}), patience):
            self._lost = 0

    def _queued(self, line: bytes | None, patience: float = 0) -> bool:
        try:
            self._lines.put(line, timeout=patience)
        except queue.Full:
            return False
        return True

    def _write(self) -> None:
        broken = False
        while (line := self._lines.get()) is not None:
            broken = broken or not _written(self._descriptor, line)


class Printed(io.TextIOBase):
    """A stdout and stderr whose lines are log lines: what a library prints is seen, and breaks no protocol."""

    def __init__(self) -> None:
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in filter(str.strip, lines):
            logging.getLogger(__name__).warning("%s", line)
        return len(text)


def log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Be `sys.excepthook`, in one line of the log."""
    logging.getLogger(__name__).critical("the plugin fails: %s", error, exc_info=(kind, error, traceback))


def _line(record: logging.LogRecord) -> bytes:
    fields = dict(getattr(record, "fields", {}))
    if record.exc_info:
        fields["traceback"] = logging.Formatter().formatException(record.exc_info)
    return hclog.line(level=_level(record.levelno), message=record.getMessage(), time=record.created, fields=fields)


def _level(number: int) -> str:
    names = {logging.ERROR: "error", logging.WARNING: "warn", logging.INFO: "info", logging.DEBUG: "debug"}
    return next((name for least, name in names.items() if number >= least), "trace")


def _written(descriptor: int, line: bytes) -> bool:
    """Whether the host took it: its pipe is broken when it has died, and stays so."""
    try:
        while line:
            line = line[os.write(descriptor, line) :]
    except OSError:
        return False
    return True
