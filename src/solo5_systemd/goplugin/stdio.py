"""The host's two pipes: ours alone, whatever else prints and whomever we start.

While any process holds one of them, the host takes the plugin for alive and waits for it, even at its own shutdown
(go-plugin's client.go). So they move to descriptors that close on execution, and 0, 1 and 2 become /dev/null: no child
can inherit a pipe, however it is started. What Python prints becomes log lines. What a C library prints is lost, as
nobody could act on it; but a crash in one is told on the log's pipe, by faulthandler.
"""

import faulthandler
import fcntl
import logging
import os
import sys
from dataclasses import dataclass

from solo5_systemd.goplugin.hclog import HostLog, Printed, log_uncaught


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipes:
    """Descriptors: what the host reads the handshake from, and what it reads the log from."""

    handshake: int
    log: int


def take_pipes() -> Pipes:
    """Keep the host's pipes, and give everybody else /dev/null."""
    handshake, log = (fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3) for descriptor in (1, 2))
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    return Pipes(handshake=handshake, log=log)


def log_to(descriptor: int) -> None:
    """Make *descriptor* the log of everything in this process."""
    logging.basicConfig(level=logging.INFO, handlers=[HostLog(descriptor)], force=True)
    logging.captureWarnings(capture=True)
    sys.stdout = sys.stderr = Printed()
    sys.excepthook = log_uncaught
    faulthandler.enable(descriptor)
