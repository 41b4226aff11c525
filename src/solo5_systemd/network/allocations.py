"""What the reservations of all tasks have in use: addresses, MACs, tap names and published ports."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeVar

from solo5_systemd.base.names import NetworkName, TaskName
from solo5_systemd.network.model import IpAddress, MacAddress, PortRequest, Protocol, Reservation

T = TypeVar("T")


class Allocations:
    """What the reservations of all tasks have in use. The cost of a lookup does not grow with the number of tasks.

    Attributes:
        addresses: the task of each address.
        macs: the task of each MAC address.
        taps: the task of each tap name.
        leases: the number of leases of each network.
        ports: the number of taps of each bridge.
    """

    def __init__(self, reservations: Iterable[Reservation] = ()) -> None:
        self.addresses: dict[IpAddress, TaskName] = {}
        self.macs: dict[MacAddress, TaskName] = {}
        self.taps: dict[str, TaskName] = {}
        self.leases: Counter[NetworkName] = Counter()
        self.ports: Counter[str] = Counter()
        # Tuples, since nearly always there is one: a dictionary for each port would take three times as much.
        self._published: dict[tuple[Protocol, int], tuple[tuple[PortRequest, TaskName], ...]] = {}
        for reservation in reservations:
            self.add(reservation)

    @property
    def guests(self) -> int:
        """The number of leases of all networks."""
        return len(self.taps)

    def published(self, protocol: Protocol, port: int) -> Iterator[tuple[PortRequest, TaskName]]:
        """Yield what is published at a port of the host, at any address, with its task."""
        yield from self._published.get((protocol, port), ())

    def add(self, reservation: Reservation) -> None:
        """Enter all values of a reservation."""
        for lease in reservation.leases:
            for address in lease.addresses:
                self.addresses[address] = reservation.task
            self.macs[lease.mac] = reservation.task
            self.taps[lease.tap] = reservation.task
            self.leases[lease.network] += 1
            self.ports[lease.bridge] += 1
        for port in reservation.ports:
            at = port.protocol, port.host_port
            others = (each for each in self._published.get(at, ()) if each[0] != port)
            self._published[at] = (*others, (port, reservation.task))

    def remove(self, reservation: Reservation) -> None:
        """Undo `add`; a value that another task has entered since stays that task's."""
        for lease in reservation.leases:
            for address in lease.addresses:
                _remove(self.addresses, address, reservation.task)
            _remove(self.macs, lease.mac, reservation.task)
            _remove(self.taps, lease.tap, reservation.task)
            self.leases[lease.network] -= 1
            self.ports[lease.bridge] -= 1
        for port in reservation.ports:
            at = port.protocol, port.host_port
            left = tuple(each for each in self._published.pop(at, ()) if each != (port, reservation.task))
            if left:
                self._published[at] = left


def _remove(entries: dict[T, TaskName], value: T, task: TaskName) -> None:
    if entries.get(value) == task:
        del entries[value]
