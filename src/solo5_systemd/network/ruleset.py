"""Our nftables rules, in nft's own language (nft(8)).

Networks, guests and published ports are elements of sets and maps, so that neither the cost of a packet nor that of a
change grows with the number of tasks. The few rules that differ from host to host depend on `Plan` alone. They are
text, and not libnftables' JSON, because the JSON reader of nftables 1.0.6 (Debian 12) makes a plain set of a map whose
value is a concatenation, and crashes at the first rule that uses it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from solo5_systemd.network.plan import Lease, Network, PortRequest, Reservation

TABLE = "solo5"
FAMILIES = ("ip", "bridge")
REFUSED = "refused"
"""The set whose elements count the connections that a guest was refused, by its address."""

FLOWS = "flows"
"""The set whose elements count the connections that a guest has open; the kernel adds and removes them."""

_TABLES = """
table ip solo5 {
    OWNED
    set bridges { type ifname; }
    set within { type ipv4_addr . ipv4_addr; flags interval; }
    set masqueraded { type ipv4_addr; flags interval; }
    map published { type inet_proto . inet_service : ipv4_addr . inet_service; }
    map published_at { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; }
    set paths { type ifname . ifname; }
    set routed { type ifname; }
    set metadata { type ifname; }
    set services { type ifname . inet_proto . inet_service; }
    set refused { type ipv4_addr; counter; }
    set flows { type ipv4_addr; size 65535; flags dynamic; }

    # 127.0.0.1:PORT needs route_localnet on our bridges, which by itself would open the host's loopback to guests.
    chain localnet {
        type filter hook prerouting priority raw; policy accept;
        iifname @bridges ip daddr 127.0.0.0/8 drop
    }
    # What comes from a link for 127.0.0.1 is a neighbour's attempt: translated, the kernel would no longer refuse it.
    chain prerouting {
        type nat hook prerouting priority dstnat; policy accept;
        ip daddr 127.0.0.0/8 accept
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

    # A guest calls the host: ping, and what the operator has opened.
    chain input {
        type filter hook input priority filter; policy accept;
        iifname != @bridges accept
        ct state established,related accept
        ct state invalid drop
        icmp type echo-request goto limited
        iifname . meta l4proto . th dport @services goto limited
        drop
    }
    chain forward {
        type filter hook forward priority filter; policy accept;
        ct state established,related accept
        iifname @bridges ct state invalid drop
        oifname @bridges goto inward
        iifname @bridges goto outward
        FOREIGN
    }
    # To a guest: from guests of its own network and of those that may reach it, to published ports, and from beyond
    # the host where the network is routed.
    chain inward {
        iifname . oifname @paths goto limited
        ct status dnat goto limited
        iifname != @bridges oifname @routed accept
        drop
    }
    chain outward {
        ip daddr 169.254.0.0/16 iifname != @metadata drop
        goto limited
    }
    # A new connection. Only what is accepted is counted; what is dropped is never entered in the host's table. What is
    # in it already, such as datagrams that nothing answers, goes on.
    chain limited {
        ct status confirmed accept
        LIMITS
        accept
    }
    chain refuse {
        ip saddr @refused drop
        drop
    }
}
table bridge solo5 {
    OWNED
    set guests { type ifname . ether_addr . ipv4_addr; }
    set reflected { type ifname . ifname; }
    set storms { type ifname; size 65535; flags dynamic, timeout; timeout 1m; }

    # What one guest sends to all is a copy for each of them, and a queue of theirs that fills.
    chain prerouting {
        type filter hook prerouting priority dstnat; policy accept;
        iifname != "s5-*" accept
        meta pkttype { broadcast, multicast } \\
            update @storms { iifname limit rate over 500/second burst 100 packets } drop
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

# ip_forward concerns all links, and has to: a published port is called, and a reply arrives, on any of them, and each
# link that a packet comes in by must forward. So where the host forwarded nothing before us, this rule does it.
_FOREIGN = "drop"


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


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that our tables are made from.

    Attributes:
        networks: those that are up.
        reservations: those that are attached.
        forwards: the host forwarded packets before the first network was up: what passes between links that are not
            ours is no affair of ours.
    """

    networks: Sequence[Network] = ()
    reservations: Sequence[Reservation] = ()
    forwards: bool = False


def elements(plan: Plan) -> tuple[Element, ...]:
    """Return all elements of our tables."""
    return (
        *(element for network in plan.networks for element in elements_of(network, plan.networks)),
        *(element for reservation in plan.reservations for element in elements_for(reservation)),
    )


def elements_of(network: Network, networks: Sequence[Network]) -> tuple[Element, ...]:
    """What a network adds beside others that are up."""
    inside, bridge, policy = str(network.ipv4), _quoted(network.bridge), network.policy
    reached = [other.bridge for other in networks if other.name in policy.reach]
    paths = ([] if policy.isolated else [network.bridge]) + reached
    return (
        _member("bridges", bridge),
        _member("within", inside, inside),
        *((_member("masqueraded", inside),) if network.masquerade else ()),
        *(_member("paths", bridge, _quoted(other)) for other in paths),
        *((_member("routed", bridge),) if policy.routed else ()),
        *((_member("metadata", bridge),) if policy.metadata else ()),
        *(_member("services", bridge, port.protocol, str(port.port)) for port in dict.fromkeys(policy.host)),
    )


def _member(name: str, *key: str) -> Element:
    return Element(family="ip", name=name, key=key)


def elements_for(reservation: Reservation) -> tuple[Element, ...]:
    """What a task adds."""
    return (
        *(element for lease in reservation.leases for element in _guest(lease)),
        *(_published(port, reservation.lease(port.nic)) for port in reservation.ports),
    )


def tables(plan: Plan, *, owned: bool) -> str:
    """Return our tables without their elements.

    Args:
        plan: what they are for.
        owned: no other program may change them while we live (Linux 6.9, nftables 1.0.9). They stay when we end.
    """
    limits = {network.policy.connections for network in plan.networks}
    text = _TABLES.replace("OWNED", "flags owner, persist;" if owned else "")
    text = text.replace("FOREIGN", "" if plan.forwards else _FOREIGN)
    return text.replace("LIMITS", "\n        ".join(_limit(limit, plan.networks) for limit in sorted(limits)))


def _limit(connections: int, networks: Sequence[Network]) -> str:
    """By the bridge, since the networks that have one limit are few, and known when the rule is made."""
    bridges = ", ".join(_quoted(n.bridge) for n in networks if n.policy.connections == connections)
    return f"iifname {{ {bridges} }} add @{FLOWS} {{ ip saddr ct count over {connections} }} goto refuse"


def replace(plan: Plan, *, owned: bool) -> str:
    """The transaction after which our tables are exactly these, whatever they were."""
    return f"{remove(owned=owned)}\n{tables(plan, owned=owned)}\n{add(elements(plan))}"


def remove(*, owned: bool) -> str:
    """The transaction after which our tables are gone."""
    if owned:
        return "\n".join(f"destroy table {family} {TABLE}" for family in FAMILIES)
    # Added first, so that the deletion does not fail; nftables 1.0.6 has no "destroy".
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
        _member(REFUSED, str(lease.ipv4.ip)),
    )


def _published(port: PortRequest, lease: Lease) -> Element:
    key = (port.protocol.value, str(port.host_port))
    target = (str(lease.ipv4.ip), str(port.port))
    if port.host_ip is None:
        return Element(family="ip", name="published", key=key, value=target)
    return Element(family="ip", name="published_at", key=(str(port.host_ip), *key), value=target)


def _quoted(link: str) -> str:
    return f'"{link}"'
