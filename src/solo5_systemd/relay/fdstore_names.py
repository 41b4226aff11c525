"""What systemd keeps for the relay over its restarts: the FIFOs, and the pipes that lead to them.

Their names are a letter and the record's number. systemd hands all names back in one environment variable, for which
the kernel has 128 KiB: with tasks' names in them, a relay of a thousand tasks could not be executed again.
"""

import os
from collections.abc import Mapping

from solo5_systemd.daemon import fdstore
from solo5_systemd.journal.export import Stream
from solo5_systemd.relay.fifo_writer import Staging

_LETTERS = {Stream.STDOUT: "o", Stream.STDERR: "e"}


class Kept:
    """What was kept, by name, until somebody takes it."""

    def __init__(self, descriptors: Mapping[str, int]) -> None:
        self._left = dict(descriptors)

    def take_fifo(self, number: int, stream: Stream) -> int | None:
        return self._left.pop(_fifo(number, stream), None)

    def take_staging(self, number: int, stream: Stream) -> Staging | None:
        fd = self._left.pop(_staging(number, stream), None)
        return None if fd is None else Staging(fd)

    def drop(self) -> None:
        """Close, and have systemd close, what nobody has taken."""
        for name, fd in self._left.items():
            os.close(fd)
            fdstore.forget(name)


def store_fifo(number: int, stream: Stream, fd: int) -> None:
    """Have a FIFO kept in the place of an earlier one."""
    fdstore.forget(_fifo(number, stream))
    fdstore.store(_fifo(number, stream), fd)


def new_staging(number: int, stream: Stream) -> Staging:
    """A pipe that is kept from now on."""
    staging = Staging()
    fdstore.store(_staging(number, stream), staging.fd)
    return staging


def forget(number: int) -> None:
    for stream in Stream:
        fdstore.forget(_fifo(number, stream))
        fdstore.forget(_staging(number, stream))


def _fifo(number: int, stream: Stream) -> str:
    return f"{_LETTERS[stream]}{number}"


def _staging(number: int, stream: Stream) -> str:
    return f"{_LETTERS[stream].upper()}{number}"
