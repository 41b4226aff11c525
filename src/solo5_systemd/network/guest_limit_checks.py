"""Which limits of NICs are refused: those that cannot be enforced, that the operator forbids, or that others have."""

from collections.abc import Iterable, Sequence

from solo5_systemd.base.errors import InvalidRequestError, TakenError
from solo5_systemd.network.model import Network, NicRequest, Request, Reservation
from solo5_systemd.settings.addresses import IpNetwork, is_within, overlapping
from solo5_systemd.settings.network import NO_NETWORK, NetworkSettings
from solo5_systemd.settings.rate import check_cap

COMMON_MAX = 256
"""The most destinations of one guest: each is a rule or two of its own chain, which a new connection passes in turn."""


def check_limits(request: Request, networks: Iterable[Network]) -> None:
    """Check that the limits of a request can be enforced, and are within the operator's.

    Raises:
        InvalidRequestError: they are not.
    """
    named = {network.name: network for network in networks}
    for nic in request.nics:
        network = named[nic.network]
        if network.join is not None and nic.limits.egress is not None:
            raise InvalidRequestError(
                f"egress of NIC {nic.nic} cannot be enforced in network {network.name}, which joins bridge "
                f"{network.bridge}: expected a network of this package.",
                "Leave egress out there, or restrict the guest at the LAN's router.",
            )
        _check_permitted(nic, network)
        listed = nic.limits.under(network.policy).egress
        if listed is not None and len(listed) > COMMON_MAX:
            raise InvalidRequestError(
                f"egress of NIC {nic.nic} and that of network {network.name} have {len(listed)} destinations in "
                f"common: expected {COMMON_MAX} or fewer.",
                "List ranges instead of addresses, and ranges of ports, in one of the two.",
            )
        check_cap(nic.limits.rate, network.policy.rate, f"network {network.name} for NIC {nic.nic}")
        _check_idle(request, nic, network)


def _check_idle(request: Request, nic: NicRequest, network: Network) -> None:
    if request.idle_s and not network.policy.sleep:
        raise InvalidRequestError(
            f"NIC {nic.nic} has an idle time, and network {network.name} has sleep = false: expected a task that never "
            "sleeps, or another network."
        )
    if request.idle_stops and (network.join is not None or network.name == NO_NETWORK):
        why = "has no packets" if network.join is None else f"joins bridge {network.bridge}, which others answer for"
        raise InvalidRequestError(
            f"NIC {nic.nic} is to wait for packets without a tap, and network {network.name} {why}: expected another "
            "network of this package.",
            "Let the task sleep: IdleAction=sleep.",
        )
    if 0 < request.idle_s < network.policy.idle_min:
        raise InvalidRequestError(
            f"NIC {nic.nic} has an idle time of {request.idle_s} s, which is less than network {network.name} "
            f"permits: expected {network.policy.idle_min} s or more (idle_min)."
        )


def _check_permitted(nic: NicRequest, network: Network) -> None:
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


def check_routes(
    nics: Sequence[NicRequest],
    others: Iterable[Reservation],
    networks: Iterable[Network],
    configured: Iterable[NetworkSettings],
    host: Iterable[IpNetwork],
) -> None:
    """Check that nothing else has the ranges that are to be routed to guests.

    Args:
        nics: of a task.
        others: the reservations of other tasks.
        networks: those in use, and those of the task.
        configured: the networks of the settings.
        host: the ranges of the host's routes and addresses.

    Raises:
        TakenError: a range overlaps one of these, or one of another NIC of the task.
    """
    taken = [
        (f"of task {held.task}", route) for held in others for lease in held.leases for route in lease.limits.routes
    ]
    ranges: list[tuple[str, IpNetwork | None, IpNetwork | None]] = [
        *((each.name, each.ipv4, each.ipv6) for each in networks),
        *((each.name, each.ipv4, each.ipv6.prefix if each.ipv6 else None) for each in configured),
    ]
    taken += [(f"of network {name}", each) for name, *both in ranges for each in both if each]
    taken += [("of this host's routes or addresses", each) for each in host]
    for nic in nics:
        for route in nic.limits.routes:
            for whose, each in taken:
                if overlapping(route, [each]):
                    raise TakenError(
                        f"route {route} of NIC {nic.nic} overlaps {each} {whose}: expected a range that nothing else "
                        "has."
                    )
            taken.append(("of another NIC", route))
