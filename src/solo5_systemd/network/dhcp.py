"""The files that the server of a network reads, which answers DHCP and sends router advertisements: dnsmasq(8)."""

from collections.abc import Sequence

from solo5_systemd.base.names import TaskName, host_name
from solo5_systemd.network.model import GuestNames, IpAddress, Lease
from solo5_systemd.settings.network_policy import Network

LEASE_TIME = "24h"
"""After half of it a guest renews its lease; while it lasts, a guest needs no server."""

PREFIX_LIFETIME_S = 10 * 365 * 86400
"""The lifetime of the prefix in router advertisements. MirageOS takes no prefix with an infinite lifetime, and does not
extend that of an address that it has: it would remove the address for a moment at the end.
"""

RA_INTERVAL_S = 60
"""Between unsolicited router advertisements. A guest that solicits has one at once, but MirageOS solicits once only,
and that may be lost.
"""

ROUTER_LIFETIME_S = 9000
"""For which a guest has its default route after an advertisement: the longest one of RFC 4861."""

HOSTS, OPTIONS = "hosts", "options"
"""The directories of dnsmasq's entries and options, one file for each tap."""

_HOST_NAME = 12


def is_served(network: Network) -> bool:
    """Return whether the guests of a network have a server of this host, for DHCP or router advertisements."""
    return (network.policy.dhcp or network.ra) and network.join is None


def server_config(network: Network, directory: str) -> str:
    """Return the configuration of the server of a network.

    It gives out no address but those of entries, answers for no other network, keeps no file of leases, identifies a
    guest by its MAC address alone, and is no name server. siaddr is the server's address, as MirageOS requires.

    `directory`: that of its entries and options, as the server sees it.
    """
    lines = [
        f"# Network {network.name}: written by solo5-networkd, and removed with the last guest.",
        "port=0",
        "no-hosts",
        "no-resolv",
        "pid-file",
        f"interface={network.bridge}",
        "except-interface=lo",
        "bind-dynamic",
        "quiet-dhcp",
    ]
    if network.policy.dhcp and network.ipv4:
        lines += [
            f"dhcp-range={network.ipv4.network_address},static,{network.ipv4.netmask},{LEASE_TIME}",
            "dhcp-authoritative",
            "dhcp-ignore-clid",
            "dhcp-ignore-names",
            "leasefile-ro",
            "no-ping",
            f"dhcp-option=option:router,{network.gateway4}",
            f"dhcp-option=option:mtu,{network.mtu}",
            f"dhcp-hostsdir={directory}/{HOSTS}",
            f"dhcp-optsdir={directory}/{OPTIONS}",
        ]
    if network.ra and network.ipv6:  # prefix, default route, MTU, name servers; no DHCPv6
        lines += [
            f"dhcp-range={network.ipv6.network_address},ra-only,{network.ipv6.prefixlen},{PREFIX_LIFETIME_S}",
            f"ra-param={network.bridge},mtu:{network.mtu},{RA_INTERVAL_S},{ROUTER_LIFETIME_S}",
            "quiet-ra",
        ]
        if servers := [f"[{server}]" for server in network.resolver.servers if server.version == 6]:
            lines.append(f"dhcp-option=option6:dns-server,{','.join(servers)}")
    return "".join(f"{line}\n" for line in lines)


def entry(lease: Lease) -> str:
    """Return dnsmasq's entry of a guest: its MAC address, the tag of its options, its address."""
    return f"{lease.mac},set:{lease.tap},{lease.address}\n"


def options(lease: Lease, task: TaskName, names: GuestNames) -> str:
    """Return the options of a guest: host name, name and NTP servers, search domains, the first of which is its own."""

    def servers(option: str, found: Sequence[IpAddress]) -> Sequence[str]:
        addresses = [str(server) for server in found if server.version == 4]  # the options have no others
        return [f"option:{option},{','.join(addresses)}"] if addresses else []

    search = names.resolver.search
    values = [
        f"{_HOST_NAME},{names.hostname or host_name(task)}",
        *servers("dns-server", names.resolver.servers),
        *servers("ntp-server", names.resolver.ntp),
        *([f"option:domain-name,{search[0]}", f"option:domain-search,{','.join(search)}"] if search else ()),
    ]
    return "".join(f"tag:{lease.tap},{value}\n" for value in values)
