"""Our nftables rules, in nft's own language (nft(8)).

The rules never change: networks, guests and published ports are elements of sets and maps, so that neither the cost
of a packet nor that of a change grows with the number of tasks. They are text, and not libnftables' JSON, because
the JSON reader of nftables 1.0.6 (Debian 12) makes a plain set of a map whose value is a concatenation, and crashes
at the first rule that uses it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from solo5_systemd.network.plan import Lease, Network, PortRequest, Reservation

TABLE = "solo5"
FAMILIES = ("ip", "bridge")

_TABLES = """
table ip solo5 {
    set bridges { type ifname; }
    set within { type ipv4_addr . ipv4_addr; flags interval; }
    set masqueraded { type ipv4_addr; flags interval; }
    map published { type inet_proto . inet_service : ipv4_addr . inet_service; }
    map published_at { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; }

    # 127.0.0.1:PORT needs route_localnet on our bridges, which by itself would open the host's loopback to guests.
    chain localnet {
        type filter hook prerouting priority raw; policy accept;
        iifname @bridges ip daddr 127.0.0.0/8 drop
    }
    chain prerouting {
        type nat hook prerouting priority dstnat; policy accept;
        fib daddr type local dnat ip to ip daddr . meta l4proto . th dport map @published_at
        fib daddr type local dnat ip to meta l4proto . th dport map @published
    }
    chain output {
        type nat hook output priority -100; policy accept;
        fib daddr type local dnat ip to ip daddr . meta l4proto . th dport map @published_at
        fib daddr type local dnat ip to meta l4proto . th dport map @published
    }
    # A guest that calls a published port must be answered through us; what else stays within a network keeps its
    # address, what leaves it takes ours, and so does the host when it calls from 127.0.0.1.
    chain postrouting {
        type nat hook postrouting priority srcnat; policy accept;
        ip saddr . ip daddr @within ct status dnat masquerade
        ip saddr . ip daddr @within accept
        ip saddr @masqueraded masquerade
        ip saddr 127.0.0.0/8 oifname @bridges masquerade
    }
}
table bridge solo5 {
    set guests { type ifname . ether_addr . ipv4_addr; }
    set reflected { type ifname . ifname; }

    chain prerouting {
        type filter hook prerouting priority dstnat; policy accept;
        iifname != "s5-*" accept
        ether type ip iifname . ether saddr . ip saddr @guests accept
        ether type arp iifname . ether saddr . arp saddr ip @guests \\
            iifname . arp saddr ether . arp saddr ip @guests accept
        drop
    }
    # The price of hairpin mode on the taps, which a guest needs to call its own published port where br_netfilter
    # hands bridged packets to table ip: without this it would hear its own broadcasts.
    chain forward {
        type filter hook forward priority filter; policy accept;
        iifname . oifname @reflected meta pkttype { broadcast, multicast } drop
    }
}
"""


@dataclass(frozen=True, kw_only=True)
class Element:
    """One element of a set, or of a map where it has a value."""

    family: str
    name: str
    key: tuple[str, ...]
    value: tuple[str, ...] = ()

    def __str__(self) -> str:
        value = f" : {' . '.join(self.value)}" if self.value else ""
        return f"element {self.family} {TABLE} {self.name} {{ {' . '.join(self.key)}{value} }}"


def elements_of(network: Network) -> tuple[Element, ...]:
    """What a network adds."""
    inside = str(network.ipv4)
    return (
        Element(family="ip", name="bridges", key=(_quoted(network.bridge),)),
        Element(family="ip", name="within", key=(inside, inside)),
        *((Element(family="ip", name="masqueraded", key=(inside,)),) if network.masquerade else ()),
    )


def elements_for(reservation: Reservation) -> tuple[Element, ...]:
    """What a task adds."""
    return (
        *(element for lease in reservation.leases for element in _guest(lease)),
        *(_published(port, reservation.lease(port.nic)) for port in reservation.ports),
    )


def replace(elements: Iterable[Element]) -> str:
    """The transaction after which our tables are exactly these, whatever they were."""
    return f"{remove()}\n{_TABLES}\n{add(elements)}"


def remove() -> str:
    """The transaction after which our tables are gone."""
    # Added first, so that the deletion does not fail.
    return "\n".join(f"add table {family} {TABLE}\ndelete table {family} {TABLE}" for family in FAMILIES)


def add(elements: Iterable[Element]) -> str:
    return "\n".join(f"add {element}" for element in elements)


def delete(elements: Iterable[Element]) -> str:
    """The transaction that takes these away; it fails as a whole where one is not there."""
    return "\n".join(f"delete {element}" for element in elements)


def _guest(lease: Lease) -> tuple[Element, ...]:
    tap = _quoted(lease.tap)
    return (
        Element(family="bridge", name="guests", key=(tap, lease.mac, str(lease.ipv4.ip))),
        Element(family="bridge", name="reflected", key=(tap, tap)),
    )


def _published(port: PortRequest, lease: Lease) -> Element:
    key = (port.protocol.value, str(port.host_port))
    target = (str(lease.ipv4.ip), str(port.port))
    if port.host_ip is None:
        return Element(family="ip", name="published", key=key, value=target)
    return Element(family="ip", name="published_at", key=(str(port.host_ip), *key), value=target)


def _quoted(link: str) -> str:
    return f'"{link}"'
