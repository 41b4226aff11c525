"""The elements of the sets and maps of the nftables tables: networks, guests, published ports.

The tables themselves, whose rules look them up, are in `nft_rules`; `drops` has the sets whose elements count.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

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
    PortRequest,
    Reservation,
    destinations,
)
from solo5_systemd.network.nft_objects import EGRESS, Element, rate_values
from solo5_systemd.settings.addresses import IpNetwork
from solo5_systemd.settings.network_policy import CLOSED, Join, Network

ACTIVE = "active"
"""The set whose elements count the frames from and to guests that may sleep, by tap."""


def has_ipv6(networks: Iterable[Network]) -> bool:
    """Return whether the host routes IPv6 for one of these networks, so that table ip6 exists."""
    return any(network.routes6 for network in networks)


@dataclass(frozen=True, kw_only=True)
class Ruleset:
    """The input from which the tables are made.

    Attributes:
        networks: those that are up.
        segments: the further bridges of these networks, each with its network. Their names reach table ip only with
            br_netfilter, which passes bridged packets through it.
        forwards, forwards6: packets between other links are accepted: the host forwards for others, too, or none of the
            networks has a bridge of this service.
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
    return tuple(dict.fromkeys(element for group in grouped(ruleset) for element in group))


def grouped(ruleset: Ruleset) -> Iterator[Sequence[Element]]:
    """Yield the elements of all networks and segments, then those of each task: all at once take 5 KB for each."""
    networks = ruleset.networks
    six = {network.name for network in networks if network.routes6}
    shared = dict.fromkeys(
        (
            *(element for network in networks for element in network_elements(network, networks)),
            *(element for segment, name in ruleset.segments for element in _segment(segment, name, six=name in six)),
        )
    )
    for group in chain((tuple(shared),), (record_elements(record, networks) for record in ruleset.records)):
        yield group if six else [each for each in group if each.family != "ip6"]  # else there is no table ip6


def differing(ruleset: Ruleset, other: Ruleset) -> tuple[Element, ...]:
    """Return the elements of all networks and segments, and of the tasks whose elements the other ruleset may lack.

    Most changes are those of networks that most tasks are not on: the elements of many tasks take memory and time.
    """
    if has_ipv6(ruleset.networks) != has_ipv6(other.networks):  # table ip6 comes or goes, with elements of every task
        return elements(ruleset)
    ours, theirs = ({network.name: network for network in each.networks} for each in (ruleset, other))
    same = {record.reservation.task: record for record in other.records}
    records = (
        record
        for record in ruleset.records
        if same.get(record.reservation.task) is not record
        or any(ours.get(lease.network) != theirs.get(lease.network) for lease in record.reservation.leases)
    )
    return elements(replace(ruleset, records=tuple(records)))


def network_elements(network: Network, networks: Sequence[Network]) -> Iterator[Element]:
    """Yield the elements of a network; `networks` are all that are up, for its `reach`."""
    bridge, policy = _quoted(network.bridge), network.policy
    if network.join is not None:  # with br_netfilter, its frames pass tables ip and ip6 as well
        for family in ("ip", "ip6"):
            yield _element(family, "bridged", bridge, bridge)
        return
    reached = [other.bridge for other in networks if other.name in policy.reach and other.join is None]
    if network.ipv4 is None:  # what its guests send by IPv4 is of no network
        yield _element("ip", "bridges", bridge)
    if policy.dhcp:
        yield _element("ip", "dhcp", bridge)
    for family, inside, gateway, masquerade in (
        ("ip", network.ipv4, network.gateway4, network.masquerade),
        ("ip6", network.ipv6, network.gateway6, network.nat66),
    ):
        if inside is None:
            continue
        yield _element(family, "bridges", bridge)
        yield _element(family, "within", inside, inside)
        if masquerade:
            yield _element(family, "masqueraded", inside)
        # Isolated ports exchange no frames, but the host could route between them.
        for other in (*(() if policy.isolated else (network.bridge,)), *reached):
            yield _element(family, "paths", bridge, _quoted(other))
        for name, is_set in (("routed", policy.routed), ("metadata", policy.metadata), ("shared", network.shared)):
            if is_set:
                yield _element(family, name, bridge)
        for port in dict.fromkeys(policy.host):
            number, _, protocol = port.partition("/")
            yield _element(family, "services", bridge, protocol, number)
        if network.shared:  # the gateway is the loopback of the programs beside the guests
            yield _element(family, "gateways", bridge, gateway)
    if network.shared and network.ipv6 is not None:
        yield _element("ip6", "looped", "::1")


def _segment(segment: str, network: NetworkName, *, six: bool) -> Iterator[Element]:
    port = _quoted(segment_link(segment)[0])
    for family in ("ip", "ip6") if six else ("ip",):
        for name in ("bridges", "segments"):
            yield _element(family, name, _quoted(segment))
    yield _bridged("reflected", port, port)
    yield _bridged("returned", port, value=(bridge_mac(network),))


def record_elements(record: LeaseRecord, networks: Sequence[Network]) -> tuple[Element, ...]:
    """Return the elements of a task in the state of its record; `networks` are all that are up.

    One that waits has no process: what lets its packets pass, and announces questions for it.
    """
    if record.state not in (LeaseState.ATTACHED, LeaseState.WAITING):  # reserved, or being released: nothing passes
        return ()
    held, named = record.reservation, {network.name: network for network in networks}
    own = (
        *(element for lease in held.leases for element in _guest(held, lease, named.get(lease.network))),
        *(element for port in held.ports for element in _published(port, held.lease(port.nic))),
    )
    if record.waits:
        waiting = (element for lease in held.leases for element in _waiting(lease))
        return (*(element for element in own if element.family != "bridge"), *waiting)  # its taps are gone
    sleepers = held.leases if record.sleeps else ()
    announced = (element for lease in sleepers for element in _asleep(lease, named.get(lease.network)))
    return tuple(dict.fromkeys((*own, *announced)))


def _waiting(lease: Lease) -> Iterator[Element]:
    for address in lease.addresses:
        yield _bridged("waiting4", address) if address.version == 4 else _bridged("waiting6", *_halves(address))
        yield _element(_family(address), "waiting", address)


def _asleep(lease: Lease, network: Network | None) -> Iterator[Element]:
    """Yield the elements by which packets for a task that sleeps are announced."""
    tap = _quoted(lease.tap)
    for name in ("metered", ACTIVE, "asleep"):
        yield _bridged(name, tap)
    if lease.address is not None:
        yield _bridged("asleep4", tap, lease.address)
    own = link_local(lease.mac)
    for address in (lease.address6, own) if lease.address6 is not None else ():
        yield _bridged("asleep6", tap, *_halves(address))
    if lease.address6 is None and network is not None and network.join is not None and network.join.ipv6:
        yield _bridged("asleep_own", tap, _halves(own)[1])  # with any prefix


def _guest(reservation: Reservation, lease: Lease, network: Network | None) -> Iterator[Element]:
    """Yield the elements of one NIC, of which those of a joined network have table bridge alone; None: it is not up."""
    tap, policy = _quoted(lease.tap), network.policy if network is not None else CLOSED
    counted, limits, whole = reservation.idle_s > 0, lease.limits.under(policy), not policy.fragments
    join = network.join if network is not None else None
    if lease.address is not None:
        yield _bridged("guests", tap, lease.mac, lease.address)
    if join is not None:
        yield from _joined(lease, join)
    else:
        yield from _leased(lease, whole=whole)
        if not counted and limits.egress is None and not rate_values(limits.rate):
            for address in lease.addresses:  # frames of a guest without limits pass table bridge after one look-up
                yield _bridged(_numbered("plain", address), tap, lease.mac, address)
        if policy.dhcp:
            hardware, gateway = _number(lease.mac), (bridge_mac(lease.network),)
            for own in (0, int(lease.address or 0)):  # ciaddr: the leased one of a guest that renews (RFC 2131, 4.3.2)
                yield _bridged("asking", tap, lease.mac, hardware, own, value=gateway)
            yield _bridged("answered", tap, hardware)
        yield from _egress(lease, limits)
    for route in limits.routes:
        yield _bridged(_numbered("behind", route), tap, lease.mac, _range(route))
        if network is not None and join is None:
            yield from _behind(lease, network, route)
    if whole and (join is not None or limits.routes):  # by tap: it sends from more than its leased addresses
        yield _bridged("whole", tap)
    yield from _rates(lease, limits, counted=counted)


def _leased(lease: Lease, *, whole: bool) -> Iterator[Element]:
    """Yield the elements of a NIC's addresses, of which IPv6 has a link-local one as well."""
    tap = _quoted(lease.tap)
    yield _bridged("reflected", tap, tap)
    if lease.address6 is not None:
        yield from _with_ipv6(lease)
        yield _bridged("near6", lease.mac, link_local(lease.mac))
    for address in lease.addresses:
        family, own = _family(address), str(address)
        if whole:
            yield _bridged(_numbered("fragments", address), own)
        yield _element(family, "leased", own, own)
        yield _element(family, "refused", own)


def _joined(lease: Lease, join: Join) -> Iterator[Element]:
    tap = _quoted(lease.tap)
    yield _bridged("joined", tap)
    if lease.address is None:
        yield _bridged("unleased", tap, lease.mac)
    if join.ipv6:
        yield from _with_ipv6(lease)
        if lease.address6 is None:
            yield _bridged("unleased6", tap, lease.mac)


def _with_ipv6(lease: Lease) -> Iterator[Element]:
    """Yield the elements of a guest with IPv6: of a leased address, it advertises that and its link-local one only."""
    tap = _quoted(lease.tap)
    yield _bridged("ipv6", tap, lease.mac)
    yield _bridged("linked", tap, _number(lease.mac))
    for address in (lease.address6, link_local(lease.mac)) if lease.address6 is not None else ():
        yield _bridged("guests6", tap, lease.mac, address)
        yield _bridged("advertised", tap, *_halves(address))


def _behind(lease: Lease, network: Network, route: IpNetwork) -> Iterator[Element]:
    """Yield the elements of a route of a guest, whose addresses are translated as those of its network."""
    own, inside = lease.address_of(route.version), network.inside(route.version)
    family, behind = _family(route), _range(route)
    yield _element(family, "behind", behind)
    for sender in (behind, *((own,) if own else ())):
        yield _element(family, "routers", sender, behind)
    for pair in ((inside, route), (route, inside), (route, route)) if inside else ():
        yield _element(family, "within", *map(_range, pair))
    if network.masquerade if route.version == 4 else network.nat66:
        yield _element(family, "masqueraded", behind)


def _egress(lease: Lease, limits: Limits) -> Iterator[Element]:
    """Yield the elements of a guest's egress list; the chain of an address has the entries of its version of IP."""
    if limits.egress is None:
        return
    for address in lease.addresses:
        # Of an entry with ports for TCP and UDP, one for each: a rule is for one protocol.
        entries = (replace(entry, protocol=protocol) for entry in limits.egress for protocol in entry.protocols)
        own = tuple(str(each) for each in entries if each.network.version == address.version)
        yield _element(_family(address), "unlisted", address)
        yield _element(_family(address), EGRESS, address, value=own)
        yield _bridged(_numbered("unlisted", address), address)
    gateway = bridge_mac(lease.network)
    yield _bridged("confined", _quoted(lease.tap), value=(gateway,))
    yield _bridged("secluded", lease.mac, value=(gateway,))


def _rates(lease: Lease, limits: Limits, *, counted: bool) -> Iterator[Element]:
    values, tap = rate_values(limits.rate), _quoted(lease.tap)
    for name in ("metered",) if values or counted else ():
        yield _bridged(name, tap)
    for name in ("over_sent", "over_received") if values else ():
        yield _bridged(name, tap)
    if counted:
        yield _bridged(ACTIVE, tap)
    for name, value in values.items():
        yield _bridged(name, tap, value=value)


def _published(port: PortRequest, lease: Lease) -> Iterator[Element]:
    """Yield the elements of a published port, in the table of each family of its destinations."""
    key, host_ip = (port.protocol.value, port.host_port), port.host_ip
    for address in destinations(port, lease):
        value = (str(address), str(port.port))
        if host_ip is None or host_ip == EVERY_IPV6:
            yield _element(_family(address), "published", *key, value=value)
        else:
            yield _element(_family(address), "published_at", host_ip, *key, value=value)


def _element(family: str, name: str, *key: object, value: tuple[str, ...] = ()) -> Element:
    return Element(family=family, name=name, key=tuple(map(str, key)), value=value)


_bridged = partial(_element, "bridge")


def _family(of: IpAddress | IpNetwork) -> str:
    return "ip" if of.version == 4 else "ip6"


def _numbered(name: str, of: IpAddress | IpNetwork) -> str:
    """Return the name of a set of table bridge, of which there is one for each version of IP."""
    return name if of.version == 4 else f"{name}6"


def _range(network: IpNetwork) -> str:
    """Return a range as nftables lists it."""
    return str(network.network_address if network.prefixlen == network.max_prefixlen else network)


def _halves(address: IpAddress) -> tuple[str, str]:
    """Return an IPv6 address as two numbers of 64 bits (`nft_bridge`)."""
    return str(int(address) >> 64), str(int(address) & ((1 << 64) - 1))


def _number(mac: str) -> str:
    """Return a MAC as a decimal number: nftables has no names for the fields of these sets, and lists them so."""
    return str(int.from_bytes(octets(mac)))


def _quoted(link: str) -> str:
    return f'"{link}"'
