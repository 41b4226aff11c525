"""The tasks of the host's networks that wait, without a process, for their first packet."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from stat import S_ISFIFO
from typing import TypeVar

from solo5_systemd.base.errors import Solo5Error, host_errors
from solo5_systemd.base.names import WAITING, TaskName
from solo5_systemd.network.model import Lease, LeaseRecord, LeaseState, Reservation
from solo5_systemd.network.neighbours import Neighbours
from solo5_systemd.networkd.bridges import Bridges

T = TypeVar("T")

FIFOS = Path(WAITING)
"""One FIFO for each task whose socket unit is active: PID 1 starts the task's service once something is in it."""


class Waiting:
    """Tasks that wait. Not thread-safe, as `NetworkState`; exceptions state it.

    Attributes:
        ending: those that are about to end, or are being released: packets for them are held, and not delivered.
    """

    def __init__(self, bridges: Bridges) -> None:
        self._bridges, self._leases = bridges, bridges.leases
        self.ending: set[TaskName] = set()

    def may_wait(self, task: TaskName) -> bool:
        """Return whether a task is to wait when it has ended: PID 1 reads its FIFO; safe in any thread."""
        record = self._leases.get(task)
        return record is not None and record.reservation.idle_stops and self.is_read(task)

    def has_fifo(self, task: TaskName) -> bool:
        """Return whether the socket unit of a task is active; safe in any thread."""
        try:
            return S_ISFIFO(os.lstat(_fifo(task)).st_mode)
        except OSError:
            return False

    def is_waiting(self, task: TaskName) -> bool:
        """Return whether a task waits; safe in any thread."""
        record = self._leases.get(task)
        return record is not None and record.waits

    def is_expected(self, task: TaskName) -> bool:
        """Return whether a task waits, and its socket unit is active; safe in any thread."""
        return self.is_waiting(task) and self.has_fifo(task)

    def start(self, task: TaskName) -> bool:
        """Have PID 1 start a task; return whether it reads its FIFO. Safe in any thread."""
        return self._write(task, b"\n")

    def is_read(self, task: TaskName) -> bool:
        """Return whether PID 1 reads the FIFO of a task; safe in any thread.

        It closes that of a socket unit whose file was gone at a daemon-reload, and leaves the unit active.
        """
        return self._write(task, b"")

    def _write(self, task: TaskName, content: bytes) -> bool:
        if not self.has_fifo(task):
            return False
        try:
            descriptor = os.open(_fifo(task), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.write(descriptor, content)
            finally:
                os.close(descriptor)
        except BlockingIOError:  # full: PID 1 has not read the earlier ones yet
            return True
        except OSError:  # PID 1 has closed it
            return False
        return True

    def remove_fifo(self, task: TaskName) -> None:
        """Remove a FIFO that PID 1 has closed, as the end of its socket unit would."""
        with suppress(OSError):
            os.unlink(_fifo(task))  # noqa: PTH108 - a text

    def begin(self, record: LeaseRecord) -> None:
        """Record that a task waits, let its packets pass, by one nftables transaction, and have them held.

        Raises:
            HostError: nftables or the kernel refused it.
        """
        waiting = replace(record, state=LeaseState.WAITING, asleep=time.time_ns() // 1000)
        self._leases.save(waiting)
        self._bridges.change_elements([record], [waiting])
        self.packets(record.reservation.task, Neighbours.hold)

    def packets(
        self, task: TaskName, do: Callable[[Neighbours, str, Lease], T], only: Lease | None = None
    ) -> Sequence[T]:
        """Do what a method of `Neighbours` does with the packets for each NIC of a task, or for one of them.

        Raises:
            HostError: the kernel refused.
        """
        record, networks = self._leases.get(task), self._bridges.networks
        leases = [each for each in (record.reservation.leases if record else ()) if each.network in networks]
        leases = [each for each in leases if only in (None, each)]
        with host_errors(f"the kernel refused to change the neighbours of task {task}"):
            return [do(self._bridges.links.neighbours, networks[each.network].bridge, each) for each in leases]

    def forget(self, reservation: Reservation) -> None:
        """Drop what the kernel holds for a task that waits no longer: after `Neighbours.keep`, without end."""
        if reservation.idle_stops:
            with suppress(Solo5Error):  # another program has deleted the bridge, and the entries with it
                self.packets(reservation.task, Neighbours.refuse)

    def names(self) -> Iterator[TaskName]:
        """Yield the tasks with a FIFO."""
        try:
            names: Sequence[str] = os.listdir(FIFOS)  # noqa: PTH208 - for strings
        except OSError:
            return
        for name in names:
            task = TaskName(name)
            if self.has_fifo(task):
                yield task


def _fifo(task: TaskName) -> str:
    return f"{FIFOS}/{task}"  # no Path, as in lease_files
