"""Python's logging as lines of HashiCorp's hclog in JSON, written to the host's pipe.

The format is that which go-plugin's host parses (client.go, log_entry.go). The host panics at an @-key that is not a
string, takes a time of another layout for plain text, and cuts lines at 64 KiB.

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
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime

LINE_MAX_BYTES = 60_000
"""Bytes of a line, within the host's 64 KiB."""

PIPE_BYTES = 1 << 20
"""Bytes in the pipe to a slow host; further lines are dropped and counted. The kernel's limit for other users than root
(pipe(7), pipe-max-size)."""

_LEVELS = {logging.ERROR: "error", logging.WARNING: "warn", logging.INFO: "info", logging.NOTSET: "debug"}


def log_line(*, level: str, message: str, time: float, traceback: str = "") -> bytes:
    """Return a log line, newline included.

    Args:
        level: debug, info, warn or error.
        time: seconds since the epoch.
        traceback: printed by the host below the message; may be empty.
    """
    entry = {
        "@level": level,
        "@message": " | ".join(message.splitlines()),
        "@timestamp": datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }
    if traceback:
        entry["traceback"] = traceback
    while True:
        text = json.dumps(entry, ensure_ascii=False, separators=(",", ":"))
        encoded = text.encode(errors="replace") + b"\n"  # a file name may have bytes that are not Unicode
        if len(encoded) <= LINE_MAX_BYTES:
            return encoded
        longest = max(entry, key=lambda key: len(entry[key]))
        quarter = len(entry[longest]) // 4
        entry[longest] = f"{entry[longest][:quarter]} … {entry[longest][-quarter:]}"


class HostLog(logging.Handler):
    """A handler that writes JSON lines to the pipe *descriptor*, never waits, and drops lines after the host's end."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._rest = b""  # of a line that the pipe had room for in part
        self._dropped = 0
        os.set_blocking(descriptor, False)
        with suppress(OSError):  # too many pipes of this user: it stays as small as it is
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or count it as dropped if the pipe is full."""
        if self._dropped:
            message = f"dropped {self._dropped} log lines before this one: the host reads this log too slowly"
            if self._written(log_line(level="warn", message=message, time=time.time())):
                self._dropped = 0
        level = next(name for least, name in _LEVELS.items() if record.levelno >= least)
        traceback = logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
        line = log_line(level=level, message=record.getMessage(), time=record.created, traceback=traceback)
        if not self._written(line):
            self._dropped += 1

    def _written(self, line: bytes) -> bool:
        """Return whether the pipe has room for a line, or for its beginning."""
        self._flush()
        if self._rest:  # lines may not mix: the rest of an earlier one comes first
            return False
        self._rest = line
        self._flush()
        if len(self._rest) == len(line):
            self._rest = b""
            return False
        return True

    def _flush(self) -> None:
        try:
            while self._rest:
                self._rest = self._rest[os.write(self._descriptor, self._rest) :]
        except BlockingIOError:  # the pipe is full: the rest goes with the next line
            pass
        except OSError:
            self._rest = b""


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


def take_over_stdio() -> int:
    """Replace stdin, stdout and stderr by /dev/null, and log to the pipe of stderr; return that of stdout."""
    handshake, log = (fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3) for descriptor in (1, 2))
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    logging.basicConfig(level=logging.INFO, handlers=[HostLog(log)], force=True)
    logging.captureWarnings(capture=True)
    sys.stdout = sys.stderr = LoggedOutput()
    log_uncaught = logging.getLogger(__name__).critical
    sys.excepthook = lambda *raised: log_uncaught("unhandled exception: %s", raised[1], exc_info=raised)
    faulthandler.enable(log)
    return handshake
