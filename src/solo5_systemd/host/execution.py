"""This process, becoming another program."""

import os
import signal
from collections.abc import Sequence
from typing import NoReturn

from solo5_systemd.errors import NotFoundError

IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""What Python ignores, and what it executes would go on ignoring (execve(2)): a tender that does so hangs, its main
thread dead, when the reader of its console is gone."""


def execute(line: Sequence[str]) -> NoReturn:
    """Execute a command line, by an absolute path.

    Raises:
        NotFoundError: it cannot be.
    """
    for number in IGNORED:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execv(line[0], [*line])  # noqa: S606 - no shell is meant
    except OSError as error:
        from solo5_systemd.dependencies import advice

        raise NotFoundError(f"{line[0]} cannot be executed: {error.strerror}.", advice(line[0])) from error
