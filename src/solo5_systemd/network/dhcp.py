"""The files that the DHCP server of a network reads: dnsmasq(8)."""

from ipaddress import IPv4Network

from solo5_systemd.names import TaskName
from solo5_systemd.network.model import GuestNames, Lease, Network

SERVER_PORT = 67

LEASE_TIME = "24h"
"""After half of it a guest renews its lease; while it lasts, a guest needs no server."""

HOSTS, OPTIONS = "hosts", "options"
"""The directories of dnsmasq's entries and options, one file for each tap."""

_HOST_NAME = 12


def is_served(network: Network) -> bool:
    """Return whether the guests of a network have a DHCP server of this host."""
    return network.policy.dhcp and network.join is None


def server_config(network: Network, directory: str) -> str:
    """Return the configuration of the server of a network.

    It gives out no address but those of entries, answers for no other network, keeps no file of leases, identifies a
    guest by its MAC address alone, and is no name server. siaddr is the server's address, as MirageOS requires.

    Args:
        network: with a range and a gateway.
        directory: that of its entries and options, as the server sees it.
    """
    ipv4 = network.ipv4 or IPv4Network(0)  # of this service: it has one
    lines = (
        f"# Network {network.name}: written by solo5-networkd, and removed with the last guest.",
        "port=0",
        "no-hosts",
        "no-resolv",
        "pid-file",
        f"interface={network.bridge}",
        "except-interface=lo",
        "bind-dynamic",
        f"dhcp-range={ipv4.network_address},static,{ipv4.netmask},{LEASE_TIME}",
        "dhcp-authoritative",
        "dhcp-ignore-clid",
        "dhcp-ignore-names",
        "leasefile-ro",
        "no-ping",
        "quiet-dhcp",
        f"dhcp-option=option:router,{network.gateway4}",
        f"dhcp-option=option:mtu,{network.mtu}",
        f"dhcp-hostsdir={directory}/{HOSTS}",
        f"dhcp-optsdir={directory}/{OPTIONS}",
    )
    return "".join(f"{line}\n" for line in lines)


def entry(lease: Lease) -> str:
    """Return dnsmasq's entry of a guest: its MAC address, the tag of its options, its address."""
    return f"{lease.mac},set:{lease.tap},{lease.address}\n"


def options(lease: Lease, task: TaskName, names: GuestNames) -> str:
    """Return the options of a guest: host name, name servers, search domains, of which the first is its domain."""
    servers, search = names.resolver.servers, names.resolver.search
    values = [
        f"{_HOST_NAME},{names.hostname or task}",
        *([f"option:dns-server,{','.join(map(str, servers))}"] if servers else ()),
        *([f"option:domain-name,{search[0]}", f"option:domain-search,{','.join(search)}"] if search else ()),
    ]
    return "".join(f"tag:{lease.tap},{value}\n" for value in values)
