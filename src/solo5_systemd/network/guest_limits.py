"""The limits of one NIC: its egress and its rate, as requested, and as they apply under the operator's policy."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.names import DeviceName
from solo5_systemd.settings.egress import Egress, egress_text, intersection, parse_egress_text
from solo5_systemd.settings.model import NetworkPolicy
from solo5_systemd.settings.rate import UNLIMITED, Rate, check_cap, lower, rate

if TYPE_CHECKING:
    from solo5_systemd.network.model import Network, NicRequest

LIMITS_SIGNATURE = "(sss)"
"""A NIC with limits: its name, egress and rate, each as one text."""

COMMON_MAX = 256
"""The most destinations of one guest: each is a rule or two of its own chain, which a new connection passes in turn."""

LimitsWire = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one NIC.

    Attributes:
        egress: the destinations of its connections; None: every one that its network permits.
        rate: bytes and packets per second.
    """

    egress: Egress = None
    rate: Rate = UNLIMITED

    def to_wire(self) -> tuple[str, str]:
        """Return both as texts; empty for none."""
        return egress_text(self.egress), str(self.rate)

    @classmethod
    def from_wire(cls, egress: str, rates: str) -> "Limits":
        """Parse the texts of D-Bus or of a lease record.

        Raises:
            InvalidRequestError: one is malformed.
        """
        return cls(egress=parse_egress_text(egress), rate=rate(rates.split()))

    def or_else(self, other: "Limits") -> "Limits":
        """Return these limits, with the egress or the rate of others where these have none."""
        return Limits(
            egress=other.egress if self.egress is None else self.egress,
            rate=other.rate if self.rate == UNLIMITED else self.rate,
        )

    def under(self, policy: NetworkPolicy) -> "Limits":
        """Return what applies in a network: destinations of both lists, and the lower one of each two rates."""
        return Limits(egress=intersection(self.egress, policy.egress), rate=lower(self.rate, policy.rate))


NO_LIMITS = Limits()


def limits_to_wire(limits: Mapping[DeviceName, Limits]) -> Sequence[list[str]]:
    """Return the limits of NICs for D-Bus and lease records, whose structs are lists."""
    return [[nic, *each.to_wire()] for nic, each in limits.items()]


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
        listed = nic.limits.under(network.policy).egress
        if listed is not None and len(listed) > COMMON_MAX:
            raise InvalidRequestError(
                f"egress of NIC {nic.nic} and that of network {network.name} have {len(listed)} destinations in "
                f"common: expected {COMMON_MAX} or fewer.",
                "List ranges instead of addresses, and ranges of ports, in one of the two.",
            )
        check_cap(nic.limits.rate, network.policy.rate, f"network {network.name} for NIC {nic.nic}")
