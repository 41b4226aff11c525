"""Links, addresses and routes of this network namespace, through pyroute2; taps through `taps`."""

import contextlib
import errno
import os
import socket
import struct
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network, ip_address
from typing import Any

from solo5_systemd.base.dependencies import without_init
from solo5_systemd.base.errors import HostError, TakenError
from solo5_systemd.base.names import TaskName, task_namespace
from solo5_systemd.network import ipv6_sysctls, taps, task_taps
from solo5_systemd.network.derived import bridge_mac
from solo5_systemd.network.ipam import TAP_PREFIX, segment_link
from solo5_systemd.network.joined import TAP_MTU_MAX, BridgeFacts
from solo5_systemd.network.lease_recovery import tap_alias
from solo5_systemd.network.model import IpAddress, Lease, Network, mac_address
from solo5_systemd.network.modules import BRIDGE, VETH, needing
from solo5_systemd.network.raw_netlink import (
    NETLINK_ROUTE,
    NLM_DUMP,
    NetlinkSocket,
    attribute,
    attribute_of,
    attributes,
    equals,
    has_bits,
    is_type,
)
from solo5_systemd.network.redirect import Uplink
from solo5_systemd.network.sysctls import IP_FORWARD, is_set_for_link, set_for_link
from solo5_systemd.network.taps import BridgePort, Taps
from solo5_systemd.network.task_taps import TaskTap
from solo5_systemd.settings.guest_routes import IpNetwork

with without_init("pyroute2"):  # a database and a command line: 7 MB of memory, and 0.3 s at each start
    from pyroute2 import iproute
    from pyroute2.netlink.exceptions import NetlinkError

# linux/rtnetlink.h, if_link.h, if_addr.h, netconf.h
_GROUP_LINK, _GROUP_IPV4_ADDRESS, _GROUP_IPV4_NETCONF, _GROUP_IPV6_NETCONF = 1, 5, 24, 25
_RTM_NEWLINK, _RTM_DELLINK, _RTM_GETLINK, _RTM_DELADDR, _RTM_GETROUTE, _RTM_NEWNETCONF = 16, 17, 18, 21, 26, 80
_GROUP_IPV6_ADDRESS = 9
_IFADDRMSG6 = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, index
_IFA_F_NODAD = 2
_IFINFOMSG, _IFLA_IFNAME, _IFLA_MASTER = 16, 3, 10
_FLAGS, _CHANGE = 24, 28  # of struct ifinfomsg, from the message's header on
_IS_NEW = 1 << 31  # all bits are set for a new link
_IFADDRMSG, _IFA_LABEL = 8, 3
_NETCONFA_FORWARDING, _NO_LINK, _NEW_LINKS = 2, 0xFFFFFFFF, 0xFFFFFFFE
_INET6 = int.from_bytes((socket.AF_INET6, 0), sys.byteorder)  # struct netconfmsg, padded
_IFF_UP = 1
_RTMSG, _RTA_DST, _RTA_OIF = 12, 1, 4
_RT_SCOPE_UNIVERSE, _RT_TABLE_MAIN, _RT_TABLE_LOCAL = 0, 254, 255
_LOOPBACK6 = "::1"
_NAMES = {"addr": "addresses", "default_routes": "routes"}


@dataclass(frozen=True, kw_only=True)
class Link:
    """The attributes of a link that the service reads.

    Attributes:
        kind: empty for a physical device.
        mac: its address.
        alias: its description (ifalias).
        master: the index of its bridge, or 0.
        up: it is set up.
    """

    kind: str
    mac: str
    alias: str
    master: int
    up: bool


class Links:
    """The bridges and taps of the network service. Not thread-safe."""

    def __init__(self, owner: Callable[[TaskName], int]) -> None:
        """Open netlink sockets.

        Args:
            owner: returns the user id that may attach to the taps of a task.
        """
        self._route = iproute.IPRoute()
        self._dumps = NetlinkSocket(NETLINK_ROUTE)
        self._taps = Taps()
        self._owner = owner

    def routed_ranges(self, ours: Sequence[str]) -> Iterator[IPv4Network]:
        """Yield the ranges of the host's routes and addresses, without those of the links `ours`."""
        skip = {index(name) for name in ours}
        for destination, length, link in self._destinations(socket.AF_INET):
            if link not in skip:
                yield IPv4Network((destination, length), strict=False)
        for address in self._list("addr", family=socket.AF_INET):
            if address["index"] not in skip:
                yield _range(address.get_attr("IFA_LOCAL"), address["prefixlen"])

    def uplink_mtu(self) -> int | None:
        """Return the MTU of the link of the default route, of IPv4 or else of IPv6; None without one."""
        routes = (self._default_route(family) for family in (socket.AF_INET, socket.AF_INET6))
        found = (self._message(route[0]) for route in routes if route is not None)
        return next((message.get_attr("IFLA_MTU") for message in found if message is not None), None)

    def uplink_of_both(self) -> tuple[int | None, bool]:
        """Return the MTU of the link of the default route, of IPv4 or else of IPv6, and whether it has IPv6.

        IPv6 is an address other than a link-local one. Without such a link: None and False.
        """
        number = (self._default_route(socket.AF_INET) or self._default_route(socket.AF_INET6) or (0, ""))[0]
        message = self._message(number)
        if message is None:
            return None, False
        return message.get_attr("IFLA_MTU"), bool(self._global_address(socket.AF_INET6, number))

    def uplink(self) -> Uplink | None:
        """Return the link of the default route, of IPv4 or else of IPv6; None without one."""
        four = self._default_route(socket.AF_INET)
        six = self._default_route(socket.AF_INET6)
        number = (four or six or (0, ""))[0]
        message = self._message(number)
        if message is None:
            return None
        gateway6 = six[1] if six and six[0] == number else ""
        ipv4, ipv6 = (self._global_address(family, number) for family in (socket.AF_INET, socket.AF_INET6))
        return Uplink(
            name=message.get_attr("IFLA_IFNAME"),
            mac=mac_address(message.get_attr("IFLA_ADDRESS") or ""),
            mtu=message.get_attr("IFLA_MTU"),
            ipv4=IPv4Interface(ipv4) if ipv4 else None,
            gateway4=IPv4Address(four[1]) if four and four[1] else None,
            ipv6=IPv6Interface(ipv6) if ipv6 else None,
            gateway6=IPv6Address(gateway6) if gateway6 else None,
        )

    def _default_route(self, family: int) -> tuple[int, str] | None:
        for route in self._list("default_routes", family=family):
            if route.get_attr("RTA_OIF"):
                return route.get_attr("RTA_OIF"), route.get_attr("RTA_GATEWAY") or ""
        return None

    def _global_address(self, family: int, number: int) -> str:
        for address in self._list("addr", family=family, index=number):
            if address["scope"] == _RT_SCOPE_UNIVERSE:
                text = address.get_attr("IFA_LOCAL") or address.get_attr("IFA_ADDRESS")
                return f"{text}/{address['prefixlen']}"
        return ""

    def close(self) -> None:
        """Close the netlink sockets."""
        self._route.close()
        self._dumps.close()
        self._taps.close()

    def routed_prefixes(self, ours: Sequence[str]) -> Iterator[IPv6Network]:
        """Yield the prefixes of the host's IPv6 routes, those of its addresses included, without those of `ours`."""
        skip = {index(name) for name in ours}
        for destination, length, link in self._destinations(socket.AF_INET6):
            if link not in skip:
                yield IPv6Network((destination, length), strict=False)

    def _destinations(self, family: int) -> Iterator[tuple[bytes, int, int | None]]:
        """Yield the destination of each route but a default one, its length, and the link unless there are several.

        There may be very many: pyroute2 takes a quarter of a millisecond for each.
        """
        try:
            bodies = [body for _, body in self._dumps.request(_RTM_GETROUTE, NLM_DUMP, struct.pack("=B11x", family))]
        except OSError as error:
            raise HostError(f"the kernel refused to list routes: {_reason(error)}.") from error
        for body in bodies:
            parts = attributes(body[_RTMSG:])
            if _RTA_DST in parts:
                link = int.from_bytes(parts[_RTA_OIF], sys.byteorder) if _RTA_OIF in parts else None
                yield parts[_RTA_DST], body[1], link

    def local_addresses(self, versions: Iterable[int] = (4,)) -> frozenset[IpAddress]:
        """Return all addresses of the host, of IPv4, IPv6 or both."""
        families = (socket.AF_INET if version == 4 else socket.AF_INET6 for version in versions)
        addresses = (address for family in families for address in self._list("addr", family=family))
        texts = (address.get_attr("IFA_LOCAL") or address.get_attr("IFA_ADDRESS") for address in addresses)
        return frozenset(map(ip_address, texts))

    def has_bridge(self, network: Network, segment: str = "") -> bool:
        """Return whether the network's first bridge or a segment of it exists, with the MAC of `bridge_mac`."""
        link = self._link(segment or network.bridge)
        return link is not None and link.kind == "bridge" and link.mac == bridge_mac(network.name, segment)

    def is_whole(self, network: Network) -> bool:
        """Return whether the network's first bridge exists, is up, and has the gateway's IPv4 address and its sysctl.

        Its IPv6 address is looked for by `has_gateway6`.
        """
        link = self._link(network.bridge)
        if link is None or not (link.up and self.has_bridge(network)):
            return False
        if network.ipv4 is None:
            return True
        addresses = self._list("addr", family=socket.AF_INET, index=index(network.bridge))
        return str(network.gateway4) in {address.get_attr("IFA_LOCAL") for address in addresses} and is_set_for_link(
            "ipv4", network.bridge, "route_localnet", "1"
        )

    def has_segment(self, network: Network, segment: str) -> bool:
        """Return whether a segment exists, and is joined to the network's first bridge by links that are up."""
        ends = zip(segment_link(segment), (network.bridge, segment), strict=True)
        return self.has_bridge(network, segment) and all(self._is_port(end, bridge) for end, bridge in ends)

    def make_bridge(self, network: Network) -> None:
        """Create the network's bridge, or repair an existing one; idempotent.

        Raises:
            TakenError: another program's link has the bridge's name.
            HostError: the kernel refused.
        """
        with _kernel_errors(f"bridge {network.bridge}"):
            self._make_bridge(network)
            # Guests must not learn the host's other addresses; those of a network with IPv6 only, none (8).
            set_for_link("ipv4", network.bridge, "arp_ignore", "1" if network.ipv4 else "8")
            bridge = index(network.bridge)
            if network.ipv4 is not None:
                set_for_link("ipv4", network.bridge, "route_localnet", "1")  # for ports published at 127.0.0.1
                with contextlib.suppress(FileExistsError), _existing():
                    self._route.addr("add", index=bridge, **_address(network.ipv4, network.gateway4))
            if network.ipv6 is not None:
                self._add_gateway6(network, bridge)
            self._route.link("set", index=bridge, state="up")
            if network.shared and network.ipv6 is not None:
                with contextlib.suppress(FileExistsError), _existing():
                    self._route.route("add", **_loopback_route(bridge))  # a link that is down has no route

    def has_gateway6(self, network: Network) -> bool:
        """Return whether the network's bridge has its IPv6 address and, if shared, its route; True without IPv6."""
        if not network.routes6:
            return True
        with _kernel_errors(f"bridge {network.bridge}"):
            bridge = index(network.bridge)
            addresses = self._list("addr", family=socket.AF_INET6, index=bridge)
            has_route = not network.shared or self._has_loopback_route(bridge)
        return has_route and any(address.get_attr("IFA_ADDRESS") == str(network.gateway6) for address in addresses)

    def _add_gateway6(self, network: Network, bridge: int) -> None:
        """Add the IPv6 address of a network's bridge, usable at once: without duplicate address detection."""
        assert network.ipv6 is not None, "the network has IPv6"  # noqa: S101 - for mypy
        ipv6_sysctls.set_up_bridge(network.bridge)
        with contextlib.suppress(FileExistsError), _existing():
            self._route.addr(
                "add",
                family=socket.AF_INET6,
                index=bridge,
                address=str(network.gateway6),
                prefixlen=network.ipv6.prefixlen,
                flags=_IFA_F_NODAD,
            )

    def _has_loopback_route(self, bridge: int) -> bool:
        routes = self._list("routes", family=socket.AF_INET6, table=_RT_TABLE_LOCAL)
        return any((route.get_attr("RTA_DST"), route.get_attr("RTA_OIF")) == (_LOOPBACK6, bridge) for route in routes)

    def make_segment(self, network: Network, segment: str) -> None:
        """Create a segment and the veth pair that joins it to the network's first bridge, or repair them; idempotent.

        The segment has no address: for guests and host it is a part of the first bridge. In an isolated network the
        first bridge's port is isolated like a tap; the segment's end is not, since frames for the host pass it.

        Raises:
            TakenError: another program's link has the segment's name.
            HostError: the kernel refused.
        """
        with _kernel_errors(f"bridge {segment}"):
            self._make_bridge(network, segment)
            set_for_link("ipv4", segment, "arp_ignore", "8")  # no reply: the first bridge has the gateway's address
            down, up = segment_link(segment)
            if not (index(down) and index(up)):
                with needing(VETH, f"link {down}"):
                    self._route.link("add", ifname=down, kind="veth", mtu=network.mtu, peer={"ifname": up})
                self._route.link("set", index=index(up), mtu=network.mtu)
            for end, bridge in ((down, network.bridge), (up, segment)):
                set_for_link("ipv6", end, "disable_ipv6", "1")
                self._route.link("set", index=index(end), master=index(bridge), state="up")
            # Hairpin mode as for taps. The segment learns no MAC from its link: its taps have theirs, and whatever else
            # has another MAC is behind that link.
            self._route.brport("set", index=index(down), mode=1, isolated=int(network.policy.isolated))
            self._route.brport("set", index=index(up), learning=0)
            self._route.link("set", index=index(segment), state="up")

    def bridge(self, name: str) -> BridgeFacts | None:
        """Return the link that a network is to join; None where no link has this name.

        Raises:
            HostError: the kernel refused.
        """
        with _kernel_errors(f"bridge {name}"):
            message = self._message(index(name))
            if message is None:
                return None
            link, info = _link_of(message), message.get_attr("IFLA_LINKINFO")
            data = info.get_attr("IFLA_INFO_DATA") if link.kind == "bridge" else None
            return BridgeFacts(
                kind=link.kind,
                up=link.up,
                mtu=message.get_attr("IFLA_MTU"),
                vlan_filtering=bool(data and data.get_attr("IFLA_BR_VLAN_FILTERING")),
                default_pvid=(data and data.get_attr("IFLA_BR_VLAN_DEFAULT_PVID")) or 0,
            )

    def ports(self, bridge: str) -> frozenset[str]:
        """Return the names of all ports of a bridge; raises as `bridge`."""
        with _kernel_errors(f"bridge {bridge}"):
            return frozenset(_ports(index(bridge)))

    def known_macs(self, bridge: str, macs: Iterable[str], vlans: Collection[int]) -> frozenset[str]:
        """Return those of some MAC addresses that a bridge has in some VLANs, and not as a guest's; raises as `bridge`.

        These are its own, and those of machines behind its ports. Each is looked up: machines of the LAN can fill the
        forwarding database, and the kernel's time for a list of it grows with the square of its length.
        """
        with _kernel_errors(f"bridge {bridge}"):
            number = index(bridge)
            return frozenset(
                mac for mac in macs for vlan in vlans if _is_of_others(self._taps.link_of_mac(number, mac, vlan))
            )

    def make_tap(self, task: TaskName, lease: Lease, network: Network) -> None:
        """Create a NIC's tap in the task's namespace and its macvlan, or repair them; idempotent.

        Raises:
            HostError: the kernel refused, or the task's namespace does not exist.
        """
        joined = network.name if network.join else None
        with _kernel_errors(f"tap {lease.tap}"):
            # Another MTU than its own could change that of a joined bridge: it is the lowest of the ports.
            mtu = self._mtu(lease.bridge) if joined else lease.mtu
            alias = tap_alias(task, lease.nic, joined)
            port = _port(lease, network)
            self._taps.make(self._tap(task, lease, mtu), bridge=lease.bridge, alias=alias, port=port)
            self._taps.forget_neighbours(network.bridge, lease.addresses)

    def route_behind(self, lease: Lease, network: Network, routes: Iterable[IpNetwork]) -> bool:
        """Route the ranges behind a guest to it; idempotent. Return whether a route was missing, and is added.

        A route of another program for the same range stays. Raises as `make_tap`.
        """
        added = False
        with _kernel_errors(f"bridge {network.bridge}"):
            for route in routes:
                if not self._is_routed(lease, network, route):
                    with contextlib.suppress(FileExistsError), _existing():
                        self._route.route("add", **_behind(lease, network, route))
                        added = True
        return added

    def delete_routes(self, lease: Lease, network: Network, routes: Iterable[IpNetwork]) -> None:
        """Delete the routes to the ranges behind a guest; idempotent. Raises as `make_tap`."""
        with _kernel_errors(f"bridge {network.bridge}"):
            for route in routes:
                if self._is_routed(lease, network, route):
                    self._route.route("del", **_behind(lease, network, route))

    def _is_routed(self, lease: Lease, network: Network, route: IpNetwork) -> bool:
        wanted = _behind(lease, network, route)
        found = self._list("routes", family=wanted["family"], table=_RT_TABLE_MAIN)
        return any(
            (f"{each.get_attr('RTA_DST')}/{each['dst_len']}", each.get_attr("RTA_GATEWAY"), each.get_attr("RTA_OIF"))
            == (wanted["dst"], wanted["gateway"], wanted["oif"])
            for each in found
        )

    def make_unbridged_tap(self, task: TaskName, lease: Lease) -> None:
        """Create a tap whose macvlan is no bridge's port, or repair them; idempotent. Raises as `make_tap`."""
        with _kernel_errors(f"tap {lease.tap}"):
            mtu = min(TAP_MTU_MAX, lease.mtu)
            self._taps.make_alone(self._tap(task, lease, mtu), alias=tap_alias(task, lease.nic))

    def _tap(self, task: TaskName, lease: Lease, mtu: int) -> TaskTap:
        return TaskTap(name=lease.tap, uid=self._owner(task), mtu=mtu, mac=lease.mac, namespace=task_namespace(task))

    def set_port(self, lease: Lease, network: Network) -> None:
        """Update the bridge port of a tap, after a change of the settings or an upgrade."""
        with _kernel_errors(f"tap {lease.tap}"):
            self._taps.set_port(lease.tap, _port(lease, network))

    def _mtu(self, bridge: str) -> int:
        message = self._message(index(bridge))
        return min(TAP_MTU_MAX, message.get_attr("IFLA_MTU")) if message is not None else TAP_MTU_MAX

    def has_tap(self, task: TaskName, lease: Lease, network: Network) -> bool:
        """Return whether tap and macvlan are as `make_tap` makes them; True where the task's namespace does not exist.

        Raises:
            HostError: the kernel refused to show them.
        """
        with _kernel_errors(f"tap {lease.tap}"):
            port = _port(lease, network)
            return self._taps.has_port(lease.tap, lease.bridge, port) and self._has_task_tap(task, lease)

    def has_unbridged_tap(self, task: TaskName, lease: Lease) -> bool:
        """Return as `has_tap`, of a tap whose macvlan is no bridge's port."""
        link = self._link(lease.tap)
        with _kernel_errors(f"tap {lease.tap}"):
            return link is not None and link.up and self._has_task_tap(task, lease)

    def _has_task_tap(self, task: TaskName, lease: Lease) -> bool:
        return self._taps.has_task_tap(lease.tap, lease.mac, task_namespace(task))

    def taps(self) -> dict[str, Link]:
        """Return the macvlans of all taps, which have the prefix `s5-`, by name."""
        names = (name for _, name in socket.if_nameindex() if name.startswith(TAP_PREFIX))
        return {name: link for name in names if (link := self._link(name)) and link.kind in ("tun", "macvlan")}

    def _is_port(self, name: str, bridge: str) -> bool:
        """Return whether a link exists, is up and is a port of a bridge."""
        link = self._link(name)
        return link is not None and link.up and link.master == index(bridge)

    def _make_bridge(self, network: Network, segment: str = "") -> None:
        """Create the network's first bridge or a segment, without ports, unless it exists."""
        name = segment or network.bridge
        if not index(name):
            with needing(BRIDGE, f"bridge {name}"):
                self._route.link(
                    "add",
                    ifname=name,
                    kind="bridge",
                    address=bridge_mac(network.name, segment),
                    mtu=network.mtu,
                    br_stp_state=0,
                    br_forward_delay=0,  # a new port forwards at once
                    br_mcast_snooping=0,  # with it, the bridge sends MLD and IGMP queries
                )
        elif not self.has_bridge(network, segment):
            raise TakenError(
                f"link {name} exists and is not a bridge of solo5-networkd: expected a free name.",
                f"Set another one as network.{network.name}.bridge below /etc/solo5.",
            )
        if segment or network.ipv6 is None:
            set_for_link("ipv6", name, "disable_ipv6", "1")

    def _link(self, name: str) -> Link | None:
        message = self._message(index(name))
        return None if message is None else _link_of(message)

    def _message(self, number: int) -> Any | None:
        try:
            return self._route.get_links(number)[0] if number else None
        except (NetlinkError, OSError) as error:
            if isinstance(error, NetlinkError) and error.code == errno.ENODEV:  # deleted after if_nametoindex(3)
                return None
            raise HostError(f"the kernel refused to show link {number}: {_reason(error)}.") from error

    def _list(self, what: str, **selection: Any) -> tuple[Any, ...]:
        """Return what the kernel has of `routes`, `addr` or `default_routes`; raises HostError."""
        try:
            return tuple(getattr(self._route, f"get_{what}")(**selection))
        except (NetlinkError, OSError) as error:
            raise HostError(f"the kernel refused to list {_NAMES.get(what, what)}: {_reason(error)}.") from error


class LinkWatch(NetlinkSocket):
    """A netlink socket, readable when a link is removed, leaves its bridge or is set down, or loses an IPv4 address.

    Also when net.ipv4.ip_forward or net.ipv6.conf.all.forwarding is set. The kernel drops all other messages:
    every step of an attach changes a link, and a new link has its sysctls announced.
    """

    def __init__(self) -> None:
        super().__init__(NETLINK_ROUTE, _GROUP_LINK, _GROUP_IPV4_ADDRESS, _GROUP_IPV4_NETCONF, _GROUP_IPV6_NETCONF)
        forwarding = equals(30, _NETCONFA_FORWARDING, 2)
        self.receive_only(
            [is_type(_RTM_DELLINK)],
            [is_type(_RTM_DELADDR)],
            [
                is_type(_RTM_NEWLINK),
                has_bits(_CHANGE, _IFF_UP),
                has_bits(_CHANGE, _IS_NEW, negated=True),
                has_bits(_FLAGS, _IFF_UP, negated=True),
            ],
            # Behind the header: the family, the attribute of the link, which is none (all), and that of the sysctl. Of
            # IPv6 also that of new links: a write of 1 where there is one changes no other (`ipv6_sysctls`).
            [is_type(_RTM_NEWNETCONF), equals(24, _NO_LINK), forwarding],
            [is_type(_RTM_NEWNETCONF), equals(16, _INET6, 2), equals(24, _NEW_LINKS), forwarding],
        )

    def changed(self) -> frozenset[str] | None:
        """Return the names of these links and sysctls; None after lost messages. To be called when readable."""
        names = set()
        try:
            while True:
                for kind, body in self.receive():
                    names.add(_sysctl(body) if kind == _RTM_NEWNETCONF else _link_name(kind, body))
        except BlockingIOError:
            return frozenset(names)
        except OSError:  # ENOBUFS: messages were lost; EBADMSG
            return None


def _sysctl(body: bytes) -> str:
    """Return the name of the sysctl in a message on forwarding, by its family."""
    return ipv6_sysctls.FORWARDING if body[:1] == bytes([socket.AF_INET6]) else IP_FORWARD


def _link_name(kind: int, body: bytes) -> str:
    """Return the name of the link in a message on a link or an address, whose label may have a suffix (`eth0:1`)."""
    if kind == _RTM_DELADDR:
        return os.fsdecode(attributes(body[_IFADDRMSG:]).get(_IFA_LABEL, b"").rstrip(b"\0").partition(b":")[0])
    # A link name may have any bytes except / and white space.
    return os.fsdecode(attributes(body[_IFINFOMSG:]).get(_IFLA_IFNAME, b"").rstrip(b"\0"))


class AddressWatch(NetlinkSocket):
    """A netlink socket in RTNLGRP_IPV6_IFADDR, readable when an IPv6 address is removed.

    The kernel removes those of all links when a program sets disable_ipv6, or sets them down.
    """

    def __init__(self) -> None:
        super().__init__(NETLINK_ROUTE, _GROUP_IPV6_ADDRESS)
        self.receive_only([is_type(_RTM_DELADDR)])

    def removed(self) -> frozenset[int] | None:
        """Return the indexes of links that lost an address; None after lost messages. To be called when readable."""
        indexes = set()
        try:
            while True:
                for kind, body in self.receive():
                    if kind == _RTM_DELADDR:
                        indexes.add(_IFADDRMSG6.unpack_from(body)[-1])
        except BlockingIOError:
            return frozenset(indexes)
        except OSError:  # ENOBUFS: messages were lost; EBADMSG
            return None


def delete_links(names: Iterable[str]) -> None:
    """Delete these links, as far as they exist, by one request.

    Raises:
        HostError: the kernel refused.
    """
    indexes = {name: number for name in names if (number := index(name))}
    if indexes:
        with _kernel_errors(f"links {', '.join(indexes)}"):
            taps.delete(indexes.values())


def index(name: str) -> int:
    """Return a link's index; 0 where no link has this name."""
    return task_taps.index(name)


def _ports(bridge: int) -> Iterator[str]:
    """Yield the names of all ports of a bridge. pyroute2 would decode each of a thousand in full."""
    route = NetlinkSocket(NETLINK_ROUTE)
    header = struct.pack("=BxHiII", socket.AF_UNSPEC, 0, 0, 0, 0)
    of_bridge = attribute(_IFLA_MASTER, bridge.to_bytes(4, sys.byteorder))
    try:
        for _, body in route.request(_RTM_GETLINK, NLM_DUMP, header + of_bridge):
            yield os.fsdecode(attribute_of(body[_IFINFOMSG:], _IFLA_IFNAME).rstrip(b"\0"))
    finally:
        route.close()


def _is_of_others(link: int) -> bool:
    """Return whether a link, by its index, is there and no guest's tap. A bridge forgets the MACs of a port with it."""
    try:
        return bool(link) and not socket.if_indextoname(link).startswith(TAP_PREFIX)
    except OSError:
        return False


def _port(lease: Lease, network: Network) -> BridgePort:
    join = network.join
    return BridgePort(
        mac=lease.mac,
        isolated=network.policy.isolated,
        joined=join is not None,
        vlan=join.vlan if join is not None else 0,
    )


def _link_of(message: Any) -> Link:
    info = message.get_attr("IFLA_LINKINFO")
    kind = info.get_attr("IFLA_INFO_KIND") if info else ""
    return Link(
        kind=kind,
        mac=message.get_attr("IFLA_ADDRESS") or "",
        alias=message.get_attr("IFLA_IFALIAS") or "",
        master=message.get_attr("IFLA_MASTER") or 0,
        up=bool(message["flags"] & _IFF_UP),
    )


def _range(address: str, length: int) -> IPv4Network:
    return IPv4Network((address, length), strict=False)


def _address(ipv4: IPv4Network, gateway4: IPv4Address | None) -> dict[str, Any]:
    """Return the address of a network's bridge, for pyroute2."""
    return {"address": str(gateway4), "prefixlen": ipv4.prefixlen, "broadcast": str(ipv4.broadcast_address)}


def _behind(lease: Lease, network: Network, route: IpNetwork) -> dict[str, Any]:
    """Return a route, for pyroute2, to a range behind a guest."""
    family, gateway = (socket.AF_INET, lease.address) if route.version == 4 else (socket.AF_INET6, lease.address6)
    where = {"gateway": str(gateway), "oif": index(network.bridge), "table": _RT_TABLE_MAIN}
    return {"family": family, "dst": str(route), **where}


def _loopback_route(bridge: int) -> dict[str, Any]:
    """Return a route, for pyroute2: what comes from the bridge for ::1 is delivered.

    In IPv6 it stands for `route_localnet`, and applies to packets that were translated to ::1: a packet that arrives
    with ::1 in its header is dropped before (ip6_rcv_core of net/ipv6/ip6_input.c). The kernel's own route to ::1 is of
    link lo alone.
    """
    route = {"dst": f"{_LOOPBACK6}/128", "oif": bridge, "type": "local", "table": _RT_TABLE_LOCAL}
    return {"family": socket.AF_INET6, **route}


@contextlib.contextmanager
def _existing() -> Iterator[None]:
    try:
        yield
    except NetlinkError as error:
        if error.code == errno.EEXIST:
            raise FileExistsError from error
        raise


@contextlib.contextmanager
def _kernel_errors(link: str) -> Iterator[None]:
    """Turn errors of netlink and sysctls into a HostError that names the link."""
    try:
        yield
    except (NetlinkError, OSError) as error:
        raise HostError(f"the kernel refused to change {link}: {_reason(error)}.") from error


def _reason(error: Exception) -> str:
    return str(error.args[1] if len(error.args) > 1 else error)
