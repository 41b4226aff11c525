"""The rules of a namespace whose interface is a guest's: every frame is forwarded between the interface and a tap.

The guest has the interface's addresses and MAC, and the link-local address of this. Frames with others do not leave its
tap, and neither do tagged frames and what a router, a DHCP server or a querier of groups sends. The stack of the
namespace receives none of what arrives.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface

from solo5_systemd.base.errors import HostError, InvalidRequestError
from solo5_systemd.base.names import TaskName
from solo5_systemd.network import nft_frame_forms
from solo5_systemd.network.derived import link_local
from solo5_systemd.network.guest_limits import NO_LIMITS
from solo5_systemd.network.model import Lease, NicRequest, PortRequest, mac_address
from solo5_systemd.network.nft_ip6 import GROUPS

TABLE = "netdev solo5"
MODULES = ("nf_tables", "nft_fwd_netdev")
"""The kernel's modules that the rules need."""


@dataclass(frozen=True, kw_only=True)
class Uplink:
    """The link of a namespace's default route.

    Attributes:
        name: its name, such as `eth0`.
        mac: its address; empty or of another length for links that have no Ethernet frames.
        mtu: in bytes.
        ipv4: its first global address; None without one.
        gateway4: the default route's.
        ipv6: as `ipv4`.
        gateway6: the default route's.
    """

    name: str
    mac: str
    mtu: int
    ipv4: IPv4Interface | None = None
    gateway4: IPv4Address | None = None
    ipv6: IPv6Interface | None = None
    gateway6: IPv6Address | None = None


def redirected_lease(nic: NicRequest, tap: str, uplink: Uplink | None, namespace: str) -> Lease:
    """Return the lease of a guest that has the interface of a namespace.

    Raises:
        HostError: the namespace has no interface with an address.
    """
    if uplink is None or (uplink.ipv4 is None and uplink.ipv6 is None):
        raise HostError(
            f"network namespace {namespace} has no interface with a default route and an address, which the guest of "
            f"NIC {nic.nic} would have: expected one, as CNI makes it.",
            "`ip -n NAME address` and `ip -n NAME route` show them.",
        )
    return Lease(
        nic=nic.nic,
        network=nic.network,
        bridge=uplink.name,
        tap=tap,
        ipv4=uplink.ipv4,
        gateway4=uplink.gateway4,
        mac=mac_address(uplink.mac),
        mtu=uplink.mtu,
        ipv6=uplink.ipv6,
        gateway6=uplink.gateway6,
    )


def check_redirected(task: TaskName, nics: tuple[NicRequest, ...], ports: tuple[PortRequest, ...]) -> None:
    """Check a request for the interface of a namespace.

    Raises:
        InvalidRequestError: a second NIC, or a value that the interface has already.
    """
    if len(nics) > 1:
        names = ", ".join(nic.nic for nic in nics)
        raise InvalidRequestError(
            f"task {task} has NICs {names}, and one is on network redirect: expected that one alone, which has the "
            "interface of the namespace."
        )
    [nic] = nics
    if nic.ipv4 or nic.ipv6 or nic.mac:
        raise InvalidRequestError(
            f"NIC {nic.nic} requests {nic.ipv4 or nic.ipv6 or nic.mac} on network redirect: expected neither an "
            "address nor a MAC, since it has those of the namespace's interface."
        )
    if nic.limits != NO_LIMITS:
        raise InvalidRequestError(
            f"NIC {nic.nic} has egress, a rate limit or an idle time on network redirect: expected none of them, since "
            "frames are forwarded past the packet filter."
        )
    for port in ports:
        if port.host_ip is not None or port.host_port != port.port:
            raise InvalidRequestError(
                f"port {port.host_port} is published to port {port.port} on network redirect: expected the same port "
                "at every address, since the guest has the namespace's address itself."
            )


def redirect_rules(lease: Lease) -> str:
    """Return the nft commands that replace the table with the rules of a lease."""
    return "\n".join(
        (
            f"add table {TABLE}",
            f"delete table {TABLE}",
            f"table {TABLE} {{",
            *_chain("resolving", nft_frame_forms.arp("drop"), lease),
            *_chain("packets", nft_frame_forms.ipv4("drop"), lease),
            *_neighbours6(lease),
            "\tchain sent {",
            f'\t\ttype filter hook ingress device "{lease.tap}" priority 0; policy drop;',
            # The kernel takes the tag off before this hook: `meta protocol` is that of the frame inside.
            "\t\tether type { 0x8100, 0x88a8, 0x9100 } drop",
            f"\t\tether saddr != {lease.mac} drop",
            *(f"\t\t{rule}" for rule in _allowed(lease)),
            "\t}",
            "\tchain received {",
            f'\t\ttype filter hook ingress device "{lease.bridge}" priority 0; policy accept;',
            *(f"\t\tmeta protocol ip {rule}" for rule in nft_frame_forms.ipv4("drop")),
            *(f"\t\tmeta protocol ip6 {rule}" for rule in nft_frame_forms.ipv6("drop")),
            f'\t\tfwd to "{lease.tap}"',
            "\t}",
            "}",
        )
    )


def _allowed(lease: Lease) -> Iterator[str]:
    forward = f'fwd to "{lease.bridge}"'
    if lease.address is not None:
        yield f"arp saddr ether {lease.mac} arp saddr ip {{ 0.0.0.0, {lease.address} }} goto resolving"
        yield "meta protocol ip udp dport 68 drop"
        yield "ip protocol igmp @th,0,8 0x11 drop"
        yield f"ip saddr {lease.address} goto packets"
    if lease.address6 is not None:
        yield "icmpv6 type { nd-router-advert, nd-redirect, mld-listener-query } drop"
        yield "meta protocol ip6 udp dport 546 drop"
        yield from (
            f"meta protocol ip6 {rule}" for rule in (*nft_frame_forms.ipv6("drop"), *nft_frame_forms.routers("drop"))
        )
        yield "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } goto neighbours6"
        yield f"ip6 saddr :: icmpv6 type {{ {GROUPS} }} {forward}"
        yield f"ip6 saddr {{ {_own6(lease)} }} {forward}"


def _chain(name: str, rules: Iterator[str], lease: Lease) -> Iterator[str]:
    yield f"\tchain {name} {{"
    yield from (f"\t\t{rule}" for rule in rules)
    yield f'\t\tfwd to "{lease.bridge}"'
    yield "\t}"


def _own6(lease: Lease) -> str:
    return f"{link_local(lease.mac)}, {lease.address6}"


def _neighbours6(lease: Lease) -> Iterator[str]:
    """Yield the chains of neighbour discovery, as those of table bridge (`network.nft_bridge`).

    Only the guest's own addresses are announced, with its own MAC, and detected as duplicates.
    """
    if lease.address6 is None:
        return
    mac = f"0x{lease.mac.replace(':', '')}"
    targets = (f"{int(each) >> 64} . {int(each) & ((1 << 64) - 1)}" for each in (lease.address6, link_local(lease.mac)))
    solicit, advert = "icmpv6 type nd-neighbor-solicit", "icmpv6 type nd-neighbor-advert"
    forward = f'fwd to "{lease.bridge}"'
    yield f"\tset own6 {{ typeof @th,64,64 . @th,128,64; elements = {{ {', '.join(targets)} }}; }}"
    yield "\tchain neighbours6 {"
    yield from (f"\t\t{rule}" for rule in nft_frame_forms.neighbours("drop"))
    yield "\t\tip6 length 24 goto announced6"
    yield f"\t\t{solicit} @th,192,16 0x0101 @th,208,48 {mac} goto announced6"
    yield f"\t\t{solicit} @th,192,16 0x0e01 ip6 saddr :: goto announced6"
    yield f"\t\t{advert} @th,192,16 0x0201 @th,208,48 {mac} goto announced6"
    yield "\t\tdrop"
    yield "\t}"
    yield "\tchain announced6 {"
    yield f"\t\t{solicit} ip6 saddr {{ {_own6(lease)} }} {forward}"
    yield f"\t\t{solicit} ip6 saddr :: @th,64,64 . @th,128,64 @own6 {forward}"
    yield f"\t\t{advert} ip6 saddr {{ {_own6(lease)} }} @th,64,64 . @th,128,64 @own6 {forward}"
    yield "\t\tdrop"
    yield "\t}"
