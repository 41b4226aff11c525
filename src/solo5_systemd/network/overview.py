"""A network as operators see it: its settings, and how much of it is in use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from typing import Any, Self

from solo5_systemd.decode import Fields
from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.names import NetworkName, network_name
from solo5_systemd.network.plan import Network, ipv4_address
from solo5_systemd.settings import CLOSED, POLICY_KEYS, NetworkPolicy, NetworkSettings, network_policy

OVERVIEW_SIGNATURE = "(ssssqbbuubasbasbuba(st)a(st))"

_Texts = Sequence[str]
_Counts = Sequence[Sequence[Any]]
Wire = tuple[
    str, str, str, str, int, bool, bool, int, int, bool, _Texts, bool, _Texts, bool, int, bool, _Counts, _Counts
]


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """Packets of guests, by the guest's address.

    Attributes:
        refused: of new connections, for having too many.
        fragments: of datagrams.
    """

    refused: Mapping[IPv4Address, int] = field(default_factory=dict)
    fragments: Mapping[IPv4Address, int] = field(default_factory=dict)

    def within(self, ipv4: IPv4Network) -> "Dropped":
        """Those of one network's guests."""
        return Dropped(refused=_within(self.refused, ipv4), fragments=_within(self.fragments, ipv4))


def _within(counts: Mapping[IPv4Address, int], ipv4: IPv4Network) -> Mapping[IPv4Address, int]:
    return {address: count for address, count in counts.items() if address in ipv4}


@dataclass(frozen=True, kw_only=True)
class NetworkOverview:
    """One network.

    Attributes:
        name: the network's.
        bridge: the link that joins its tasks.
        ipv4: its range; None: not settled, since nobody has used it yet.
        gateway4: the bridge's own address; None as above.
        mtu: bytes.
        masquerade: what leaves the host carries the host's address.
        up: the bridge is there.
        leases: how many NICs hold an address.
        free: how many more can.
        policy: what passes the packet filter.
        dropped: packets of its guests.
    """

    name: NetworkName
    bridge: str
    ipv4: IPv4Network | None = None
    gateway4: IPv4Address | None = None
    mtu: int
    masquerade: bool
    up: bool
    leases: int
    free: int
    policy: NetworkPolicy = CLOSED
    dropped: Dropped = field(default_factory=Dropped)

    @classmethod
    def of(
        cls,
        network: Network | NetworkSettings,
        *,
        up: bool = False,
        leases: int = 0,
        free: int = 0,
        dropped: Dropped | None = None,
    ) -> Self:
        """A network in use, or one that is only configured."""
        return cls(
            name=network.name,
            bridge=network.bridge,
            ipv4=network.ipv4,
            gateway4=network.gateway4,
            mtu=network.mtu,
            masquerade=network.masquerade,
            up=up,
            leases=leases,
            free=free,
            policy=network.policy,
            dropped=dropped or Dropped(),
        )

    def to_wire(self) -> Wire:
        ipv4, gateway4 = str(self.ipv4 or ""), str(self.gateway4 or "")
        usage = (self.up, self.leases, self.free)
        policy = self.policy
        opened = (policy.routed, [*map(str, policy.reach)], policy.isolated, [str(port) for port in policy.host])
        counts = (_to_wire(self.dropped.refused), _to_wire(self.dropped.fragments))
        more = (*opened, policy.metadata, policy.connections, policy.fragments, *counts)
        return (self.name, self.bridge, ipv4, gateway4, self.mtu, self.masquerade, *usage, *more)

    @classmethod
    def from_wire(cls, wire: Wire) -> Self:
        """Parse what came over the bus.

        Raises:
            InvalidRequestError: a field is malformed.
        """
        name, bridge, ipv4, gateway4, mtu, masquerade, up, leases, free, *opened, refused, fragments = wire
        try:
            network = IPv4Network(ipv4) if ipv4 else None
        except ValueError as error:
            raise InvalidRequestError(f"range {ipv4!r} of network {name} is not an IPv4 network.") from error
        return cls(
            name=network_name(name),
            bridge=bridge,
            ipv4=network,
            gateway4=ipv4_address(gateway4) if gateway4 else None,
            mtu=mtu,
            masquerade=masquerade,
            up=up,
            leases=leases,
            free=free,
            policy=network_policy(Fields(dict(zip(POLICY_KEYS, opened, strict=True)))),
            dropped=Dropped(refused=_from_wire(refused), fragments=_from_wire(fragments)),
        )


def _to_wire(counts: Mapping[IPv4Address, int]) -> _Counts:
    # The library marshals a struct from a list, and from no tuple.
    return [[str(address), count] for address, count in counts.items()]


def _from_wire(counts: _Counts) -> Mapping[IPv4Address, int]:
    return {ipv4_address(address): count for address, count in counts}
