"""The elements of the sets and maps of the nftables tables: networks, guests, published ports.

The tables themselves, whose rules look them up, are in `nft_rules`; `drops` has the sets whose elements count.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address

from solo5_systemd.base.names import NetworkName
from solo5_systemd.network.derived_addresses import bridge_mac, link_local, octets
from solo5_systemd.network.ipam import segment_link
from solo5_systemd.network.model import (
    EVERY_IPV6,
    IpAddress,
    Lease,
    LeaseRecord,
    LeaseState,
    Limits,
    Network,
    PortRequest,
    Reservation,
    destinations,
)
from solo5_systemd.network.nft_objects import EGRESS, Element, rate_values
from solo5_systemd.settings.addresses import IpNetwork
from solo5_systemd.settings.egress import Destination
from solo5_systemd.settings.network import Join

ACTIVE = "active"
"""The set whose elements count the frames from and to guests that may sleep, by tap."""


def has_ipv6(networks: Iterable[Network]) -> bool:
    """Return whether the host routes IPv6 for one of these networks, so that table ip6 exists."""
    return any(network.routes6 for network in networks)


@dataclass(frozen=True, kw_only=True)
class Ruleset:
    """The input from which the tables are made.

    Attributes:
        networks: the networks that are up.
        records: the lease records, of which each has the elements of its state.
        segments: the further bridges of these networks, each with its network. Their names reach table ip only with
            br_netfilter, which passes bridged packets through it.
        forwards: packets between other links are accepted: the host forwards for others, too, or none of the networks
            has a bridge of this service.
        forwards6: the same of IPv6 packets.
        forwarding: the links that forwarded IPv4 packets, one by one, before the first network was up.
    """

    networks: Sequence[Network] = ()
    records: Sequence[LeaseRecord] = ()
    segments: Sequence[tuple[str, NetworkName]] = ()
    forwards: bool = False
    forwards6: bool = False
    forwarding: tuple[str, ...] = ()


def elements(ruleset: Ruleset) -> tuple[Element, ...]:
    """Return all elements of all tables, each once: several networks may join one bridge."""
    networks = ruleset.networks
    of_networks = (element for network in networks for element in network_elements(network, networks))
    six = {network.name for network in networks if network.routes6}
    of_segments = (
        element for segment, name in ruleset.segments for element in _segment(segment, name, six=name in six)
    )
    of_tasks = (element for record in ruleset.records for element in record_elements(record, networks))
    found = dict.fromkeys((*of_networks, *of_segments, *of_tasks))
    return tuple(found) if six else tuple(each for each in found if each.family != "ip6")


def network_elements(network: Network, networks: Sequence[Network]) -> tuple[Element, ...]:
    """Return the elements of a network; `networks` are all that are up, for its `reach`."""
    bridge = _quoted(network.bridge)
    if network.join is not None:
        families = ("ip", "ip6") if has_ipv6(networks) else ("ip",)
        return tuple(_member("bridged", bridge, bridge, family=family) for family in families)
    reached = [other.bridge for other in networks if other.name in network.policy.reach and other.join is None]
    of_ip = [_member("bridges", bridge)]  # of a network with IPv6 only: what its guests send by IPv4 is of no network
    if network.ipv4 is not None:
        of_ip = [*_network_elements("ip", str(network.ipv4), network, reached, masquerade=network.masquerade)]
    of_ip += _shared("ip", bridge, network.gateway4) if network.shared else ()
    of_ip += (_member("dhcp", bridge),) if network.policy.dhcp else ()
    if network.ipv6 is None:
        return tuple(of_ip)
    of_ip6 = list(_network_elements("ip6", str(network.ipv6), network, reached, masquerade=network.nat66))
    if network.shared:
        of_ip6 += (*_shared("ip6", bridge, network.gateway6), _member("looped", "::1", family="ip6"))
    return (*of_ip, *of_ip6)


def _network_elements(
    family: str, inside: str, network: Network, reached: Sequence[str], *, masquerade: bool
) -> Iterator[Element]:
    """Yield the elements of a network in table ip or ip6.

    Args:
        inside: the range of the network.
        reached: the bridges of the networks in its `reach`.
        masquerade: packets that leave the host get its address as their source.
    """
    bridge, policy = _quoted(network.bridge), network.policy
    paths = ([] if policy.isolated else [network.bridge]) + list(reached)
    services = [(bridge, port.protocol, str(port.port)) for port in dict.fromkeys(policy.host)]
    members = (
        ("bridges", [(bridge,)]),
        ("within", [(inside, inside)]),
        ("masqueraded", [(inside,)] if masquerade else []),
        ("paths", [(bridge, _quoted(other)) for other in paths]),
        ("routed", [(bridge,)] if policy.routed else []),
        ("metadata", [(bridge,)] if policy.metadata else []),
        ("services", services),
    )
    for name, keys in members:
        for key in keys:
            yield _member(name, *key, family=family)


def _shared(family: str, bridge: str, gateway: IpAddress | None) -> tuple[Element, ...]:
    """Return the elements of a network whose gateway is the loopback of the programs beside its guests."""
    return _member("shared", bridge, family=family), _member("gateways", bridge, str(gateway), family=family)


def _segment(segment: str, network: NetworkName, *, six: bool) -> tuple[Element, ...]:
    name, port = _quoted(segment), _quoted(segment_link(segment)[0])
    families = ("ip", "ip6") if six else ("ip",)
    return (
        *(_member(of, name, family=family) for family in families for of in ("bridges", "segments")),
        Element(family="bridge", name="reflected", key=(port, port)),
        Element(family="bridge", name="returned", key=(port,), value=(bridge_mac(network),)),
    )


def _member(name: str, *key: str, family: str = "ip") -> Element:
    return Element(family=family, name=name, key=key)


def record_elements(record: LeaseRecord, networks: Sequence[Network]) -> tuple[Element, ...]:
    """Return the elements of a task in the state of its record; `networks` are all that are up.

    One that waits has no process: what lets its packets pass, and announces questions for it.
    """
    held = record.reservation
    if record.state is LeaseState.ATTACHED:
        announced = (element for lease in held.leases for element in _asleep(lease)) if record.asleep else ()
        return tuple(dict.fromkeys((*task_elements(held, networks), *announced)))
    if record.state is LeaseState.WAITING:
        own = (element for element in task_elements(held, networks) if element.family != "bridge")
        return (*own, *(element for lease in held.leases for element in _waiting(lease)))
    return ()


def task_elements(reservation: Reservation, networks: Sequence[Network]) -> tuple[Element, ...]:
    """Return the elements of an attached task that is awake."""
    named = {network.name: network for network in networks}
    return (
        *(
            element
            for lease in reservation.leases
            for element in _lease_elements(reservation, lease, named.get(lease.network))
        ),
        *(element for port in reservation.ports for element in _published(port, reservation.lease(port.nic))),
    )


def _waiting(lease: Lease) -> Iterator[Element]:
    if lease.address is not None:
        yield _bridged("waiting4", str(lease.address))
        yield _member("waiting", str(lease.address))
    if lease.address6 is not None:
        yield _bridged("waiting6", *_halves(lease.address6))
        yield _member("waiting", str(lease.address6), family="ip6")


def _asleep(lease: Lease) -> Iterator[Element]:
    """Yield the elements by which packets for a task that sleeps are announced."""
    tap = _quoted(lease.tap)
    for name in ("metered", ACTIVE, "asleep"):
        yield _bridged(name, tap)
    if lease.address is not None:
        yield _bridged("asleep4", tap, str(lease.address))
    for address in (lease.address6, link_local(lease.mac)) if lease.address6 is not None else ():
        yield _bridged("asleep6", tap, *_halves(address))


def _lease_elements(reservation: Reservation, lease: Lease, network: Network | None) -> tuple[Element, ...]:
    fragments = network is not None and network.policy.fragments
    wanted, counted = lease.limits, reservation.idle_s > 0
    limits = wanted.under(network.policy) if network is not None else wanted
    if network is not None and network.join is not None:
        own = (*_joined_guest(lease, network.join, fragments=fragments), *_sources(lease, limits))
        return (*own, *_rates(lease, limits, counted=counted))
    served = _asking(lease) if network is not None and network.policy.dhcp else ()
    own = (*_guest(lease, fragments), *_guest6(lease, fragments), *_behind(lease, network, limits, fragments))
    plain = () if counted else _plain(lease, limits)
    return (*own, *plain, *served, *_egress(lease, limits), *_rates(lease, limits, counted=counted))


def _plain(lease: Lease, limits: Limits) -> Iterator[Element]:
    """Yield the elements by which the frames of a guest without limits pass table bridge after one lookup."""
    if limits.egress is not None or rate_values(limits.rate):
        return
    tap = _quoted(lease.tap)
    for name, address in (("plain", lease.address), ("plain6", lease.address6)):
        if address is not None:
            yield _bridged(name, tap, lease.mac, str(address))


def _sources(lease: Lease, limits: Limits) -> Iterator[Element]:
    for route in limits.routes:
        yield _bridged("behind" if route.version == 4 else "behind6", _quoted(lease.tap), lease.mac, _range(route))


def _behind(lease: Lease, network: Network | None, limits: Limits, fragments: bool) -> Iterator[Element]:
    """Yield the elements of a guest's routes, whose addresses are translated as those of its network."""
    yield from _sources(lease, limits)
    if limits.routes and not fragments:
        yield _bridged("whole", _quoted(lease.tap))
    for route in limits.routes:
        family = "ip" if route.version == 4 else "ip6"
        yield _member("behind", _range(route), family=family)
        own = lease.address if route.version == 4 else lease.address6
        for sender in (_range(route), *((str(own),) if own else ())):
            yield _member("routers", sender, _range(route), family=family)
        inside = (network.ipv4 if route.version == 4 else network.ipv6) if network else None
        for pair in ((inside, route), (route, inside), (route, route)) if inside else ():
            yield _member("within", *map(_range, pair), family=family)
        if network is not None and (network.masquerade if route.version == 4 else network.nat66):
            yield _member("masqueraded", _range(route), family=family)


def _range(network: IpNetwork) -> str:
    """Return a range as nftables lists it."""
    return str(network.network_address if network.prefixlen == network.max_prefixlen else network)


def _egress(lease: Lease, limits: Limits) -> tuple[Element, ...]:
    """Return the elements of a guest's egress list; none without a list."""
    if limits.egress is None:
        return ()
    tap, gateway = _quoted(lease.tap), bridge_mac(lease.network)
    return (
        *(element for address in lease.addresses for element in _listed(address, limits.egress)),
        Element(family="bridge", name="confined", key=(tap,), value=(gateway,)),
        Element(family="bridge", name="secluded", key=(lease.mac,), value=(gateway,)),
    )


def _listed(address: IpAddress, listed: Iterable[Destination]) -> tuple[Element, ...]:
    """Return the elements of one address of a guest, whose chain has the entries of its version of IP alone."""
    family, unlisted = ("ip", "unlisted") if address.version == 4 else ("ip6", "unlisted6")
    entries = (each for entry in listed for each in entry.by_protocol() if each.network.version == address.version)
    return (
        _member("unlisted", str(address), family=family),
        Element(family=family, name=EGRESS, key=(str(address),), value=tuple(map(str, entries))),
        _bridged(unlisted, str(address)),
    )


def _rates(lease: Lease, limits: Limits, *, counted: bool) -> tuple[Element, ...]:
    values, tap = rate_values(limits.rate), _quoted(lease.tap)
    sets = (
        *(("metered",) if values or counted else ()),
        *(("over_sent", "over_received") if values else ()),
        *((ACTIVE,) if counted else ()),
    )
    return (
        *(_bridged(name, tap) for name in sets),
        *(Element(family="bridge", name=name, key=(tap,), value=value) for name, value in values.items()),
    )


def _joined_guest(lease: Lease, join: Join, *, fragments: bool) -> tuple[Element, ...]:
    tap = _quoted(lease.tap)
    return (
        _bridged("joined", tap),
        _bridged("guests", tap, lease.mac, str(lease.address))
        if lease.address
        else _bridged("unleased", tap, lease.mac),
        *(_joined_guest6(lease) if join.ipv6 else ()),
        *(() if fragments else (_bridged("whole", tap),)),
    )


def _joined_guest6(lease: Lease) -> tuple[Element, ...]:
    if lease.address6 is not None:
        return tuple(_addressed6(lease, lease.address6))
    tap = _quoted(lease.tap)
    return (
        _bridged("ipv6", tap, lease.mac),
        _bridged("linked", tap, _number(lease.mac)),
        _bridged("unleased6", tap, lease.mac),
    )


def _bridged(name: str, *key: str) -> Element:
    return Element(family="bridge", name=name, key=key)


def _guest(lease: Lease, fragments: bool) -> tuple[Element, ...]:
    tap, address = _quoted(lease.tap), str(lease.address)
    reflected = Element(family="bridge", name="reflected", key=(tap, tap))
    if lease.address is None:
        return (reflected,)
    return (
        Element(family="bridge", name="guests", key=(tap, lease.mac, address)),
        reflected,
        *(() if fragments else (Element(family="bridge", name="fragments", key=(address,)),)),
        _member("leased", address, address),
        _member("refused", address),
    )


def _asking(lease: Lease) -> Iterator[Element]:
    """Yield the elements of a guest with DHCP."""
    tap, hardware = _quoted(lease.tap), _number(lease.mac)
    for own in (0, int(lease.address or 0)):
        key = (tap, lease.mac, hardware, str(own))
        yield Element(family="bridge", name="asking", key=key, value=(bridge_mac(lease.network),))
    yield Element(family="bridge", name="answered", key=(tap, hardware))


def _guest6(lease: Lease, fragments: bool) -> tuple[Element, ...]:
    """Return the elements of a NIC's IPv6 address, and of its link-local one."""
    if lease.address6 is None:
        return ()
    leased = str(lease.address6)
    return (
        *_addressed6(lease, lease.address6),
        _bridged("near6", lease.mac, str(link_local(lease.mac))),
        *(() if fragments else (_bridged("fragments6", leased),)),
        _member("leased", leased, leased, family="ip6"),
        _member("refused", leased, family="ip6"),
    )


def _addressed6(lease: Lease, leased: IPv6Address) -> Iterator[Element]:
    """Yield the elements by which a guest has, and advertises, its leased and its link-local address only."""
    tap = _quoted(lease.tap)
    for address in (leased, link_local(lease.mac)):
        yield _bridged("guests6", tap, lease.mac, str(address))
        yield _bridged("advertised", tap, *_halves(address))
    yield _bridged("linked", tap, _number(lease.mac))
    yield _bridged("ipv6", tap, lease.mac)


def _halves(address: IPv6Address) -> tuple[str, str]:
    """Return an address as two numbers of 64 bits (`nft_bridge`)."""
    return str(int(address) >> 64), str(int(address) & ((1 << 64) - 1))


def _number(mac: str) -> str:
    """Return a MAC as a decimal number: nftables has no names for the fields of these sets, and lists them so."""
    return str(int.from_bytes(octets(mac)))


def _published(port: PortRequest, lease: Lease) -> Iterator[Element]:
    """Yield the elements of a published port, in the table of each family of its destinations."""
    key, host_ip = (port.protocol.value, str(port.host_port)), port.host_ip
    for address in destinations(port, lease):
        family, value = "ip" if address.version == 4 else "ip6", (str(address), str(port.port))
        if host_ip is None or host_ip == EVERY_IPV6:
            yield Element(family=family, name="published", key=key, value=value)
        else:
            yield Element(family=family, name="published_at", key=(str(host_ip), *key), value=value)


def _quoted(link: str) -> str:
    return f'"{link}"'
