"""Replacement of this process by another program (execve(2))."""

import os
import resource
import signal
from collections.abc import Sequence
from typing import NoReturn

from solo5_systemd.base.errors import NotFoundError

IGNORED_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)
"""The signals that Python ignores. A program inherits this through execve(2), and a tender that ignores SIGPIPE hangs
with a dead main thread when the reader of its console exits."""


def check_executable(program: str) -> None:
    """Check that a program can be executed by this user.

    Raises:
        NotFoundError: it cannot.
    """
    if not os.access(program, os.X_OK):
        raise _error(program, "no such program, or no permission")


def execute(line: Sequence[str]) -> NoReturn:
    """Replace this process by a command line, which writes no core file; the program is an absolute path.

    Raises:
        NotFoundError: execve(2) fails.
    """
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it would contain the guest's memory
    try:
        os.execv(line[0], [*line])  # noqa: S606 - no shell is meant
    except OSError as error:
        raise _error(line[0], error.strerror or "") from error


def _error(program: str, reason: str) -> NotFoundError:
    from solo5_systemd.base.dependencies import advice

    return NotFoundError(f"{program} cannot be executed: {reason}.", advice(program))
