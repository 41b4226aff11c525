"""The tasks of one network namespace that may sleep: their records, and the packets that wake them."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from solo5_systemd.base.errors import HostError, InvalidRequestError, NotFoundError
from solo5_systemd.base.names import NetworkName, TaskName
from solo5_systemd.network.model import LeaseRecord, LeaseState, Reservation
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
        return [record for record in self._leases.attached() if record.reservation.idle_s or record.asleep]

    def frames(self) -> Mapping[TaskName, int]:
        """Return the frames from and to each task since its attach, or since it fell asleep; without zeros."""
        found: dict[TaskName, int] = {}
        for tap, count in self._tables.active().items():
            task = self._leases.allocations.taps.get(tap)
            if task is not None:
                found[task] = found.get(task, 0) + count
        return found

    def check(self, reservation: Reservation, joined: Collection[NetworkName] = ()) -> None:
        """Refuse a task that packets could not wake.

        Args:
            reservation: of the task.
            joined: the networks that join an existing bridge, besides those in use.

        Raises:
            NotFoundError: it has no NIC.
            InvalidRequestError: a LAN looks for an address of its guest that this host does not know.
            HostError: this kernel announces no packets.
        """
        task = reservation.task
        if not reservation.leases:
            raise NotFoundError(f"task {task} has no NIC on a network of this host: expected one to be woken by.")
        for lease in reservation.leases:
            if lease.address is None and (self._bridges.joins(lease) or lease.network in joined):
                raise InvalidRequestError(
                    f"task {task} is on joined network {lease.network} without a leased address: expected one, for "
                    "which the machines of the LAN ask.",
                    "Give the NIC an address (ip=), or the network a pool.",
                )
        if not self._tables.announces:
            raise HostError(
                f"task {task} cannot be woken by packets: expected a kernel with the module nfnetlink_log.",
                "modprobe nfnetlink_log",
            )

    def begin(self, task: TaskName) -> bool:
        """Record that a task sleeps, and then have packets for it announced; return whether it was awake.

        Raises:
            NotFoundError, InvalidRequestError, HostError: as `check`; nftables refused it.
        """
        record = self._leases.get(task)
        self.check(record.reservation if record else Reservation(task=task))
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
