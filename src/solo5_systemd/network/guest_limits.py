"""The limits of one NIC, as requested and under the operator's policy: egress, rate, routes, and idle time."""

from dataclasses import dataclass, replace
from typing import Annotated

from solo5_systemd.settings.egress import EGRESS, Egress, intersection
from solo5_systemd.settings.guest_routes import ROUTES, Routes, is_within
from solo5_systemd.settings.network_keys import NetworkPolicy
from solo5_systemd.settings.rate import UNLIMITED, Rate, lower


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one NIC.

    Attributes:
        egress: the destinations of its connections; None: every one that its network permits.
        rate: bytes and packets per second.
        routes: the source addresses that it has besides its own, which the host routes to it.
        idle_s: seconds without a packet after which its task sleeps; 0: it never does.
        idle_stops: its task ends instead, and waits without a process for its next packet.
    """

    egress: Annotated[Egress, EGRESS] = None
    rate: Rate = UNLIMITED
    routes: Annotated[Routes, ROUTES] = ()
    idle_s: int = 0
    idle_stops: bool = False

    @property
    def without_idle(self) -> "Limits":
        """Return these limits without those that are of the task, not of the NIC."""
        return replace(self, idle_s=0, idle_stops=False)

    def or_else(self, other: "Limits") -> "Limits":
        """Return these limits, with the egress, the rate or the idle time of others where these have none."""
        return replace(
            self,
            egress=other.egress if self.egress is None else self.egress,
            rate=other.rate if self.rate == UNLIMITED else self.rate,
            idle_s=self.idle_s or other.idle_s,
            idle_stops=self.idle_stops or other.idle_stops,
        )

    def under(self, policy: NetworkPolicy) -> "Limits":
        """Return what applies in a network: destinations of both lists, the lower rates, and the permitted routes.

        No route with a list, which is enforced for the guest's own address alone.
        """
        egress = intersection(self.egress, policy.egress)
        permitted = tuple(each for each in self.routes if egress is None and is_within(each, policy.routes))
        return replace(self, egress=egress, rate=lower(self.rate, policy.rate), routes=permitted)


NO_LIMITS = Limits()
