"""Who holds what, looked up by value: a request costs the same beside one task and beside a thousand."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Address
from typing import TypeVar

from solo5_systemd.names import NetworkName, TaskName
from solo5_systemd.network.model import MacAddress, PortRequest, Protocol, Reservation

T = TypeVar("T")


class Book:
    """All that is held.

    Attributes:
        addresses: whose each address is.
        macs: whose each MAC is.
        taps: whose each tap name is.
        leases: how many each network has.
    """

    def __init__(self, held: Iterable[Reservation] = ()) -> None:
        self._addresses: dict[IPv4Address, TaskName] = {}
        self._macs: dict[MacAddress, TaskName] = {}
        self._taps: dict[str, TaskName] = {}
        self._ports: defaultdict[tuple[Protocol, int], dict[PortRequest, TaskName]] = defaultdict(dict)
        self._leases: Counter[NetworkName] = Counter()
        for reservation in held:
            self.enter(reservation)

    @property
    def addresses(self) -> Mapping[IPv4Address, TaskName]:
        return self._addresses

    @property
    def macs(self) -> Mapping[MacAddress, TaskName]:
        return self._macs

    @property
    def taps(self) -> Mapping[str, TaskName]:
        return self._taps

    @property
    def leases(self) -> Mapping[NetworkName, int]:
        return self._leases

    def published(self, protocol: Protocol, port: int) -> Iterator[tuple[PortRequest, TaskName]]:
        """What is published at a port of the host, at whichever address, and whose it is."""
        yield from self._ports.get((protocol, port), {}).items()

    def enter(self, reservation: Reservation) -> None:
        for lease in reservation.leases:
            self._addresses[lease.ipv4.ip] = reservation.task
            self._macs[lease.mac] = reservation.task
            self._taps[lease.tap] = reservation.task
            self._leases[lease.network] += 1
        for port in reservation.ports:
            self._ports[port.protocol, port.host_port][port] = reservation.task

    def strike(self, reservation: Reservation) -> None:
        """Take out what was entered."""
        for lease in reservation.leases:
            _strike(self._addresses, lease.ipv4.ip, reservation.task)
            _strike(self._macs, lease.mac, reservation.task)
            _strike(self._taps, lease.tap, reservation.task)
            self._leases[lease.network] -= 1
        for port in reservation.ports:
            at = port.protocol, port.host_port
            _strike(self._ports[at], port, reservation.task)
            if not self._ports[at]:
                del self._ports[at]


def _strike(entries: dict[T, TaskName], value: T, task: TaskName) -> None:
    if entries.get(value) == task:
        del entries[value]
