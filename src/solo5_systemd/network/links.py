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
"""group_fwd_mask: frames to 01:80:C2:00:00:0X are forwarded, and so filtered by rules; a bridge drops X = 1 itself.

Without it a bridge learns their source and delivers them as received on the tap, past every rule (br_handle_frame of
net/bridge/br_input.c): a guest could take another guest's MAC address, and send packets to the host.
"""

_NUD_NOARP, _NTF_MASTER = 0x40, 0x04  # linux/neighbour.h: a static entry, of the port's bridge

_DELETION_GROUP = 0x5305DEAD  # a link group for deletions, which no other program uses


@dataclass(frozen=True, kw_only=True)
class Link:
    """The attributes of a link that the service reads; `kind` is empty for a physical device, `master` is an index."""

    kind: str
    mac: str
    alias: str
    master: int
    up: bool


class Links:
    """The bridges and taps of the network service, through pyroute2. Not thread-safe."""

    def __init__(self, owner: Callable[[TaskName], int]) -> None:
        """Open a netlink socket.

        Args:
            owner: returns the user id that may attach to the taps of a task.
        """
        self._route = IPRoute()
        self._owner = owner

    def routed_ranges(self, ours: Sequence[str]) -> Iterator[IPv4Network]:
        """Yield the ranges of the host's routes and addresses, without those of the links `ours`."""
        skip = {index(name) for name in ours}
        for route in self._route.get_routes(family=socket.AF_INET):
            if route.get_attr("RTA_DST") and route.get_attr("RTA_OIF") not in skip:
                yield _range(route.get_attr("RTA_DST"), route["dst_len"])
        for address in self._route.get_addr(family=socket.AF_INET):
            if address["index"] not in skip:
                yield _range(address.get_attr("IFA_LOCAL"), address["prefixlen"])

    def local_addresses(self) -> frozenset[IPv4Address]:
        """Return all IPv4 addresses of the host."""
        addresses = self._route.get_addr(family=socket.AF_INET)
        return frozenset(IPv4Address(address.get_attr("IFA_LOCAL")) for address in addresses)

    def has_bridge(self, network: Network) -> bool:
        """Return whether the network's bridge exists, with the MAC of `bridge_mac`."""
        link = self._link(network.bridge)
        return link is not None and link.kind == "bridge" and link.mac == bridge_mac(network.name)

    def make_bridge(self, network: Network) -> None:
        """Create the network's bridge, or repair an existing one; idempotent.

        Raises:
            TakenError: another program's link has the bridge's name.
            HostError: the kernel refused.
        """
        with _kernel_errors(f"bridge {network.bridge}"):
            if not index(network.bridge):
                self._add_bridge(network)
            elif not self.has_bridge(network):
                raise TakenError(
                    f"link {network.bridge} exists and is not a bridge of solo5-networkd: expected a free name.",
                    f"Set another one as network.{network.name}.bridge below /etc/solo5.",
                )
            set_for_link("ipv6", network.bridge, "disable_ipv6", "1")
            set_for_link("ipv4", network.bridge, "route_localnet", "1")  # for ports published at 127.0.0.1
            set_for_link("ipv4", network.bridge, "arp_ignore", "1")  # guests must not learn the host's other addresses
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
        """Create a NIC's tap, or repair an existing one without setting it down; idempotent.

        Args:
            task: the task of the NIC.
            lease: the lease of the NIC.
            isolated: the bridge forwards no frames between isolated ports. That needs neither a rule of nftables nor
                br_netfilter.

        Raises:
            HostError: the kernel refused.
        """
        with _kernel_errors(f"tap {lease.tap}"):
            tap = index(lease.tap)
            # An earlier start of the task had another user, which cannot be changed on an existing tap.
            if tap and tap_owner_uid(lease.tap) not in (None, self._owner(task)):
                delete_links([lease.tap])
                tap = 0
            if not tap:
                self._route.link("add", ifname=lease.tap, kind="tuntap", mode="tap", uid=self._owner(task))
                tap = index(lease.tap)
            set_for_link("ipv6", lease.tap, "disable_ipv6", "1")
            set_for_link("ipv6", lease.tap, "addr_gen_mode", "1")  # none: no link-local address
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
        """Update the bridge port of a tap, after a change of the settings or an upgrade."""
        with _kernel_errors(f"tap {lease.tap}"):
            self._set_port(lease, isolated=isolated)

    def _set_port(self, lease: Lease, *, isolated: bool) -> None:
        """Set hairpin mode (see nft_chains), isolation, forwarded groups and the static FDB entry of a bridge port.

        The lease's MAC is the only entry of the port, and none is learned. Frames for any other MAC do not reach this
        guest, and its own frames for an unknown MAC are not flooded to the other ports.
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

    def has_tap(self, lease: Lease) -> bool:
        """Return whether the tap exists, is up and is a port of its bridge."""
        link = self._link(lease.tap)
        return link is not None and link.up and link.master == index(lease.bridge)

    def taps(self) -> dict[str, Link]:
        """Return all taps with the prefix `s5-`, by name."""
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
            br_forward_delay=0,  # a new port forwards at once
            br_mcast_snooping=0,  # with it, the bridge sends MLD and IGMP queries
        )

    def _link(self, name: str) -> Link | None:
        number = index(name)
        try:
            link = self._route.get_links(number)[0] if number else None
        except NetlinkError as error:
            if error.code != errno.ENODEV:  # the link was deleted after if_nametoindex(3)
                raise
            return None
        return None if link is None else _link_of(link)


class LinkWatch(NetlinkSocket):
    """A netlink socket in RTMGRP_LINK, readable when a link changes."""

    def __init__(self) -> None:
        super().__init__(_NETLINK_ROUTE, _GROUP_LINK)

    def removed(self) -> frozenset[str] | None:
        """Return the names of removed links; None after lost messages. To be called when readable."""
        names = set()
        try:
            while True:
                for kind, body in self.receive():
                    if kind == _RTM_DELLINK:
                        name = attributes(body[_IFINFOMSG:]).get(_IFLA_IFNAME, b"").rstrip(b"\0")
                        names.add(os.fsdecode(name))  # a link name may have any bytes except / and white space
        except BlockingIOError:
            return frozenset(names)
        except OSError:  # ENOBUFS: messages were lost; EBADMSG
            return None


def delete_links(names: Iterable[str]) -> None:
    """Delete these links, as far as they exist.

    The kernel waits for a grace period, 16 to 32 ms, under the rtnl lock: so the links are put into one group and
    deleted by one request.

    Raises:
        HostError: the kernel refused.
    """
    indexes = {name: number for name in names if (number := index(name))}
    if not indexes:
        return
    with _kernel_errors(f"links {', '.join(indexes)}"), IPRoute() as route:
        for number in indexes.values():
            with _ignoring_missing():
                route.link("set", index=number, group=_DELETION_GROUP)
        with _ignoring_missing():
            route.link("del", group=_DELETION_GROUP)


def tap_owner_uid(name: str) -> int | None:
    """Return the user id that may attach to a tap; None where the kernel does not show it."""
    try:
        uid = int(Path("/sys/class/net", name, "owner").read_text())
    except (OSError, ValueError):
        return None
    return None if uid < 0 else uid


def index(name: str) -> int:
    """Return a link's index; 0 where no link has this name."""
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
    # A guest has no segmentation offload. The tender's own ioctl fails for lack of CAP_NET_ADMIN.
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
def _ignoring_missing() -> Iterator[None]:
    """Ignore ENODEV: another program has deleted the link."""
    try:
        yield
    except NetlinkError as error:
        if error.code != errno.ENODEV:
            raise


@contextlib.contextmanager
def _kernel_errors(link: str) -> Iterator[None]:
    """Turn errors of netlink and sysctls into a HostError that names the link."""
    try:
        yield
    except (NetlinkError, OSError) as error:
        reason = error.args[1] if len(error.args) > 1 else str(error)
        raise HostError(f"the kernel refused to change {link}: {reason}.") from error
