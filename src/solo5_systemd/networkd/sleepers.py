"""The guests that sleep: their records, their frames, and what the kernel does with packets for them."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from solo5_systemd.base.names import TaskName
from solo5_systemd.network.links import Links
from solo5_systemd.network.model import LeaseRecord, LeaseState
from solo5_systemd.network.nft_tables import Tables
from solo5_systemd.networkd.bridges import Bridges
from solo5_systemd.networkd.leases import Leases


class Sleepers:
    """The tasks of one network namespace that may sleep. Not thread-safe, as `NetworkState`."""

    def __init__(self, leases: Leases, bridges: Bridges, links: Links, tables: Tables) -> None:
        self._leases = leases
        self._bridges = bridges
        self._links = links
        self._tables = tables

    def records(self) -> Sequence[LeaseRecord]:
        """Return the records of attached tasks that may sleep or do; safe in any thread."""
        return [record for record in self._leases.attached() if record.idle_s or record.asleep]

    def frames(self) -> Mapping[TaskName, int]:
        """Return the frames from and to each task, as far as they keep it awake; without zeros."""
        found: dict[TaskName, int] = {}
        for tap, count in self._tables.active().items():
            task = self._leases.allocations.taps.get(tap)
            if task is not None:
                found[task] = found.get(task, 0) + count
        return found

    def frames_of(self, task: TaskName) -> int:
        """Return the same of one task; costs one netlink message for each of its NICs."""
        record = self._leases.get(task)
        return sum(self._tables.active_of(lease.tap) for lease in record.reservation.leases) if record else 0

    def mark(self, task: TaskName) -> bool:
        """Record that a task sleeps, before anything else; return whether it is attached, and was awake."""
        record = self._leases.get(task)
        if record is None or record.state is not LeaseState.ATTACHED or record.asleep:
            return False
        self._leases.save(replace(record, asleep=time.time_ns() // 1000))
        return True

    def hold_packets(self, task: TaskName) -> bool:
        """Have the kernel hold packets for a task, and announce the first; return whether one is held already.

        Raises:
            HostError: the kernel refused.
        """
        record = self._leases.get(task)
        leases = record.reservation.leases if record else ()
        held = [self._links.hold_packets(lease, self._bridges.networks[lease.network]) for lease in leases]
        return any(held)

    def deliver_packets(self, task: TaskName) -> None:
        """Have the kernel send what it holds for a task, and what comes from now on; raises as `hold_packets`."""
        record = self._leases.get(task)
        for lease in record.reservation.leases if record else ():
            self._links.deliver_packets(lease, self._bridges.networks[lease.network])

    def unmark(self, task: TaskName) -> None:
        """Record that a task is awake, after all else."""
        record = self._leases.get(task)
        if record is not None and record.asleep:
            self._leases.save(replace(record, asleep=0))
