"""The tasks of one network namespace that may sleep or are dormant: their records, and the packets that wake them."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from solo5_systemd.base.errors import HostError, InvalidRequestError, NotFoundError, host_errors
from solo5_systemd.base.names import TaskName
from solo5_systemd.network.model import Lease, LeaseRecord, LeaseState, Reservation
from solo5_systemd.network.neighbours import Neighbours
from solo5_systemd.network.nft_elements import ACTIVE
from solo5_systemd.network.nft_rules import HEARD
from solo5_systemd.networkd.bridges import Bridges
from solo5_systemd.settings.network_policy import Network

T = TypeVar("T")


class Sleepers:
    """The tasks that may sleep or are dormant. Not thread-safe; exceptions state it. Raises HostError.

    Attributes:
        announces: packets that wake are announced; otherwise no task sleeps.
    """

    def __init__(self, bridges: Bridges) -> None:
        self._bridges, self._leases, self._tables = bridges, bridges.leases, bridges.tables
        self.announces = self._tables.announces
        self._before: Mapping[TaskName, int] = {}

    def records(self) -> Sequence[LeaseRecord]:
        """Return the records of attached tasks that may sleep or do; safe in any thread."""
        return [record for record in self._leases.attached() if record.reservation.idle_s or record.asleep]

    def frames(self) -> Mapping[TaskName, int]:
        """Return the frames from and to each task since its attach, or since it fell asleep."""
        before, self._before = self._before, {}
        found = {record.reservation.task: self._frames_of(record.reservation) for record in self.records()}
        return {task: before.get(task, 0) + count for task, count in found.items()}

    def keep_frames(self) -> None:
        """Have the next `frames` include those that are counted by now: the tables are about to be replaced."""
        with suppress(HostError):  # the tables of an earlier version
            self._before = self.frames()

    def check(self, reservation: Reservation, networks: Iterable[Network] = ()) -> None:
        """Refuse a task that packets could not wake; `networks`: those of its NICs that are not in use yet.

        Raises:
            NotFoundError: it has no NIC.
            InvalidRequestError: a LAN looks for an address of its guest that this host does not know.
            HostError: this kernel announces no packets.
        """
        task = reservation.task
        if not reservation.leases:
            raise NotFoundError(f"task {task} has no NIC on a network of this host, so no packet could wake it.")
        joined = {each.name for each in (*self._bridges.networks.values(), *networks) if each.join is not None}
        if any(lease.network in joined and lease.address is None for lease in reservation.leases):
            raise InvalidRequestError(
                f"task {task} is on a joined bridge without a leased address, by which the LAN could wake it.",
                "Give the NIC an address (ip=), or the network a pool.",
            )
        if not self.announces:
            raise HostError(
                f"task {task} cannot be woken by packets: expected a kernel with the module nfnetlink_log.",
                "modprobe nfnetlink_log && systemctl restart solo5-networkd",
            )

    def begin(self, task: TaskName, frames: int | None = None) -> bool:
        """Record that a task that is awake sleeps or ends, and then have packets for it announced or held.

        Return whether it is to get the signal. Raises as `check`, and HostError: then it is awake.

        Args:
            frames: the count with which it was found idle: with another one by now, or a packet that is held, it stays
                awake. None: with any.
        """
        record = self._leases.get(task)
        self.check(record.reservation if record else Reservation(task=task))
        if record is None or record.state is not LeaseState.ATTACHED:
            return False
        asleep = replace(record, asleep=time.time_ns() // 1000)
        self._leases.save(asleep)
        counters = [element for element in self._bridges.elements_of([record]) if element.name == ACTIVE]
        # A guest that falls asleep has one router advertisement.
        self._tables.forget_taps((lease.tap for lease in record.reservation.leases), HEARD)
        try:
            self._bridges.change_elements([record], [asleep])
            held = asleep.ends and any(self.packets(task, Neighbours.hold))
            # With another count, its guest may be about to answer.
            if frames is not None and (held or self._frames_of(record.reservation) != frames):
                self.end(task)
                if asleep.ends:
                    self.packets(task, Neighbours.deliver)
                return False
            self._tables.exchange(counters, counters)  # anew: they count from 0 on
        except HostError:
            self._leases.save(record)
            with suppress(HostError):  # the first one is the reason
                self._bridges.change_elements([asleep], [record])
            raise
        return True

    def _frames_of(self, reservation: Reservation) -> int:
        return sum(self._tables.active_of(lease.tap) for lease in reservation.leases)

    def end(self, task: TaskName) -> None:
        """Have packets for a task announced no longer, and then record that it is awake; idempotent."""
        record = self._leases.get(task)
        if record is not None and record.asleep:
            slept = record.slept + max(0, time.time_ns() // 1000 - record.asleep)
            awake = replace(record, asleep=0, wakes=record.wakes + 1, slept=slept)
            self._bridges.change_elements([record], [awake])
            self._leases.save(awake)

    def wait(self, record: LeaseRecord) -> None:
        """Record that a task waits, let its packets pass, by one nftables transaction, and have them held."""
        waiting = replace(record, state=LeaseState.WAITING, asleep=record.asleep or time.time_ns() // 1000)
        self._leases.save(waiting)
        self._bridges.change_elements([record], [waiting])
        self.packets(record.reservation.task, Neighbours.hold)

    def packets(
        self, task: TaskName, do: Callable[[Neighbours, str, Lease], T], only: Lease | None = None
    ) -> Sequence[T]:
        """Do what a method of `Neighbours` does with the packets for each NIC of a task, or for one of them."""
        record, networks = self._leases.get(task), self._bridges.networks
        leases = [each for each in (record.reservation.leases if record else ()) if each.network in networks]
        with host_errors(f"the kernel refused to change the neighbours of task {task}"):
            return [
                do(self._bridges.links.neighbours, networks[each.network].bridge, each)
                for each in leases
                if only in (None, each)
            ]
