"""What systemd keeps for the relay over its restarts: the FIFOs, and the pipes that lead to them."""

import os
from collections.abc import Mapping

from solo5_systemd.daemon import fdstore
from solo5_systemd.journal.export import Stream
from solo5_systemd.names import TaskName
from solo5_systemd.relay.staging import Staging


class Kept:
    """What was kept, by name, until somebody takes it."""

    def __init__(self, descriptors: Mapping[str, int]) -> None:
        self._left = dict(descriptors)

    def take_fifo(self, task: TaskName, stream: Stream) -> int | None:
        return self._left.pop(_fifo(task, stream), None)

    def take_staging(self, task: TaskName, stream: Stream) -> Staging | None:
        fd = self._left.pop(_staging(task, stream), None)
        return None if fd is None else Staging(fd)

    def drop(self) -> None:
        """Close, and have systemd close, what nobody has taken."""
        for name, fd in self._left.items():
            os.close(fd)
            fdstore.forget(name)


def store_fifo(task: TaskName, stream: Stream, fd: int) -> None:
    """Have a FIFO kept in the place of an earlier one."""
    fdstore.forget(_fifo(task, stream))
    fdstore.store(_fifo(task, stream), fd)


def new_staging(task: TaskName, stream: Stream) -> Staging:
    """A pipe that is kept from now on."""
    staging = Staging()
    fdstore.store(_staging(task, stream), staging.fd)
    return staging


def forget(task: TaskName) -> None:
    for stream in Stream:
        fdstore.forget(_fifo(task, stream))
        fdstore.forget(_staging(task, stream))


def _fifo(task: TaskName, stream: Stream) -> str:
    return f"{stream}-{task}"


def _staging(task: TaskName, stream: Stream) -> str:
    return f"{stream}.staging-{task}"
