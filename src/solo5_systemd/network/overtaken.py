"""Routes of other programs, such as a VPN's, that take the packets for guests away from the bridge of their network.

A route that is wider than a network is harmless: the kernel prefers the bridge's. One that is more specific, or of a
routing table with precedence, takes what the host sends to the guests, and what it forwards to them.
"""

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

from solo5_systemd.base.names import NetworkName
from solo5_systemd.network.model import IpAddress

_OUR_TABLE = 505
"""The routing table of the remedy: one that no program is known to use."""


@dataclass(frozen=True, kw_only=True)
class Overtaken:
    """A guest whose packets leave by a route other than that of its network's bridge.

    Attributes:
        inside: the range of the network that has the guest's address.
        route: a phrase that names the route, with its link and its table.
    """

    network: NetworkName
    bridge: str
    inside: IPv4Network | IPv6Network
    guest: IpAddress
    route: str

    @property
    def remedy(self) -> str:
        """The commands that give all guests of the network their packets back, against every kind of route."""
        ip = f"ip -{self.inside.version}"
        return (
            f"{ip} route replace {self.inside} dev {self.bridge} table {_OUR_TABLE} && "
            f"{ip} rule add priority 1 to {self.inside} lookup {_OUR_TABLE}"
        )

    def __str__(self) -> str:
        return (
            f"{self.route} takes the packets for {self.guest} of network {self.network}. While the network is in use, "
            f"this gives them back: {self.remedy}; for good, keep the other program out of {self.inside}, or set "
            f"another range as network.{self.network}.ipv{self.inside.version}"
        )
