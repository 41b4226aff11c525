"""Recovery of a damaged lease record from the kernel's state.

The tap's alias contains task and NIC, its bridge identifies the network (on a joined bridge, which several networks
may join, the alias does), and the elements of the nftables tables contain addresses and ports.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from ipaddress import IPv4Interface, IPv6Address, IPv6Interface, ip_address, ip_network

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import DeviceName, NetworkName, TaskName
from solo5_systemd.network.guest_limits import NO_LIMITS, Limits
from solo5_systemd.network.model import (
    EVERY_IPV6,
    IpAddress,
    Lease,
    LeaseRecord,
    LeaseState,
    Network,
    NicRequest,
    PortRequest,
    Protocol,
    Reservation,
    mac_address,
)
from solo5_systemd.network.nft_elements import BEHIND, BEHIND6, GUESTS, GUESTS6, PUBLISHED, UNLEASED, Element
from solo5_systemd.network.nft_objects import EGRESS, RATES
from solo5_systemd.settings.address_pool import host_address
from solo5_systemd.settings.egress import Destination, destination
from solo5_systemd.settings.rate import FIELDS as RATE_FIELDS
from solo5_systemd.settings.rate import Rate

_ALIAS = re.compile(r"solo5 task (\S+) NIC ([A-Za-z0-9]+)(?: in network (\S+))?", re.ASCII)


def tap_alias(task: TaskName, nic: DeviceName, joined: NetworkName | None = None) -> str:
    """Return the link alias (IFLA_IFALIAS) of a NIC's tap, as `ip link` shows it.

    Args:
        joined: its network, if that joins an existing bridge.
    """
    return f"solo5 task {task} NIC {nic}" + (f" in network {joined}" if joined else "")


def tap_owner(alias: str) -> tuple[TaskName, DeviceName] | None:
    """Return the task and NIC in a link alias; None for an alias of another form."""
    match = _ALIAS.fullmatch(alias)
    return (TaskName(match[1]), DeviceName(match[2])) if match else None


def tap_network(alias: str) -> NetworkName | None:
    """Return the joined network in a link alias; None for another tap."""
    match = _ALIAS.fullmatch(alias)
    return NetworkName(match[3]) if match and match[3] else None


def recover_lease_record(
    task: TaskName, taps: Mapping[str, tuple[str, Network]], elements: Iterable[Element]
) -> LeaseRecord | None:
    """Rebuild the lease record of an attached task.

    Args:
        taps: alias and network of each tap, by tap name.

    Returns:
        The lease record; None where no tap of the task has an element in the sets `guests`, `guests6` and `unleased`.
    """
    known = frozenset(elements)
    six = {(element.key[0], IPv6Address(element.key[2])) for element in known if element.name == GUESTS6}
    guests = {element.key[0]: element.key[:2] for element in known if element.name == GUESTS6}
    guests |= {element.key[0]: element.key for element in known if element.name in (GUESTS, UNLEASED)}
    leases = tuple(
        _lease(tap, nic, network, guests[tap], [address for of, address in six if of == tap])
        for tap, (alias, network) in sorted(taps.items())
        if tap in guests and (nic := _nic(task, alias)) is not None
    )
    if not leases:
        return None
    limits = {lease.nic: found for lease in leases if (found := _limits(lease, known)) != NO_LIMITS}
    nics = {address: lease.nic for lease in leases for address in lease.addresses}
    ports = _ports([element for element in sorted(known, key=str) if _target(element) in nics], nics)
    return LeaseRecord(
        reservation=Reservation(task=task, leases=leases, ports=ports, limits=limits),
        nics=tuple(
            NicRequest(nic=lease.nic, network=lease.network, limits=limits.get(lease.nic, NO_LIMITS))
            for lease in leases
        ),
        state=LeaseState.ATTACHED,
        expires=0,
    )


def _nic(task: TaskName, alias: str) -> DeviceName | None:
    owner = tap_owner(alias)
    return owner[1] if owner and owner[0] == task else None


def _lease(
    tap: str, nic: DeviceName, network: Network, guest: tuple[str, ...], addresses6: Iterable[IPv6Address]
) -> Lease:
    _, mac, *addresses = guest
    leased6 = next((address for address in addresses6 if network.ipv6 and address in network.ipv6), None)
    prefix = network.ipv4.prefixlen if network.ipv4 else 32
    return Lease(
        nic=nic,
        network=network.name,
        bridge=network.bridge,
        tap=tap,
        ipv4=IPv4Interface((addresses[0], prefix)) if addresses else None,
        gateway4=network.gateway4,
        mac=mac_address(mac),
        mtu=network.mtu,
        ipv6=IPv6Interface((leased6, network.ipv6.prefixlen)) if leased6 and network.ipv6 else None,
        gateway6=network.gateway6 if leased6 else None,
    )


def _limits(lease: Lease, elements: Iterable[Element]) -> Limits:
    """Return the limits of a NIC as they apply: those of the request, under the network's.

    An egress list is in two chains where the guest has two addresses.
    """
    own = [each for each in elements if each.has_object and each.key[0] in _keys(lease)]
    values = {each.name: each.value for each in own}
    chains = [each.value for each in sorted(own, key=str) if each.name == EGRESS]
    behind = (each.key[2] for each in elements if each.name in (BEHIND, BEHIND6) and each.key[0] == lease.tap)
    rates = (int(values[name][0]) if name in values else None for name in RATES)
    return Limits(
        egress=_egress(entry for chain in chains for entry in chain) if chains else None,
        rate=Rate(**dict(zip(RATE_FIELDS, rates, strict=True))),
        routes=tuple(sorted(map(ip_network, behind), key=str)),
    )


def _egress(entries: Iterable[str]) -> tuple[Destination, ...]:
    """Return an egress list; an empty one if another program has changed the guest's rules into something else."""
    try:
        return tuple(map(destination, entries))
    except InvalidRequestError:
        return ()


def _keys(lease: Lease) -> tuple[str, ...]:
    return *map(str, lease.addresses), lease.tap


def _target(element: Element) -> IpAddress | None:
    return host_address(element.value[0]) if element.name in PUBLISHED else None


def _ports(elements: Iterable[Element], nics: Mapping[IpAddress, DeviceName]) -> tuple[PortRequest, ...]:
    """Return the ports of these elements; one that is published at every address has an element in both tables.

    One of a guest with IPv6 alone has an element in table ip6.
    """
    four = {nic for address, nic in nics.items() if address.version == 4}
    found = [_port(element, nics) for element in elements]
    alone = {port for port in found if port.host_ip == EVERY_IPV6 and port.nic not in four}
    ports = [replace(port, host_ip=None) if port in alone else port for port in found]
    every = {replace(port, host_ip=EVERY_IPV6) for port in ports if port.host_ip is None}
    return tuple(port for port in ports if port not in every)


def _port(element: Element, nics: Mapping[IpAddress, DeviceName]) -> PortRequest:
    *host_ip, protocol, host_port = element.key
    address, port = element.value
    every = EVERY_IPV6 if element.family == "ip6" else None
    return PortRequest(
        nic=nics[ip_address(address)],
        host_ip=ip_address(host_ip[0]) if host_ip else every,
        host_port=int(host_port),
        port=int(port),
        protocol=Protocol(protocol),
    )
