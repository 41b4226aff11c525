"""The limits of one NIC: its egress, its rate and its routes, as requested, and under the operator's policy."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.settings.egress import EGRESS, Egress, intersection
from solo5_systemd.settings.guest_routes import ROUTES, Routes, is_within
from solo5_systemd.settings.model import NetworkPolicy
from solo5_systemd.settings.rate import UNLIMITED, Rate, check_cap, lower

if TYPE_CHECKING:
    from solo5_systemd.network.model import Network, NicRequest

COMMON_MAX = 256
"""The most destinations of one guest: each is a rule or two of its own chain, which a new connection passes in turn."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one NIC.

    Attributes:
        egress: the destinations of its connections; None: every one that its network permits.
        rate: bytes and packets per second.
        routes: the source addresses that it has besides its own, which the host routes to it.
    """

    egress: Annotated[Egress, EGRESS] = None
    rate: Rate = UNLIMITED
    routes: Annotated[Routes, ROUTES] = ()

    def or_else(self, other: "Limits") -> "Limits":
        """Return these limits, with the egress or the rate of others where these have none."""
        return replace(
            self,
            egress=other.egress if self.egress is None else self.egress,
            rate=other.rate if self.rate == UNLIMITED else self.rate,
        )

    def under(self, policy: NetworkPolicy) -> "Limits":
        """Return what applies in a network: destinations of both lists, the lower rates, and the permitted routes.

        No route with a list, which is enforced for the guest's own address alone.
        """
        egress = intersection(self.egress, policy.egress)
        permitted = tuple(each for each in self.routes if egress is None and is_within(each, policy.routes))
        return Limits(egress=egress, rate=lower(self.rate, policy.rate), routes=permitted)


NO_LIMITS = Limits()


def check_limits(nics: Iterable["NicRequest"], networks: Iterable["Network"]) -> None:
    """Check that the limits of a request can be enforced, and are within the operator's.

    Raises:
        InvalidRequestError: they are not.
    """
    named = {network.name: network for network in networks}
    for nic in nics:
        network = named[nic.network]
        if network.join is not None and nic.limits.egress is not None:
            raise InvalidRequestError(
                f"egress of NIC {nic.nic} cannot be enforced in network {network.name}, which joins bridge "
                f"{network.bridge}: expected a network of this package.",
                "Leave egress out there, or restrict the guest at the LAN's router.",
            )
        _check_routes(nic, network)
        listed = nic.limits.under(network.policy).egress
        if listed is not None and len(listed) > COMMON_MAX:
            raise InvalidRequestError(
                f"egress of NIC {nic.nic} and that of network {network.name} have {len(listed)} destinations in "
                f"common: expected {COMMON_MAX} or fewer.",
                "List ranges instead of addresses, and ranges of ports, in one of the two.",
            )
        check_cap(nic.limits.rate, network.policy.rate, f"network {network.name} for NIC {nic.nic}")


def _check_routes(nic: "NicRequest", network: "Network") -> None:
    for route in nic.limits.routes:
        has = network.ipv4 if route.version == 4 else network.ipv6
        if not is_within(route, network.policy.routes) or has is None:
            within = ", ".join(str(each) for each in network.policy.routes if each.version == route.version)
            raise InvalidRequestError(
                f"route {route} of NIC {nic.nic} is not permitted in network {network.name}: expected "
                f"{f'a range within {within}' if within and has else f'none of IPv{route.version}'}.",
                f"The operator permits it by network.{network.name}.routes, such as "
                f'routes = ["{route}"] in [network.{network.name}] below /etc/solo5.',
            )
    if nic.limits.routes and nic.limits.under(network.policy).egress is not None:
        raise InvalidRequestError(
            f"NIC {nic.nic} has routes and an egress list, which is enforced for its own address alone: expected one "
            "of the two.",
            f"Leave out egress of the task and of network {network.name}, and have the guest filter what it forwards.",
        )
