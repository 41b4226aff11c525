"""Name servers of guests: those of a network's settings, or else those of this host."""

import asyncio
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import ip_network
from pathlib import Path

from solo5_systemd.base.locks import closing
from solo5_systemd.base.names import NetworkName
from solo5_systemd.base.paths import READ_UNTRUSTED
from solo5_systemd.settings.egress import METADATA, METADATA6
from solo5_systemd.settings.network import NAMESPACE_NETWORK
from solo5_systemd.settings.resolver import UNSET, Resolver, parse_resolv_conf, without
from solo5_systemd.settings.solo5_toml import Settings

RESOLV_CONF = Path("/etc/resolv.conf")

RESOLVED = Path("/run/systemd/resolve/resolv.conf")
"""The name servers of systemd-resolved, whose stub (127.0.0.53) no guest reaches: systemd-resolved.service(8)."""

_MAX_SIZE = 64 << 10
"""Bytes of a resolv.conf that are read; it has some hundred."""

_EVERY = {4: ip_network("0.0.0.0/0"), 6: ip_network("::/0")}


class HostResolvers:
    """The name servers of networks and of this host; raises SettingsError if a settings file is wrong."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self._settings = settings

    async def of(self, networks: Sequence[NetworkName]) -> Resolver:
        """Return the name servers and search domains for a guest of these networks.

        In a namespace of other programs, those of both versions of IP.

        Args:
            networks: of its NICs; the first is that of its name server.
        """
        settings = self._settings()
        found = UNSET
        for name in networks:
            network = settings.network(name)
            found |= network.resolver if network else UNSET
        if found.servers and found.search:
            return found
        host = await asyncio.to_thread(host_resolver)
        first = settings.network(networks[0]) if networks else None
        if first is None or not first.policy.metadata:
            # The resolvers of some clouds have these addresses: packets of the guest to them are dropped.
            host = without(host, map(ip_network, (*METADATA, *METADATA6)))
        if NAMESPACE_NETWORK not in networks:  # of which the lease shows whether they have IPv6
            versions = self.versions(networks) or {4}
            host = without(host, [_EVERY[version] for version in _EVERY.keys() - versions])
        return found | host

    def versions(self, networks: Sequence[NetworkName]) -> frozenset[int]:
        """Return the versions of IP, 4 and 6, that guests of these networks can have."""
        settings = self._settings()
        known = [network for name in networks if (network := settings.network(name)) is not None]
        four = any(not each.without_ipv4 for each in known)
        six = any(each.join.ipv6 if each.join else each.has_ipv6 for each in known)
        return frozenset(version for version, has in ((4, four), (6, six)) if has)

    def by_dhcp(self, networks: Sequence[NetworkName]) -> bool:
        """Return whether one of these networks has a DHCP server."""
        return not self._settings().served.isdisjoint(networks)


def host_resolver() -> Resolver:
    """Return the name servers and search domains of this host that guests can use; those of no file are empty."""
    found, stub = parse_resolv_conf(_content(RESOLV_CONF))
    if stub:
        behind, _ = parse_resolv_conf(_content(RESOLVED))
        return Resolver(servers=behind.servers or found.servers, search=found.search or behind.search)
    return found


def _content(path: Path) -> str:
    """Return the beginning of a regular file; empty if it cannot be read."""
    with suppress(OSError), closing(os.open(path, READ_UNTRUSTED)) as descriptor:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            content = os.read(descriptor, _MAX_SIZE).decode("ascii", "replace")
            # Half a line can be another address.
            return content.rpartition("\n")[0] if len(content) == _MAX_SIZE else content
    return ""
