"""Taps in network namespaces of tasks: each is the lower link of a macvlan of the host, the port of its bridge.

        host                              namespace of the task
    bridge ── s5-NAME (macvlan) ───────── s5-NAME (tap) ── tender

Packet filter, counters and port settings are those of the macvlan. In mode source it receives the frames of the tap
with the guest's MAC as their source; others stay in the namespace, which has no address. It has a MAC of its own:
what a tender changes of its tap (SIOCSIFHWADDR needs no capability) changes nothing of the port.

A tender can attach with IFF_VNET_HDR and have the kernel fill in a checksum, at any place of a frame that the rules
have seen. The header before each frame is then so long that no write has it; a tender under solo5-confine cannot set
its size.
"""

import array
import errno
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from solo5_systemd.base.errors import HostError
from solo5_systemd.network import rtnetlink as rt
from solo5_systemd.network.derived_addresses import octets
from solo5_systemd.network.modules import MACVLAN, TUN, needing
from solo5_systemd.network.namespaces import NetworkNamespace
from solo5_systemd.network.raw_netlink import (
    NETLINK_ROUTE,
    NLM_ACK,
    NLM_CREATE,
    NLM_DUMP,
    NetlinkSocket,
    Request,
    attribute,
    attributes,
    link_index,
    nested,
)

# linux/rtnetlink.h, if_link.h, net_namespace.h
_GETNSID, _IFLA_NET_NS_FD, _IFLA_LINK_NETNSID, _IFLA_TARGET_NETNSID, _NETNSA_NSID, _NETNSA_FD = 90, 28, 37, 46, 1, 3
_MODE, _FLAGS, _MACADDR_MODE, _MACADDR, _MACADDR_DATA = 1, 2, 3, 4, 5
_SOURCE, _NODST, _ADD = 16, 2, 0  # NODST: the namespace's own stack does not get these frames as well
_SETTINGS = {_MODE: _SOURCE.to_bytes(4, sys.byteorder), _FLAGS: _NODST.to_bytes(2, sys.byteorder)}
_NLM_EXCL = 0x200
_SIOCETHTOOL = 0x8946
_ETHTOOL_SGSO, _ETHTOOL_SGRO = 0x24, 0x2C

_TUN = "/dev/net/tun"
# linux/if_tun.h
_TUNSETIFF, _TUNSETPERSIST, _TUNSETOWNER, _TUNSETVNETHDRSZ = 0x400454CA, 0x400454CB, 0x400454CC, 0x400454D8
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_ENDLESS = struct.pack("i", 0x7FFFFFFF)  # more than one write has (MAX_RW_COUNT)


@dataclass(frozen=True, kw_only=True)
class TaskTap:
    """A tap in the network namespace of its task, and the macvlan of the host that has it as its lower link.

    Attributes:
        name: of both.
        mac: of the guest: the only MAC address behind the port.
        namespace: path of the tap's namespace.
        bridge: of which the macvlan is a port.
        isolated: the bridge forwards no frames between isolated ports. That needs neither a rule of nftables nor
            br_netfilter.
        joined: the bridge is an existing one.
        vlan: the only VLAN of the port, on a joined bridge; 0: that of a new port.
    """

    name: str
    mac: str
    namespace: str
    bridge: str
    isolated: bool = False
    joined: bool = False
    vlan: int = 0

    def make(self, host: NetlinkSocket, *, uid: int, mtu: int) -> None:
        """Make or repair them; a new macvlan is down.

        A tap that no tender has is made anew, whatever an earlier tender has done to it. One that a tender has is kept:
        its macvlan alone was deleted or changed.

        Args:
            host: an rtnetlink socket of the namespace of the macvlan, in which the calling thread is.
            uid: the user that may attach to the tap.
            mtu: in bytes.

        Raises:
            OSError: the kernel refused.
            HostError: the task's namespace does not exist, or cannot be entered.
        """
        found = link_index(self.name)
        with (
            closing(NetworkNamespace.own()) as own,
            closing(NetworkNamespace(self.namespace)) as there,
            there.entered(),
            closing(NetlinkSocket(NETLINK_ROUTE)) as inside,
        ):
            is_new = _create_tap(self.name, uid)
            tap = socket.if_nametoindex(self.name)
            inside.execute([(rt.SETLINK, 0, rt.ifinfo(tap, rt.number(rt.IFLA_MTU, mtu), up=True))])
            _switch_offload_off(self.name)
            if found and not is_new:
                [(_, link)] = host.request(rt.GETLINK, NLM_ACK, rt.ifinfo(0, rt.named(self.name)))
                if self.is_whole(host, rt.link_attributes(link)):
                    return
            if found or not is_new:  # a link of another program or of an earlier namespace, or a changed one
                uppers = () if is_new else _deletions_of_uppers(host, there, tap)
                host.run([(rt.DELLINK, 0, rt.ifinfo(0, rt.named(self.name))), *uppers])
            with needing(MACVLAN, f"link {self.name}"):
                inside.execute([self._macvlan(tap, own.descriptor, mtu)])
        made = socket.if_nametoindex(self._first_name)
        try:
            host.execute([(rt.SETLINK, 0, rt.ifinfo(made, rt.named(self.name)))])
        except OSError:
            host.run([(rt.DELLINK, 0, rt.ifinfo(made))])  # nothing else looks for this name
            raise

    @property
    def _first_name(self) -> str:
        """The name with which the macvlan is made: Linux before 6.15 refuses one that its lower link has."""
        return f"{self.name[:-1]}~"

    def _macvlan(self, tap: int, namespace: int, mtu: int) -> Request:
        settings = (attribute(key, value) for key, value in _SETTINGS.items())
        source = (rt.number(_MACADDR_MODE, _ADD), _source(self.mac))
        info = nested(rt.IFLA_LINKINFO, rt.MACVLAN, nested(rt.INFO_DATA, *settings, *source))
        link = rt.named(self._first_name) + rt.number(rt.IFLA_LINK, tap) + rt.number(rt.IFLA_MTU, mtu)
        return (rt.NEWLINK, NLM_CREATE | _NLM_EXCL, rt.ifinfo(0, link, rt.number(_IFLA_NET_NS_FD, namespace), info))

    def is_whole(self, host: NetlinkSocket, found: Mapping[int, bytes]) -> bool:
        """Return whether macvlan and tap are as `make` makes them, and the tap is up; True without the namespace.

        Args:
            host: an rtnetlink socket of the namespace of the macvlan.
            found: the attributes of the macvlan.

        Raises:
            OSError: the kernel refused to show the tap; ENODEV: there is none.
        """
        info = attributes(found.get(rt.IFLA_LINKINFO, b""))
        expected = {**_SETTINGS, _MACADDR_DATA: _source(self.mac)}
        settings = attributes(info.get(rt.INFO_DATA, b""))
        if info.get(rt.INFO_KIND) != b"macvlan\0" or not expected.items() <= settings.items():
            return False
        try:
            with closing(NetworkNamespace(self.namespace)) as there:
                its_id = _id_of(host, there)
        except HostError:
            return True
        if found.get(_IFLA_LINK_NETNSID) != its_id:  # the tap is in an earlier namespace
            return False
        tap = rt.ifinfo(int.from_bytes(found[rt.IFLA_LINK], sys.byteorder), attribute(_IFLA_TARGET_NETNSID, its_id))
        [(_, lower)] = host.request(rt.GETLINK, NLM_ACK, tap)
        return bool(rt.IFINFOMSG.unpack_from(lower)[3] & rt.IFF_UP)


def _deletions_of_uppers(host: NetlinkSocket, namespace: NetworkNamespace, tap: int) -> Sequence[Request]:
    """Return the requests that delete all macvlans of a tap: another program may have renamed one."""
    wanted = {rt.IFLA_LINK: tap.to_bytes(4, sys.byteorder), _IFLA_LINK_NETNSID: _id_of(host, namespace)}
    return [
        (rt.DELLINK, 0, rt.ifinfo(rt.IFINFOMSG.unpack_from(link)[2]))
        for _, link in host.request(rt.GETLINK, NLM_DUMP, rt.ifinfo(0, nested(rt.IFLA_LINKINFO, rt.MACVLAN)))
        if wanted.items() <= rt.link_attributes(link).items()
    ]


def _id_of(host: NetlinkSocket, namespace: NetworkNamespace) -> bytes:
    """Return the ID of a namespace in that of a socket, as links have it."""
    [(_, answer)] = host.request(_GETNSID, NLM_ACK, bytes(4) + rt.number(_NETNSA_FD, namespace.descriptor))
    return attributes(answer[4:])[_NETNSA_NSID]


def _source(mac: str) -> bytes:
    return attribute(_MACADDR, octets(mac))


def _create_tap(name: str, uid: int) -> bool:
    """Create a tap in the calling thread's namespace, in place of one that no process has; return whether it is new.

    Raises:
        OSError: the kernel refused.
        HostError: there is no device for taps.
    """
    with needing(TUN, f"tap {name}"):
        first = os.open(_TUN, os.O_RDWR | os.O_CLOEXEC)
    try:
        found = link_index(name)
        fcntl.ioctl(first, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
        if not found:
            fcntl.ioctl(first, _TUNSETOWNER, uid)
            fcntl.ioctl(first, _TUNSETVNETHDRSZ, _ENDLESS)
        fcntl.ioctl(first, _TUNSETPERSIST, not found)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    finally:
        os.close(first)
    return _create_tap(name, uid) if found else True  # a found one was deleted with the last descriptor


def _switch_offload_off(tap: str) -> None:
    """Switch off GRO and GSO, which its macvlan has as the tap has them: a guest has no segmentation offload."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for command in (_ETHTOOL_SGRO, _ETHTOOL_SGSO):
            value = array.array("I", [command, 0])
            request = struct.pack("16sP16x", tap.encode(), value.buffer_info()[0])
            fcntl.ioctl(any_socket, _SIOCETHTOOL, request)
