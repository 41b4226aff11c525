"""Which range, address, MAC and tap name: derived from names, checked against what is held.

Everything is derived from the SHA-256 of what it belongs to, so that a task which starts again gets, as long as
nobody else took it meanwhile, what it had before: neighbours' ARP caches and peers' firewalls stay right.
"""

import hashlib
from base64 import b32encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import TypeVar

from solo5_systemd.errors import HostError, InvalidRequestError, TakenError
from solo5_systemd.names import DeviceName, NetworkName, TaskName
from solo5_systemd.network.allocations import Book
from solo5_systemd.network.model import Lease, MacAddress, Network, NicRequest
from solo5_systemd.settings import DEFAULT_NETWORK, NetworkSettings

T = TypeVar("T")

TAP_PREFIX = "s5-"

CANDIDATES = tuple(
    subnet
    for block in ("10.153.0.0/16", "172.29.0.0/16", "192.168.192.0/18")
    for subnet in IPv4Network(block).subnets(new_prefix=24)
)
"""Where a network without a configured range goes: one /24 of each private block (RFC 1918), so that a host whose
VPN routes one whole block has the others, and none of the ranges that Docker, Podman, libvirt or Nomad begin with."""


def choose_network(settings: NetworkSettings, used: Iterable[Network], routed: Iterable[IPv4Network]) -> Network:
    """Settle what the settings leave open.

    Args:
        settings: what the operator said.
        used: the networks that are in use.
        routed: destinations that the host's routes and addresses name, without the default route.

    Raises:
        HostError: the range overlaps one that the host reaches otherwise, or no candidate is free.
    """
    busy = {network.ipv4: f"network {network.name}" for network in used}
    busy |= {destination: "the host's own routes" for destination in routed if destination.prefixlen}
    ipv4 = settings.ipv4 or _free_range(settings.name, tuple(busy))
    for other, whose in busy.items():
        if ipv4.overlaps(other):
            raise HostError(
                f"network {settings.name} cannot use {ipv4}: it overlaps {other} of {whose}.",
                f"Set another range as network.{settings.name}.ipv4 below /etc/solo5.",
            )
    return Network(
        name=settings.name,
        bridge=settings.bridge,
        ipv4=ipv4,
        gateway4=settings.gateway4 or ipv4[1],
        mtu=settings.mtu,
        masquerade=settings.masquerade,
        policy=settings.policy,
    )


def _free_range(name: NetworkName, busy: Sequence[IPv4Network]) -> IPv4Network:
    first = 0 if name == DEFAULT_NETWORK else _number("network", name) % 256
    for candidate in _from(CANDIDATES, first):
        if not any(candidate.overlaps(other) for other in busy):
            return candidate
    raise HostError(
        f"network {name} has no range: the host's routes cover all of 10.153.0.0/16, 172.29.0.0/16 and "
        "192.168.192.0/18.",
        f"Set a range as network.{name}.ipv4 below /etc/solo5.",
    )


def bridge_mac(name: NetworkName) -> MacAddress:
    """The bridge's own MAC, by which we also know it again.

    It is fixed, since it would otherwise follow the lowest of its taps.
    """
    return _mac(_number("bridge", name))


def assign(
    task: TaskName,
    nics: Sequence[NicRequest],
    networks: Sequence[Network],
    held: Book,
    exists: Callable[[str], bool],
) -> tuple[Lease, ...]:
    """Give every NIC its lease, in the order of the requests.

    Args:
        task: whose they are.
        nics: what is asked; every network named is among `networks`.
        networks: the networks in use.
        held: what other tasks hold.
        exists: whether the host has a link of this name.

    Raises:
        InvalidRequestError: an explicit address or MAC cannot be a guest's here, or a NIC stands there twice.
        TakenError: an explicit address or MAC is held, or the range is full.
    """
    _all_different(nics)
    choice = _Choice(task, networks, held)
    named = {network.name: network for network in networks}
    for nic in nics:
        choice.claim(nic, named[nic.network])
    leases = []
    for nic in nics:
        network = named[nic.network]
        leases.append(
            Lease(
                nic=nic.nic,
                network=network.name,
                bridge=network.bridge,
                tap=choice.tap(nic.nic, exists),
                ipv4=IPv4Interface((nic.ipv4 or choice.address(nic.nic, network), network.ipv4.prefixlen)),
                gateway4=network.gateway4,
                mac=nic.mac or choice.mac(nic.nic),
                mtu=network.mtu,
            )
        )
    return tuple(leases)


def free_addresses(ipv4: IPv4Network, taken: int) -> int:
    """Return how many guests a range has room for beside those that it has."""
    return _room(ipv4) - taken


def _room(ipv4: IPv4Network) -> int:
    return ipv4.num_addresses - 3  # the network's own, the broadcast and the gateway's


class _Choice:
    """What one request is given, beside what is held."""

    def __init__(self, task: TaskName, networks: Iterable[Network], held: Book) -> None:
        self._task = task
        self._held = held
        self._taps: set[str] = set()
        self._addresses: dict[IPv4Address, str] = {}
        self._macs: dict[MacAddress, str] = {}
        for network in networks:
            self._addresses[network.gateway4] = f"network {network.name}, as its gateway's"
            self._macs[bridge_mac(network.name)] = f"network {network.name}, as its bridge's"

    def claim(self, nic: NicRequest, network: Network) -> None:
        """Enter what was asked for by value: it goes first, or a derived one might sit in its place."""
        if nic.ipv4 is not None:
            _usable(nic.ipv4, nic.nic, network)
            self._enter(nic.ipv4, "address", self._addresses, self._held.addresses, nic.nic)
        if nic.mac is not None:
            self._enter(nic.mac, "MAC address", self._macs, self._held.macs, nic.nic)

    def _enter(self, value: T, what: str, mine: dict[T, str], held: Mapping[T, TaskName], nic: DeviceName) -> None:
        whose = self._whose(value, mine, held)
        if whose:
            raise TakenError(
                f"{what} {value} for NIC {nic} is taken by {whose}: expected a free one.",
                "Leave it out to have one chosen.",
            )
        mine[value] = f"task {self._task}"

    def _whose(self, value: T, mine: Mapping[T, str], held: Mapping[T, TaskName]) -> str:
        """Empty for nobody's."""
        return mine.get(value) or (f"task {held[value]}" if value in held else "")

    def address(self, nic: DeviceName, network: Network) -> IPv4Address:
        hosts = network.ipv4.num_addresses - 2
        first = _number("ipv4", self._task, nic) % hosts
        for offset in _from(range(hosts), first):
            address = network.ipv4[1 + offset]
            if not self._whose(address, self._addresses, self._held.addresses):
                self._addresses[address] = f"task {self._task}"
                return address
        raise TakenError(
            f"network {network.name} has no free address for NIC {nic}: all {_room(network.ipv4)} of {network.ipv4} "
            "are taken.",
            f"End a task, or set a larger range as network.{network.name}.ipv4 below /etc/solo5.",
        )

    def mac(self, nic: DeviceName) -> MacAddress:
        number = _number("mac", self._task, nic)
        while self._whose(mac := _mac(number), self._macs, self._held.macs):
            number += 1
        self._macs[mac] = f"task {self._task}"
        return mac

    def tap(self, nic: DeviceName, exists: Callable[[str], bool]) -> str:
        number = 0
        while (tap := tap_name(self._task, nic, number)) in self._taps or tap in self._held.taps or exists(tap):
            number += 1
        self._taps.add(tap)
        return tap


def tap_name(task: TaskName, nic: DeviceName, number: int = 0) -> str:
    """A link name of 15 characters, the kernel's longest: 60 bits of the hash.

    Args:
        task: whose tap.
        nic: of which NIC.
        number: 0, and counted up while the name is in use.
    """
    return TAP_PREFIX + b32encode(_digest("tap", task, nic, str(number)))[:12].decode().lower()


def _all_different(nics: Sequence[NicRequest]) -> None:
    for index, nic in enumerate(nics):
        if nic.nic in (other.nic for other in nics[:index]):
            raise InvalidRequestError(f"NIC {nic.nic} is asked for twice: expected each NIC once.")


def _usable(address: IPv4Address, nic: DeviceName, network: Network) -> None:
    unusable = {
        network.ipv4.network_address: "the network's own",
        network.ipv4.broadcast_address: "its broadcast address",
        network.gateway4: "its gateway's",
    }
    if address not in network.ipv4:
        raise InvalidRequestError(
            f"address {address} for NIC {nic} is outside network {network.name}: expected one in {network.ipv4}."
        )
    if address in unusable:
        raise InvalidRequestError(
            f"address {address} for NIC {nic} is {unusable[address]} in network {network.name}: expected a "
            f"guest's, from {network.ipv4}."
        )


def _digest(*words: str) -> bytes:
    # No name holds a slash, so that different words never join to the same text.
    return hashlib.sha256("/".join(words).encode()).digest()


def _number(*words: str) -> int:
    return int.from_bytes(_digest(*words)[:8])


def _mac(number: int) -> MacAddress:
    # 02: locally administered and unicast (IEEE 802, clause 8).
    return MacAddress(":".join(f"{octet:02x}" for octet in b"\x02" + (number % (1 << 40)).to_bytes(5)))


def _from(items: Sequence[T], first: int) -> Iterator[T]:
    yield from items[first:]
    yield from items[:first]
