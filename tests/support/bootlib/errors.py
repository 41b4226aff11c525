"""What can go wrong around a machine, as one sentence for the person who started it, and as an exit status."""

import signal
import sys
from collections.abc import Callable

from .report import progress

FAILED, TIMED_OUT = 125, 124  # as env(1) and timeout(1) answer; everything else is the command's own


class MachineError(Exception):
    """The machine could not be made, booted or spoken to."""


class MachineGoneError(MachineError):
    """The machine ended before the command did: it was powered off, crashed or killed."""


class MachineTimeoutError(MachineError):
    """The machine did not boot, or the command did not end, within its time."""


def status_of(act: Callable[[], int]) -> int:
    """Return the exit status of a program: what *act* returns, or that of its failure, which is reported."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        return act()
    except MachineError as error:
        progress(str(error))
        return TIMED_OUT if isinstance(error, MachineTimeoutError) else FAILED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
