"""What IPv6 changes on the host besides links and rules: prefixes of new networks, and forwarding.

All of it happens only while a network with IPv6 is up.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from ipaddress import IPv6Address, IPv6Network
from pathlib import Path

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import NetworkName
from solo5_systemd.network import ipv6_sysctls
from solo5_systemd.network.derived_addresses import unique_local_prefix
from solo5_systemd.network.ipam6 import with_ipv6
from solo5_systemd.network.lease_files import LeaseStore
from solo5_systemd.network.links import Links
from solo5_systemd.network.model import IpAddress, Network
from solo5_systemd.settings.network import NetworkSettings
from solo5_systemd.settings.solo5_toml import Settings

_MACHINE_ID = Path("/etc/machine-id")


class Ipv6:
    """The host's part of networks with IPv6. Not thread-safe.

    The saved sysctls are in the file of those of IPv4, under their own names.
    """

    def __init__(self, store: LeaseStore, links: Links) -> None:
        self._store = store
        self._links = links

    def with_prefixes(
        self,
        new: Sequence[Network],
        used: Sequence[Network],
        settings: Settings,
        reserved: Iterable[IPv6Network] = (),
        remembered: Callable[[NetworkName], Collection[IpAddress]] = lambda _: (),
    ) -> Sequence[Network]:
        """Return new networks with the IPv6 prefixes that their settings have, or that are chosen.

        Args:
            reserved: prefixes that theirs must not overlap, besides those of routes and settings.
            remembered: returns the addresses that declared tasks had on a network last.

        Raises:
            HostError: the kernel has no IPv6, or a prefix overlaps another.
        """
        chosen: list[Network] = []
        for network in new:
            known = settings.network(network.name)
            if known is None or known.ipv6 is None:
                chosen.append(network)
                continue
            if network.join is not None:  # the LAN's: bridged, and routed by others
                chosen.append(replace(network, ipv6=known.ipv6.prefix, gateway6=known.ipv6.gateway))
                continue
            if not ipv6_sysctls.is_available():
                raise HostError(
                    f"network {network.name} has IPv6, and this host's kernel has none (ipv6.disable=1).",
                    f"Leave out network.{network.name}.ipv6 below /etc/solo5, or boot without ipv6.disable=1.",
                )
            routed = self._links.routes.prefixes([each.bridge for each in used])
            busy = (*routed, *reserved, *_configured(settings, known))
            had = remembered(network.name)
            found = with_ipv6(network, known.ipv6, (*used, *chosen), busy, _local_prefix, had)
            chosen.append(replace(found, dns6=advertised_servers(known)))
        return chosen

    def save_sysctls(self, *, shared: bool) -> None:
        """Save the sysctls that a network with IPv6 changes: once, since later values are this service's.

        Args:
            shared: it is in the namespace of other programs, whose loopback its guests reach.
        """
        before = self._store.sysctls()
        if ipv6_sysctls.FORWARDING not in before:
            self._store.save_sysctls({**before, **ipv6_sysctls.values_to_restore(shared=shared)})

    def is_router(self) -> bool:
        """Return whether the host forwards IPv6 packets for others than this service."""
        return ipv6_sysctls.is_router(self._store.sysctls())

    def restore_sysctls(self) -> None:
        """Restore the saved sysctls unless the host is a router for others, and forget them; idempotent."""
        before = self._store.sysctls()
        if ipv6_sysctls.FORWARDING in before:
            ipv6_sysctls.restore(before)
            rest = {name: value for name, value in before.items() if not name.startswith(("ipv6/", "bridge/"))}
            self._store.save_sysctls(rest)


def advertised_servers(known: NetworkSettings) -> tuple[IPv6Address, ...]:
    """Return the name servers in a network's router advertisements."""
    return tuple(server for server in known.resolver.servers if isinstance(server, IPv6Address))


def _configured(settings: Settings, known: NetworkSettings) -> Iterable[IPv6Network]:
    """Yield the prefixes that the settings give to other networks."""
    for other in settings.networks:
        if other.name != known.name and other.ipv6 is not None and other.ipv6.prefix is not None:
            yield other.ipv6.prefix


def _local_prefix() -> IPv6Network:
    try:
        return unique_local_prefix(_MACHINE_ID.read_text().strip())
    except (OSError, ValueError) as error:
        raise HostError(
            f"this host has no unique local prefix: {_MACHINE_ID} has no machine ID.",
            'Run systemd-machine-id-setup, or set a prefix such as network.default.ipv6 = "2001:db8:1::/64" below '
            "/etc/solo5.",
        ) from error
