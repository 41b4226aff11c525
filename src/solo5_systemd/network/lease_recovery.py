"""What a task holds, read from the kernel: for when its lease file is damaged.

A tap's alias names task and NIC, its bridge the network, and our tables' elements its addresses and ports.
"""

import re
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv4Interface

from solo5_systemd.names import DeviceName, TaskName
from solo5_systemd.network.model import (
    Holding,
    HoldingState,
    Lease,
    Network,
    NicRequest,
    PortRequest,
    Protocol,
    Reservation,
    mac_address,
)
from solo5_systemd.network.nft_elements import Element

_ALIAS = re.compile(r"solo5 task (\S+) NIC ([A-Za-z0-9]+)", re.ASCII)


def tap_alias(task: TaskName, nic: DeviceName) -> str:
    """What a tap is marked with; `ip link` shows it."""
    return f"solo5 task {task} NIC {nic}"


def tap_owner(alias: str) -> tuple[TaskName, DeviceName] | None:
    """The task and NIC that a tap is marked with; None for another mark."""
    match = _ALIAS.fullmatch(alias)
    return (TaskName(match[1]), DeviceName(match[2])) if match else None


def salvage(task: TaskName, taps: Mapping[str, tuple[str, Network]], elements: Iterable[Element]) -> Holding | None:
    """Put together what the task holds.

    Args:
        task: whose.
        taps: all taps by name, with their alias and the network that they are on.
        elements: our tables'.

    Returns:
        What it holds; None where the kernel knows nothing of it.
    """
    known = frozenset(elements)
    guests = {element.key[0]: element.key for element in known if element.name == "guests"}
    leases = tuple(
        _lease(tap, nic, network, guests[tap])
        for tap, (alias, network) in sorted(taps.items())
        if tap in guests and (nic := _nic(task, alias)) is not None
    )
    if not leases:
        return None
    nics = {lease.ipv4.ip: lease.nic for lease in leases}
    ports = tuple(_port(element, nics) for element in sorted(known, key=str) if _target(element) in nics)
    return Holding(
        reservation=Reservation(task=task, leases=leases, ports=ports),
        nics=tuple(NicRequest(nic=lease.nic, network=lease.network) for lease in leases),
        state=HoldingState.ATTACHED,
        expires=0,
    )


def _nic(task: TaskName, alias: str) -> DeviceName | None:
    owner = tap_owner(alias)
    return owner[1] if owner and owner[0] == task else None


def _lease(tap: str, nic: DeviceName, network: Network, guest: tuple[str, ...]) -> Lease:
    _, mac, address = guest
    return Lease(
        nic=nic,
        network=network.name,
        bridge=network.bridge,
        tap=tap,
        ipv4=IPv4Interface((address, network.ipv4.prefixlen)),
        gateway4=network.gateway4,
        mac=mac_address(mac),
        mtu=network.mtu,
    )


def _target(element: Element) -> IPv4Address | None:
    return IPv4Address(element.value[0]) if element.value else None


def _port(element: Element, nics: Mapping[IPv4Address, DeviceName]) -> PortRequest:
    *host_ip, protocol, host_port = element.key
    address, port = element.value
    return PortRequest(
        nic=nics[IPv4Address(address)],
        host_ip=IPv4Address(host_ip[0]) if host_ip else None,
        host_port=int(host_port),
        port=int(port),
        protocol=Protocol(protocol),
    )
