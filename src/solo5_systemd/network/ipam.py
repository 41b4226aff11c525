"""Choose the addresses, MAC, tap name and bridge of each NIC, none of which another task has; check requested ones.

Each chosen value is derived from a SHA-256 of the names that it belongs to. A task that starts again gets its previous
values unless they are in use by then, so that neighbours' ARP caches and peers' firewall rules stay valid.
"""

from base64 import b32encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Interface, IPv6Interface
from itertools import count

from solo5_systemd.base.errors import InvalidRequestError, TakenError
from solo5_systemd.base.names import DeviceName, NetworkName, TaskName
from solo5_systemd.network.derived_addresses import ASKER, bridge_mac, digest_of, mac_of, number_of, slaac_address
from solo5_systemd.network.model import IpAddress, Lease, MacAddress, NicRequest, PortRequest, Protocol, Reservation
from solo5_systemd.network.network_ranges import CANDIDATES
from solo5_systemd.network.tap_counters import TAP_PREFIX
from solo5_systemd.settings.addresses import AddressRange, IpNetwork, is_reserved, number_within
from solo5_systemd.settings.network import NO_NETWORK
from solo5_systemd.settings.network_policy import Network

Remembered = Mapping[IpAddress | MacAddress, TaskName]
"""The addresses that declared tasks had last, each with its task: another task gets one only if no other is free."""

_SEGMENT_STEM = 13
"""Characters of a link's name (15) that a dot and the number of a segment leave."""

BRIDGE_PORTS = 1023
"""Ports that a Linux bridge can have (BR_MAX_PORTS, less number 0)."""

TAPS_PER_BRIDGE = 1000
"""Taps of one bridge of ours; its other ports are those of the segments."""

SEGMENTS = 9
"""Further bridges that a network may have, each a port of the first one."""

_ROOM = TAPS_PER_BRIDGE * (1 + SEGMENTS)
"""Taps of all bridges of a network."""


class Allocations:
    """What the reservations of all tasks have in use. The cost of a lookup does not grow with the number of tasks.

    Attributes:
        owners: the task of each address, MAC address and tap.
        leases: the number of leases of each network.
        ports: the number of taps of each bridge.
    """

    def __init__(self, reservations: Iterable[Reservation] = ()) -> None:
        self.owners: dict[IpAddress | str, TaskName] = {}
        self.leases: Counter[NetworkName] = Counter()
        self.ports: Counter[str] = Counter()
        # Tuples, since nearly always there is one: a dictionary for each port would take three times as much.
        self._published: dict[tuple[Protocol, int], tuple[tuple[PortRequest, TaskName], ...]] = {}
        for reservation in reservations:
            self.add(reservation)

    def published(self, protocol: Protocol, port: int) -> Iterator[tuple[PortRequest, TaskName]]:
        """Yield what is published at a port of the host, at any address, with its task."""
        yield from self._published.get((protocol, port), ())

    def add(self, reservation: Reservation) -> None:
        """Enter all values of a reservation."""
        for lease in reservation.leases:
            for value in (*lease.addresses, lease.mac, lease.tap):
                self.owners[value] = reservation.task
            self.leases[lease.network] += 1
            self.ports[lease.bridge] += 1
        for port in reservation.ports:
            at = port.protocol, port.host_port
            # A port that moves from task to task is in both records for a moment.
            others = (each for each in self._published.get(at, ()) if each[0] != port)
            self._published[at] = (*others, (port, reservation.task))

    def remove(self, reservation: Reservation) -> None:
        """Undo `add`; a value that another task has entered since stays that task's."""
        for lease in reservation.leases:
            for value in (*lease.addresses, lease.mac, lease.tap):
                if self.owners.get(value) == reservation.task:
                    del self.owners[value]
            self.leases[lease.network] -= 1
            self.ports[lease.bridge] -= 1
        for port in reservation.ports:
            at = port.protocol, port.host_port
            left = tuple(each for each in self._published.pop(at, ()) if each != (port, reservation.task))
            if left:
                self._published[at] = left


def segments(bridge: str) -> tuple[str, ...]:
    """Return the names of the bridges that extend a network's first one, in the order of their use."""
    stem = bridge if len(bridge) <= _SEGMENT_STEM else bridge[:7] + b32encode(digest_of("segment", bridge))[:5].decode()
    return tuple(f"{stem}.{number}" for number in range(1, 1 + SEGMENTS))


def segment_link(segment: str) -> tuple[str, str]:
    """Return the names of the veth pair of a segment: the port of the first bridge, and the segment's own."""
    digest = b32encode(digest_of("segment", segment))[:10].decode().lower()
    return f"s5d{digest}", f"s5u{digest}"


def assign_leases(
    task: TaskName,
    nics: Sequence[NicRequest],
    networks: Sequence[Network],
    allocations: Allocations,
    exists: Callable[[str], bool],
    local: Iterable[IpAddress] = (),
    remembered: Remembered | None = None,
) -> tuple[Lease, ...]:
    """Return a lease for each NIC, in the order of the requests.

    Args:
        allocations: the values in use by other tasks.
        exists: returns whether the host has a link of this name.
        local: the host's addresses, some of which may be in the range of a joined network.
        remembered: addresses that are chosen last; an explicit one may be among them.

    Raises:
        InvalidRequestError: an explicit address or MAC is unusable in its network.
        TakenError: an explicit address or MAC is in use, or the range or the bridge is full.
    """
    choice = _Choice(task, networks, allocations, local, remembered or {})
    named = {network.name: network for network in networks}
    for nic in nics:
        choice.claim(nic, named[nic.network])
    leases = []
    for nic in nics:
        network = named[nic.network]
        mac = nic.mac or choice.mac(nic.nic, network)
        leases.append(
            Lease(
                nic=nic.nic,
                network=network.name,
                bridge=choice.bridge(network),
                tap=choice.tap(nic.nic, exists),
                ipv4=choice.interface(nic, network),
                gateway4=network.gateway4,
                mac=mac,
                mtu=network.mtu,
                ipv6=choice.interface6(nic, network, mac),
                gateway6=network.gateway6,
                limits=nic.limits,
            )
        )
    return tuple(leases)


def free_addresses(network: Network, taken: int) -> int | None:
    """Return the number of addresses that a network has left for guests; None if it chooses none."""
    if network.ipv4 is None:
        return _ROOM - taken if network.join is None else None  # an IPv6 prefix has more than bridges have ports
    if network.join is not None and network.join.pool is None:
        return None
    guests = _guests(network, network.ipv4)
    addresses = guests.size - number_within(guests, network.policy.reserved_addresses)
    if network.join:  # a pool does not include the gateway
        return min(BRIDGE_PORTS, addresses) - taken
    return min(_ROOM, addresses - 1) - taken


def addresses_of(settings: Network) -> int | None:
    """Return the number of addresses for guests of a network; None: not known. A range that is chosen is a /24."""
    chosen = None if settings.join or settings.without_ipv4 else CANDIDATES[0]
    return free_addresses(replace(settings, ipv4=settings.ipv4 or chosen), 0)


def _guests(network: Network, inside: IpNetwork) -> AddressRange:
    """Return the addresses for guests: the pool, or those of the range; an IPv6 prefix has none for broadcasts."""
    return _pool(network, inside) or AddressRange(inside[1], inside[-2 if inside.version == 4 else -1])


def _pool(network: Network, inside: IpNetwork) -> AddressRange | None:
    if network.join is None:
        return None
    return network.join.pool if inside.version == 4 else network.join.pool6


class _Choice:
    """The values chosen for one request, none of which another task or NIC has."""

    def __init__(
        self,
        task: TaskName,
        networks: Iterable[Network],
        allocations: Allocations,
        local: Iterable[IpAddress],
        remembered: Remembered,
    ) -> None:
        self._task = task
        self._allocations = allocations
        self._remembered = remembered
        self._ports: Counter[str] = Counter()
        self._owners: dict[IpAddress | str, str] = {**dict.fromkeys(local, "this host"), ASKER: "solo5-networkd"}
        for network in networks:
            for gateway in (network.gateway4, network.gateway6):
                if gateway is not None:
                    self._owners[gateway] = f"network {network.name}, as its gateway's"
            self._owners[bridge_mac(network.name)] = f"network {network.name}, as its bridge's"

    def claim(self, nic: NicRequest, network: Network) -> None:
        """Take the explicit address and MAC of a request: before any derived one, which could be the same."""
        for address in (each for each in (nic.ipv4, nic.ipv6) if each is not None):
            _check_usable(address, nic.nic, network)
            self._claim(address, nic.nic)
        if nic.mac is not None:
            self._claim(nic.mac, nic.nic)

    def _claim(self, value: IpAddress | MacAddress, nic: DeviceName) -> None:
        if owner := self._owner(value):
            raise TakenError(
                f"{'MAC address' if isinstance(value, str) else 'address'} {value} for NIC {nic} is taken by {owner}: "
                "expected a free one.",
                "Leave it out to have one chosen.",
            )
        self._owners[value] = f"task {self._task}"

    def _owner(self, value: IpAddress | str) -> str:
        """Return the owner of a value, for an error message; empty: it is free."""
        task = self._allocations.owners.get(value)
        return self._owners.get(value) or (f"task {task}" if task else "")

    def _is_remembered(self, value: IpAddress | MacAddress) -> bool:
        """Return whether another task had a value last, and gets it again if that is free then."""
        return self._remembered.get(value, self._task) != self._task

    def interface(self, nic: NicRequest, network: Network) -> IPv4Interface | None:
        """Return the requested address or a chosen one; None where the network leases none."""
        if network.ipv4 is None:
            return None
        address = nic.ipv4 or self._address(nic.nic, network, network.ipv4)
        return IPv4Interface((address, network.ipv4.prefixlen))

    def interface6(self, nic: NicRequest, network: Network, mac: MacAddress) -> IPv6Interface | None:
        """Return the requested IPv6 address or a chosen one; None where the network has no IPv6."""
        if network.ipv6 is None:
            return None
        if not network.ra:
            address = nic.ipv6 or self._address(nic.nic, network, network.ipv6)
            return IPv6Interface((address, network.ipv6.prefixlen))
        # That which the guest gives itself: with another one it would have two, one of them dropped.
        own = slaac_address(network.ipv6, mac)
        if nic.ipv6 is None:
            self._claim(own, nic.nic)
        elif nic.ipv6 != own:
            raise InvalidRequestError(
                f"address {nic.ipv6} for NIC {nic.nic} is not that of its MAC address {mac} in network {network.name}, "
                f"which has ra = true: expected {own}, or a request without an address.",
                "Request a MAC address instead: the guest's address is derived from it.",
            )
        return IPv6Interface((own, network.ipv6.prefixlen))

    def _address(self, nic: DeviceName, network: Network, inside: IpNetwork) -> IpAddress:
        """Take the first free address for guests, from the one derived from task and NIC on.

        One that is remembered of another task is the last choice: no address is lost to tasks that are never started.
        """
        if inside.version == 4 and network.join is not None and network.join.pool is None:
            raise InvalidRequestError(
                f"NIC {nic} requests no address in network {network.name}, which has no pool: expected one in "
                f"{inside}.",
                f"Request one, or set network.{network.name}.pool below /etc/solo5.",
            )
        guests = _guests(network, inside)
        first = number_of(f"ipv{inside.version}", self._task, nic)

        def free() -> Iterator[IpAddress]:
            for address in (guests.first + (first + offset) % guests.size for offset in range(guests.size)):
                if not (self._owner(address) or is_reserved(address, network.policy.reserved_addresses)):
                    yield address

        found = next((each for each in free() if not self._is_remembered(each)), None) or next(free(), None)
        if found is not None:
            self._owners[found] = f"task {self._task}"
            return found
        pool, key = _pool(network, inside), f"ipv{inside.version}"
        if pool:
            key = "pool" if inside.version == 4 else "pool6"
        raise TakenError(
            f"network {network.name} has no free address for NIC {nic}: all of {pool or inside} are taken.",
            f"End a task, or set a larger range as network.{network.name}.{key} below /etc/solo5.",
        )

    def bridge(self, network: Network) -> str:
        """Return the first bridge of a network that has a free port: a segment where all earlier ones are full."""
        if network.join:  # its other ports are those of others
            return network.bridge
        for bridge in (network.bridge, *segments(network.bridge)):
            if self._allocations.ports.get(bridge, 0) + self._ports[bridge] < TAPS_PER_BRIDGE:
                self._ports[bridge] += 1
                return bridge
        raise TakenError(
            f"network {network.name} has no free port: each of its {1 + SEGMENTS} bridges has {TAPS_PER_BRIDGE} taps.",
            "End a task, or use another network: [network.NAME] below /etc/solo5.",
        )

    def mac(self, nic: DeviceName, network: Network) -> MacAddress:
        """Return the first free MAC, from the one derived from task and NIC on; with `ra`, its address is free, too.

        There are more than can be remembered, so that none of another task is the last choice.
        """
        macs = map(mac_of, count(number_of("mac", self._task, nic)))
        mac = next(mac for mac in macs if self._is_free(mac, network))
        self._owners[mac] = f"task {self._task}"
        return mac

    def _is_free(self, mac: MacAddress, network: Network) -> bool:
        if self._owner(mac) or self._is_remembered(mac):
            return False
        if not network.ra or network.ipv6 is None:
            return True
        address = slaac_address(network.ipv6, mac)
        reserved = is_reserved(address, network.policy.reserved_addresses)
        return not (reserved or self._owner(address) or self._is_remembered(address))

    def tap(self, nic: DeviceName, exists: Callable[[str], bool]) -> str:
        """Return the first tap name that no task and no link of the host has."""
        number = 0
        while self._owner(tap := tap_name(self._task, nic, number)) or exists(tap):
            number += 1
        self._owners[tap] = f"task {self._task}"
        return tap


def tap_name(task: TaskName, nic: DeviceName, number: int = 0) -> str:
    """Return a tap name of a NIC, of which there is one for each number: 15 characters, the kernel's maximum."""
    return TAP_PREFIX + b32encode(digest_of("tap", task, nic, str(number)))[:12].decode().lower()


def _check_usable(address: IpAddress, nic: DeviceName, network: Network) -> None:
    inside = network.inside(address.version)
    if inside is None:
        key = f"network.{network.name}.ipv{address.version}"
        hint = f"Set {key} below /etc/solo5{': the range of the LAN' if network.join else ''}."
        raise InvalidRequestError(
            f"address {address} for NIC {nic} is requested in network {network.name}, which leases no "
            f"IPv{address.version} addresses: expected a request without one.",
            "Connect the NIC to another network." if network.name == NO_NETWORK else hint,
        )
    guests, reserved = _pool(network, inside) or inside, is_reserved(address, network.policy.reserved_addresses)
    own: dict[IpAddress | None, str] = {
        inside.broadcast_address: "its broadcast address in" if inside.version == 4 else "",  # IPv6 has none
        inside.network_address: "the network's own in",
        network.gateway4: "its gateway's in",
        network.gateway6: "its gateway's in",
    }
    why = "outside" if address not in guests else own.get(address) or ("reserved in" if reserved else "")
    if why:
        raise InvalidRequestError(
            f"address {address} for NIC {nic} is {why} network {network.name}: expected one in {guests}.",
            f"See network.{network.name}.reserved_addresses below /etc/solo5." if reserved else "",
        )
