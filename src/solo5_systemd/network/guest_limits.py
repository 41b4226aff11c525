"""The limits of one NIC, as requested and under the operator's policy: egress, rate and routes."""

from dataclasses import dataclass, replace

from solo5_systemd.settings.addresses import Routes, is_within
from solo5_systemd.settings.egress import Egress, intersection
from solo5_systemd.settings.network_keys import NetworkPolicy
from solo5_systemd.settings.rate import UNLIMITED, Rate, lower


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one NIC.

    Attributes:
        egress: the destinations of its connections; None: every one that its network permits.
        rate: bytes and packets per second.
        routes: the source addresses that it has besides its own, which the host routes to it.
    """

    egress: Egress = None
    rate: Rate = UNLIMITED
    routes: Routes = ()

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
        return replace(self, egress=egress, rate=lower(self.rate, policy.rate), routes=permitted)


NO_LIMITS = Limits()
