"""The addresses, MACs, tap names and ports in use, indexed by value."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Address
from typing import TypeVar

from solo5_systemd.names import NetworkName, TaskName
from solo5_systemd.network.model import MacAddress, PortRequest, Protocol, Reservation

T = TypeVar("T")


class Allocations:
    """What the reservations of all tasks have in use. The cost of a lookup does not grow with the number of tasks."""

    def __init__(self, reservations: Iterable[Reservation] = ()) -> None:
        self._addresses: dict[IPv4Address, TaskName] = {}
        self._macs: dict[MacAddress, TaskName] = {}
        self._taps: dict[str, TaskName] = {}
        self._ports: defaultdict[tuple[Protocol, int], dict[PortRequest, TaskName]] = defaultdict(dict)
        self._leases: Counter[NetworkName] = Counter()
        for reservation in reservations:
            self.add(reservation)

    @property
    def addresses(self) -> Mapping[IPv4Address, TaskName]:
        """The task of each address."""
        return self._addresses

    @property
    def macs(self) -> Mapping[MacAddress, TaskName]:
        """The task of each MAC address."""
        return self._macs

    @property
    def taps(self) -> Mapping[str, TaskName]:
        """The task of each tap name."""
        return self._taps

    @property
    def leases(self) -> Mapping[NetworkName, int]:
        """The number of leases of each network."""
        return self._leases

    def published(self, protocol: Protocol, port: int) -> Iterator[tuple[PortRequest, TaskName]]:
        """Yield what is published at a port of the host, at any address, with its task."""
        yield from self._ports.get((protocol, port), {}).items()

    def add(self, reservation: Reservation) -> None:
        """Enter all values of a reservation."""
        for lease in reservation.leases:
            self._addresses[lease.ipv4.ip] = reservation.task
            self._macs[lease.mac] = reservation.task
            self._taps[lease.tap] = reservation.task
            self._leases[lease.network] += 1
        for port in reservation.ports:
            self._ports[port.protocol, port.host_port][port] = reservation.task

    def remove(self, reservation: Reservation) -> None:
        """Undo `add`; a value that another task has entered since stays that task's."""
        for lease in reservation.leases:
            _remove(self._addresses, lease.ipv4.ip, reservation.task)
            _remove(self._macs, lease.mac, reservation.task)
            _remove(self._taps, lease.tap, reservation.task)
            self._leases[lease.network] -= 1
        for port in reservation.ports:
            at = port.protocol, port.host_port
            _remove(self._ports[at], port, reservation.task)
            if not self._ports[at]:
                del self._ports[at]


def _remove(entries: dict[T, TaskName], value: T, task: TaskName) -> None:
    if entries.get(value) == task:
        del entries[value]
