"""The tasks of one network namespace that may sleep: their records, and the packets that wake them."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from solo5_systemd.base.errors import HostError, InvalidRequestError, NotFoundError
from solo5_systemd.base.names import TaskName
from solo5_systemd.network.model import Lease, LeaseRecord, LeaseState
from solo5_systemd.network.nft_elements import ACTIVE
from solo5_systemd.network.nft_tables import Tables
from solo5_systemd.networkd.bridges import Bridges
from solo5_systemd.networkd.leases import Leases


class Sleepers:
    """The tasks that may sleep. Not thread-safe, as `NetworkState`; exceptions state it."""

    def __init__(self, leases: Leases, bridges: Bridges, tables: Tables) -> None:
        self._leases = leases
        self._bridges = bridges
        self._tables = tables

    def records(self) -> Sequence[LeaseRecord]:
        """Return the records of attached tasks that may sleep or do; safe in any thread."""
        return [record for record in self._leases.attached() if record.idle_s or record.asleep]

    def task(self, tap: str) -> TaskName | None:
        """Return the task of a tap; safe in any thread."""
        return self._leases.allocations.taps.get(tap)

    def is_asleep(self, task: TaskName) -> bool:
        """Return whether a task sleeps; safe in any thread."""
        record = self._leases.get(task)
        return record is not None and record.asleep != 0

    def frames(self) -> Mapping[TaskName, int]:
        """Return the frames from and to each task since its attach, or since it fell asleep; without zeros."""
        found: dict[TaskName, int] = {}
        for tap, count in self._tables.active().items():
            task = self.task(tap)
            if task is not None:
                found[task] = found.get(task, 0) + count
        return found

    def check(self, task: TaskName) -> None:
        """Refuse a task that nothing could wake.

        Raises:
            NotFoundError: it has no NIC on a network of the host.
            InvalidRequestError: a LAN looks for an address of its guest that this host does not know.
            HostError: this kernel announces no packets.
        """
        record = self._leases.get(task)
        if record is None or not record.reservation.leases:
            raise NotFoundError(
                f"task {task} has no NIC on a network of this host: expected one, whose packets wake it."
            )
        if any(self._is_unaddressed(lease) for lease in record.reservation.leases):
            raise InvalidRequestError(
                f"task {task} is on a joined bridge without a leased address: expected one, for which machines of the "
                "LAN ask.",
                "Give the NIC an address (ip=), or the network a pool.",
            )
        if not self._tables.announces:
            raise HostError(
                f"task {task} cannot be woken by packets: expected a kernel with the module nfnetlink_log.",
                "modprobe nfnetlink_log",
            )

    def _is_unaddressed(self, lease: Lease) -> bool:
        return self._bridges.joins(lease) and lease.address is None

    def begin(self, task: TaskName) -> bool:
        """Record that a task sleeps, and then have packets for it announced; return whether it was awake.

        Raises:
            HostError: nftables refused it.
        """
        record = self._leases.get(task)
        if record is None or record.state is not LeaseState.ATTACHED or record.asleep:
            return False
        self._leases.save(replace(record, asleep=time.time_ns() // 1000))
        own = self._bridges.task_elements(record.reservation)
        counters = [element for element in own if element.name == ACTIVE]
        asleep = self._bridges.asleep_elements(record.reservation)
        self._tables.exchange(counters, (*counters, *asleep))  # anew: they count from 0 on
        return True

    def end(self, task: TaskName) -> None:
        """Have packets for a task announced no longer, and then record that it is awake; idempotent.

        Raises:
            HostError: nftables refused it.
        """
        record = self._leases.get(task)
        if record is not None and record.asleep:
            self._bridges.delete_from_tables(self._bridges.asleep_elements(record.reservation))
            self._leases.save(replace(record, asleep=0))
