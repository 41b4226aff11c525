"""The host's pipes on stdout and stderr, moved to file descriptors that no child inherits.

While any process holds one of the pipes, the host takes the plugin for alive and waits for it, even at its own shutdown
(go-plugin's client.go). So the pipes move to file descriptors with FD_CLOEXEC, and 0, 1 and 2 become /dev/null.
Python's output becomes log lines. The output of C libraries is lost, except for a crash, which faulthandler writes to
the log.
"""

import faulthandler
import fcntl
import logging
import os
import sys
from dataclasses import dataclass

from solo5_systemd.goplugin.hclog import HostLog, LoggedOutput, log_uncaught


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipes:
    """File descriptors of the pipes for the handshake line and for the log."""

    handshake: int
    log: int


def redirect_stdio() -> Pipes:
    """Move the host's pipes, and replace stdin, stdout and stderr by /dev/null."""
    handshake, log = (fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3) for descriptor in (1, 2))
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    return Pipes(handshake=handshake, log=log)


def log_to(descriptor: int) -> None:
    """Log to a file descriptor: log records, warnings, printed lines, unhandled exceptions and crashes."""
    logging.basicConfig(level=logging.INFO, handlers=[HostLog(descriptor)], force=True)
    logging.captureWarnings(capture=True)
    sys.stdout = sys.stderr = LoggedOutput()
    sys.excepthook = log_uncaught
    faulthandler.enable(descriptor)
