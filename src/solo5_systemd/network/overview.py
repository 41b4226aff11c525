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

OVERVIEW_SIGNATURE = "(ssssqbbuubasbasbua(st))"

_Texts = Sequence[str]
Wire = tuple[
    str, str, str, str, int, bool, bool, int, int, bool, _Texts, bool, _Texts, bool, int, Sequence[Sequence[Any]]
]


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
        refused: packets of new connections that guests were refused for having too many, by address.
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
    refused: Mapping[IPv4Address, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        network: Network | NetworkSettings,
        *,
        up: bool = False,
        leases: int = 0,
        free: int = 0,
        refused: Mapping[IPv4Address, int] | None = None,
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
            refused=refused or {},
        )

    def to_wire(self) -> Wire:
        ipv4, gateway4 = str(self.ipv4 or ""), str(self.gateway4 or "")
        usage = (self.up, self.leases, self.free)
        policy = self.policy
        opened = (policy.routed, [*map(str, policy.reach)], policy.isolated, [str(port) for port in policy.host])
        # The library marshals a struct from a list, and from no tuple.
        refused = [[str(address), count] for address, count in self.refused.items()]
        more = (*opened, policy.metadata, policy.connections, refused)
        return (self.name, self.bridge, ipv4, gateway4, self.mtu, self.masquerade, *usage, *more)

    @classmethod
    def from_wire(cls, wire: Wire) -> Self:
        """Parse what came over the bus.

        Raises:
            InvalidRequestError: a field is malformed.
        """
        name, bridge, ipv4, gateway4, mtu, masquerade, up, leases, free, *opened, refused = wire
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
            refused={ipv4_address(address): count for address, count in refused},
        )
