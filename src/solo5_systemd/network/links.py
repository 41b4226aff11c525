"""Links, addresses and routes of this network namespace, through pyroute2."""

import array
import contextlib
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from solo5_systemd.errors import HostError, TakenError
from solo5_systemd.names import TaskName
from solo5_systemd.network.ipam import TAP_PREFIX, bridge_mac
from solo5_systemd.network.lease_recovery import tap_alias
from solo5_systemd.network.model import Lease, Network
from solo5_systemd.network.raw_netlink import NetlinkSocket, attributes
from solo5_systemd.network.sysctls import set_for_link

_SIOCETHTOOL = 0x8946
_ETHTOOL_SGSO, _ETHTOOL_SGRO = 0x24, 0x2C
_NETLINK_ROUTE, _GROUP_LINK, _RTM_DELLINK = 0, 1, 17
_IFINFOMSG, _IFLA_IFNAME = 16, 3
_IFF_UP = 1
_ALL_GROUPS = 0xFFFD
"""Frames to 01:80:C2:00:00:0X are forwarded, and so meet our rules, but for X = 1, which a bridge drops.

Otherwise a bridge learns their source and hands them up as the tap's own, past every rule (br_handle_frame of
net/bridge/br_input.c): a guest could take another one's MAC address, and call the host.
"""

_NUD_NOARP, _NTF_MASTER = 0x40, 0x04  # linux/neighbour.h: a static entry, of the port's bridge

_DOOMED = 0x5305DEAD  # a link group of ours


@dataclass(frozen=True, kw_only=True)
class Link:
    """What we look at in a link; `kind` is empty for a plain device."""

    kind: str
    mac: str
    alias: str
    master: int
    up: bool


class Links:
    """What the network service makes of links; one thread at a time may use it."""

    def __init__(self, owner: Callable[[TaskName], int]) -> None:
        """Open a netlink socket.

        Args:
            owner: returns the user id that may attach to the taps of a task.
        """
        self._route = IPRoute()
        self._owner = owner

    def destinations(self, ours: Sequence[str]) -> Iterator[IPv4Network]:
        """What the host's routes and addresses name, those of `ours` (links) left out."""
        skip = {index(name) for name in ours}
        for route in self._route.get_routes(family=socket.AF_INET):
            if route.get_attr("RTA_DST") and route.get_attr("RTA_OIF") not in skip:
                yield _range(route.get_attr("RTA_DST"), route["dst_len"])
        for address in self._route.get_addr(family=socket.AF_INET):
            if address["index"] not in skip:
                yield _range(address.get_attr("IFA_LOCAL"), address["prefixlen"])

    def local_addresses(self) -> frozenset[IPv4Address]:
        addresses = self._route.get_addr(family=socket.AF_INET)
        return frozenset(IPv4Address(address.get_attr("IFA_LOCAL")) for address in addresses)

    def is_ours(self, network: Network) -> bool:
        """The network's bridge is there, with the MAC that we give it."""
        link = self._link(network.bridge)
        return link is not None and link.kind == "bridge" and link.mac == bridge_mac(network.name)

    def make_bridge(self, network: Network) -> None:
        """Make the network's bridge, or set right the one that is there.

        Raises:
            TakenError: a link of this name is there that we did not make.
            HostError: the kernel refused.
        """
        with _told(f"bridge {network.bridge}"):
            if not index(network.bridge):
                self._add_bridge(network)
            elif not self.is_ours(network):
                raise TakenError(
                    f"link {network.bridge} is there already and not ours: expected the name to be free.",
                    f"Set another one as network.{network.name}.bridge below /etc/solo5.",
                )
            set_for_link("ipv6", network.bridge, "disable_ipv6", "1")
            set_for_link("ipv4", network.bridge, "route_localnet", "1")
            set_for_link("ipv4", network.bridge, "arp_ignore", "1")  # which other addresses the host has
            bridge = index(network.bridge)
            with contextlib.suppress(FileExistsError), _existing():
                self._route.addr(
                    "add",
                    index=bridge,
                    address=str(network.gateway4),
                    prefixlen=network.ipv4.prefixlen,
                    broadcast=str(network.ipv4.broadcast_address),
                )
            self._route.link("set", index=bridge, state="up")

    def make_tap(self, task: TaskName, lease: Lease, *, isolated: bool) -> None:
        """Make a NIC's tap, or set right the one that is there; it is never taken down.

        Args:
            task: whose it is.
            lease: what the NIC has.
            isolated: the bridge hands no frame on to another isolated port, which needs no rule of nftables, and no
                br_netfilter.

        Raises:
            HostError: the kernel refused.
        """
        with _told(f"tap {lease.tap}"):
            tap = index(lease.tap)
            if tap and tap_user(lease.tap) not in (None, self._owner(task)):  # of an earlier start, which had another
                delete_links([lease.tap])
                tap = 0
            if not tap:
                self._route.link("add", ifname=lease.tap, kind="tuntap", mode="tap", uid=self._owner(task))
                tap = index(lease.tap)
            set_for_link("ipv6", lease.tap, "disable_ipv6", "1")
            set_for_link("ipv6", lease.tap, "addr_gen_mode", "1")
            _without_offload(lease.tap)
            self._route.link(
                "set",
                index=tap,
                master=index(lease.bridge),
                mtu=lease.mtu,
                ifalias=tap_alias(task, lease.nic),
                state="up",
            )
            self._set_port(lease, isolated=isolated)

    def isolate(self, lease: Lease, *, isolated: bool) -> None:
        """Set the tap's port of the bridge anew, for other settings or as another version of ours left it."""
        with _told(f"tap {lease.tap}"):
            self._set_port(lease, isolated=isolated)

    def _set_port(self, lease: Lease, *, isolated: bool) -> None:
        """Set the tap's port of the bridge: hairpin (mode; see chains), isolation, and which frames are forwarded.

        The lease's MAC address is entered, and none is learned: what is for another one, or for none that the bridge
        has, goes neither to this guest nor, from it, to all others.
        """
        tap = index(lease.tap)
        self._route.brport(
            "set",
            index=tap,
            mode=1,
            isolated=int(isolated),
            group_fwd_mask=_ALL_GROUPS,
            learning=0,
            unicast_flood=0,
        )
        self._route.fdb("replace", ifindex=tap, lladdr=lease.mac, state=_NUD_NOARP, flags=_NTF_MASTER)

    def is_in_place(self, lease: Lease) -> bool:
        """The tap is there, up, and on its bridge."""
        link = self._link(lease.tap)
        return link is not None and link.up and link.master == index(lease.bridge)

    def taps(self) -> dict[str, Link]:
        """All taps that bear our prefix."""
        names = (name for _, name in socket.if_nameindex() if name.startswith(TAP_PREFIX))
        return {name: link for name in names if (link := self._link(name)) and link.kind == "tun"}

    def _add_bridge(self, network: Network) -> None:
        self._route.link(
            "add",
            ifname=network.bridge,
            kind="bridge",
            address=bridge_mac(network.name),
            mtu=network.mtu,
            br_stp_state=0,
            br_forward_delay=0,
            br_mcast_snooping=0,  # it would send MLD and IGMP queries of its own
        )

    def _link(self, name: str) -> Link | None:
        number = index(name)
        try:
            link = self._route.get_links(number)[0] if number else None
        except NetlinkError as error:
            if error.code != errno.ENODEV:  # it went since its index was asked for
                raise
            return None
        return None if link is None else _link_of(link)


class LinkWatch(NetlinkSocket):
    """Readable when a link changes."""

    def __init__(self) -> None:
        super().__init__(_NETLINK_ROUTE, _GROUP_LINK)

    def removed(self) -> frozenset[str] | None:
        """The links that were removed, None where that was lost count of; to be called when readable."""
        names = set()
        try:
            while True:
                for kind, body in self.announced():
                    if kind == _RTM_DELLINK:
                        name = attributes(body[_IFINFOMSG:]).get(_IFLA_IFNAME, b"").rstrip(b"\0")
                        names.add(os.fsdecode(name))  # a name is of any bytes but / and blanks
        except BlockingIOError:
            return frozenset(names)
        except OSError:  # ENOBUFS: announcements were lost; EBADMSG
            return None


def delete_links(names: Iterable[str]) -> None:
    """Delete those of these links that are there.

    The kernel waits for a grace period, 16 to 32 ms, with its one lock over all links held: so they are put into one
    group, and go together.

    Raises:
        HostError: the kernel refused.
    """
    doomed = {name: number for name in names if (number := index(name))}
    if not doomed:
        return
    with _told(f"links {', '.join(doomed)}"), IPRoute() as route:
        for number in doomed.values():
            with _unless_gone():
                route.link("set", index=number, group=_DOOMED)
        with _unless_gone():
            route.link("del", group=_DOOMED)


def tap_user(name: str) -> int | None:
    """Return the user id that may attach to a tap; None where the kernel does not show it."""
    try:
        uid = int(Path("/sys/class/net", name, "owner").read_text())
    except (OSError, ValueError):
        return None
    return None if uid < 0 else uid


def index(name: str) -> int:
    """A link's index, 0 where there is none of this name."""
    try:
        return socket.if_nametoindex(name)
    except OSError:
        return 0


def _link_of(message: Any) -> Link:
    info = message.get_attr("IFLA_LINKINFO")
    return Link(
        kind=info.get_attr("IFLA_INFO_KIND") if info else "",
        mac=message.get_attr("IFLA_ADDRESS") or "",
        alias=message.get_attr("IFLA_IFALIAS") or "",
        master=message.get_attr("IFLA_MASTER") or 0,
        up=bool(message["flags"] & _IFF_UP),
    )


def _range(address: str, length: int) -> IPv4Network:
    return IPv4Network((address, length), strict=False)


def _without_offload(link: str) -> None:
    # The tender asks for this too, but has no right to; a guest takes each frame as it comes.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for command in (_ETHTOOL_SGRO, _ETHTOOL_SGSO):
            value = array.array("I", [command, 0])
            request = struct.pack("16sP16x", link.encode(), value.buffer_info()[0])
            fcntl.ioctl(any_socket, _SIOCETHTOOL, request)


@contextlib.contextmanager
def _existing() -> Iterator[None]:
    try:
        yield
    except NetlinkError as error:
        if error.code == errno.EEXIST:
            raise FileExistsError from error
        raise


@contextlib.contextmanager
def _unless_gone() -> Iterator[None]:
    """Somebody else was quicker."""
    try:
        yield
    except NetlinkError as error:
        if error.code != errno.ENODEV:
            raise


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except (NetlinkError, OSError) as error:
        reason = error.args[1] if len(error.args) > 1 else str(error)
        raise HostError(f"the kernel refused to change {what}: {reason}.") from error
