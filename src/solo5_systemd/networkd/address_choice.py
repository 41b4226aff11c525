"""The choice of a task's addresses, MACs, taps and ports, and of the ranges of new networks."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from ipaddress import IPv6Network
from pathlib import Path

from solo5_systemd.base.errors import HostError, InvalidRequestError, TakenError
from solo5_systemd.base.names import TaskName
from solo5_systemd.network import sysctls
from solo5_systemd.network.derived_addresses import unique_local_prefix
from solo5_systemd.network.ipam import Remembered, assign_leases
from solo5_systemd.network.joined import TAP_MTU_MAX
from solo5_systemd.network.model import NicRequest, Request, Reservation
from solo5_systemd.network.netlink import link_index
from solo5_systemd.network.network_ranges import choose_network
from solo5_systemd.network.remembered_addresses import RememberedAddresses
from solo5_systemd.network.request_checks import check_families, check_limits, check_ports, check_reserved, check_routes
from solo5_systemd.networkd.bridges import Bridges
from solo5_systemd.settings.addresses import IpNetwork
from solo5_systemd.settings.network import default_mtu
from solo5_systemd.settings.network_policy import Network
from solo5_systemd.settings.solo5_toml import Settings

_MACHINE_ID = Path("/etc/machine-id")


class Choice:
    """Chooses values that a task does not request, and checks those that it does. Changes nothing; not thread-safe.

    Args:
        settings, reserved, last: as `settings`, `reserved` and `remembered` of `NetworkState`.

    Attributes:
        remembered: those at the last choice.
    """

    def __init__(
        self,
        bridges: Bridges,
        settings: Callable[[], Settings],
        reserved: Callable[[], Iterable[IpNetwork]],
        last: RememberedAddresses | None,
    ) -> None:
        self._bridges, self._links, self._leases = bridges, bridges.links, bridges.leases
        self._settings, self._reserved, self._last = settings, reserved, last
        self.remembered: Remembered = {}

    def choose(self, task: TaskName, request: Request) -> tuple[Reservation, Sequence[Network]]:
        """Return a reservation for a task without one, and networks that it makes. Raises as `NetworkState.reserve`."""
        nics, ports = request.nics, request.ports
        settings = self._settings() if ports else Settings()
        check_reserved(ports, settings)
        loops = any(str(port.host_ip) == "::1" for port in ports) and any(
            network.shared for network in settings.networks
        )
        check_ports(ports, [nic.nic for nic in nics], self._leases.allocations, loopback6=loops)
        self.remembered = self._last() if self._last else {}
        new = self._new_networks(nics)
        networks = [self._checked(network, nics) for network in (*self._bridges.networks.values(), *new)]
        check_limits(request, networks)
        if any(nic.limits.routes for nic in nics):  # most have none, and need no dump of the host's routes
            held = [record.reservation for record in self._leases.records if record.reservation.task != task]
            own = [network.bridge for network in networks if network.join is None]
            routes = self._links.routes
            host = (*routes.ranges(own), *self._reserved())
            check_routes(nics, held, networks, self._settings().networks, host)
        # In the range of a joined network, the host has addresses as well.
        joined = {network.name for network in networks if network.join}
        local = self._links.routes.addresses() if any(nic.network in joined for nic in nics) else ()
        leases = assign_leases(
            task, nics, networks, self._leases.allocations, lambda link: bool(link_index(link)), local, self.remembered
        )
        reservation = request.reservation(task, leases)
        check_families(reservation)
        return reservation, networks[len(self._bridges.networks) :]

    def default_mtus(self) -> Callable[[Network], int]:
        """Return a function that returns the MTU in bytes of a network that sets none; it dumps the routes once."""
        uplink = cache(self._links.routes.uplink_mtu)
        return lambda network: default_mtu(uplink(), ipv6=bool(network.has_ipv6))

    def _checked(self, network: Network, nics: Sequence[NicRequest]) -> Network:
        """Return a network, checked and with the present MTU of its bridge if it is requested and that is of others."""
        wanted = [nic for nic in nics if nic.network == network.name]
        if network.join is None or not wanted:
            return network
        facts = self._bridges.joined_bridge(network)
        vlans = {0, network.join.vlan or facts.default_pvid} if facts.vlan_filtering else {0}
        for nic in wanted:
            if nic.mac and self._links.has_mac(network.bridge, nic.mac, vlans):
                raise TakenError(
                    f"MAC address {nic.mac} for NIC {nic.nic} is in use on bridge {network.bridge}: expected a free "
                    "one.",
                    "Leave it out to have one chosen.",
                )
        return replace(network, mtu=min(facts.mtu, TAP_MTU_MAX))

    def _new_networks(self, nics: Iterable[NicRequest]) -> Sequence[Network]:
        names = dict.fromkeys(nic.network for nic in nics if nic.network not in self._bridges.networks)
        if not names:
            return ()
        settings = self._settings()
        new: list[Network] = []
        mtu_of = self.default_mtus()
        own = [network.bridge for network in self._bridges.networks.values() if network.join is None]
        held = [lease for each in self._leases.records for lease in each.reservation.leases]
        behind = [route for lease in held for route in lease.limits.routes]
        routed = [*self._reserved(), *behind, *self._links.routes.ranges(own, (4,))]
        for name in names:
            known = settings.network(name)
            if known is None:
                raise InvalidRequestError(
                    f"network {name} does not exist: expected one of "
                    f"{', '.join(network.name for network in settings.networks)}.",
                    f"Define it as [network.{name}] in a *.toml file in /etc/solo5.",
                )
            if not known.mtu:
                known = replace(known, mtu=mtu_of(known))
            used = (*self._bridges.networks.values(), *new)
            if known.has_ipv6 and known.join is None:
                if not sysctls.has_ipv6():
                    raise HostError(
                        f"network {name} has IPv6, and this host's kernel has none (ipv6.disable=1).",
                        f"Leave out network.{name}.ipv6 below /etc/solo5, or boot without ipv6.disable=1.",
                    )
                routed += self._links.routes.ranges([each.bridge for each in used], (6,))
            reserved = [each for other in settings.networks if other.name != name for each in other.ranges]
            remembered = self._last.of_network(name) if self._last else ()
            new.append(choose_network(known, used, (*routed, *reserved), _local_prefix, remembered))
        return new


def _local_prefix() -> IPv6Network:
    try:
        return unique_local_prefix(_MACHINE_ID.read_text().strip())
    except (OSError, ValueError) as error:
        raise HostError(
            f"this host has no unique local prefix: {_MACHINE_ID} has no machine ID.",
            'Run systemd-machine-id-setup, or set a prefix such as network.default.ipv6 = "2001:db8:1::/64" below '
            "/etc/solo5.",
        ) from error
