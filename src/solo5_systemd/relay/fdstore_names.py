"""Names of the relay's descriptors in systemd's fd store: its FIFOs and staging pipes.

A name is one letter and the console's number. systemd passes all names in LISTEN_FDNAMES, and execve(2) limits a
variable to 128 KiB: with the names of tasks, a relay with a thousand tasks could not be executed again.
"""

import os
from collections.abc import Mapping

from solo5_systemd.daemon import fdstore
from solo5_systemd.journal.lines import Stream
from solo5_systemd.relay.fifo_writer import StagingPipe

_LETTERS = {Stream.STDOUT: "o", Stream.STDERR: "e"}


class StoredDescriptors:
    """The descriptors that systemd passed at start, by name; each can be taken once."""

    def __init__(self, descriptors: Mapping[str, int]) -> None:
        self._left = dict(descriptors)

    def take_fifo(self, number: int, stream: Stream) -> int | None:
        """Return the descriptor of a FIFO, now the caller's; None: it was not stored."""
        return self._left.pop(_fifo_name(number, stream), None)

    def take_staging_pipe(self, number: int, stream: Stream) -> StagingPipe | None:
        """Return a staging pipe, now the caller's; None: it was not stored."""
        fd = self._left.pop(_staging_name(number, stream), None)
        return None if fd is None else StagingPipe(fd)

    def discard(self) -> None:
        """Close the descriptors that were not taken, and remove them from the fd store."""
        for name, fd in self._left.items():
            os.close(fd)
            fdstore.remove(name)


def store_fifo(number: int, stream: Stream, fd: int) -> None:
    """Store a FIFO in the place of an earlier one."""
    fdstore.remove(_fifo_name(number, stream))
    fdstore.store(_fifo_name(number, stream), fd)


def create_staging_pipe(number: int, stream: Stream) -> StagingPipe:
    """Return a new staging pipe, which is stored from now on."""
    staging = StagingPipe()
    fdstore.store(_staging_name(number, stream), staging.fd)
    return staging


def remove(number: int) -> None:
    """Remove the descriptors of a console from the fd store."""
    for stream in Stream:
        fdstore.remove(_fifo_name(number, stream))
        fdstore.remove(_staging_name(number, stream))


def _fifo_name(number: int, stream: Stream) -> str:
    return f"{_LETTERS[stream]}{number}"


def _staging_name(number: int, stream: Stream) -> str:
    return f"{_LETTERS[stream].upper()}{number}"
