"""Taps in network namespaces of tasks: each is joined by a veth pair to the host, where the rules and the bridge are.

        host                               namespace of the task
    bridge ── s5-NAME ═══ veth pair ═══ s5v-NAME ⇄ s5-NAME ── tender
                                              tc redirect      (tap)

The host's end has the tap's name: packet filter, counters and bridge port are those of any other task. The namespace
has no address, and every frame is redirected from one link to the other before its stack sees it. So a tender that a
guest has taken over reaches what its guest reaches.
"""

import array
import errno
import fcntl
import os
import socket
import struct
import sys
from contextlib import closing
from dataclasses import dataclass

from solo5_systemd.errors import HostError
from solo5_systemd.network.ipam import TAP_PREFIX
from solo5_systemd.network.modules import REDIRECTION, TUN, VETH, needing
from solo5_systemd.network.namespaces import NetworkNamespace
from solo5_systemd.network.raw_netlink import (
    NETLINK_ROUTE,
    NLM_CREATE,
    NLM_DUMP,
    NetlinkSocket,
    Request,
    attribute,
    attributes,
    nested,
)

# linux/rtnetlink.h, if_link.h, veth.h
_NEWLINK, _DELLINK, _SETLINK, _NEWQDISC, _DELQDISC, _NEWTFILTER, _GETTFILTER = 16, 17, 19, 36, 37, 44, 46
_IFINFOMSG = struct.Struct("=BxHiII")  # family, type, index, flags, changed flags
_IFLA_IFNAME, _IFLA_MTU, _IFLA_LINKINFO, _IFLA_NET_NS_FD = 3, 4, 18, 28
_KIND, _DATA, _PEER = 1, 2, 1
_IFF_UP = 1
_NLM_EXCL = 0x200
_SIOCGIFFLAGS, _IFREQ_FLAGS = 0x8913, struct.Struct("16sH22x")  # linux/sockios.h, if.h
_SIOCETHTOOL = 0x8946
_ETHTOOL_SGSO, _ETHTOOL_SGRO = 0x24, 0x2C

_TUN = "/dev/net/tun"
_TUNSETIFF, _TUNSETPERSIST, _TUNSETOWNER = 0x400454CA, 0x400454CB, 0x400454CC  # linux/if_tun.h
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000

# linux/pkt_sched.h, pkt_cls.h, tc_act/tc_mirred.h
_TCMSG = struct.Struct("=BxxxiIII")  # family, link, handle, parent, info
_INGRESS, _INGRESS_HANDLE = 0xFFFFFFF1, 0xFFFF0000
_TCA_KIND, _TCA_OPTIONS = 1, 2
_EVERY_FRAME = (1 << 16) | socket.htons(3)  # priority 1, ETH_P_ALL
_U32_SELECTOR, _U32_ACTIONS = 5, 7
_ANY = struct.pack("=BBBxHHhhIIIii", 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0)  # terminal, with one key that all frames have
_ACTION_KIND, _ACTION_OPTIONS, _MIRRED_PARAMETERS = 1, 2, 2
_MIRRED = struct.Struct("=IIiiiiI")  # index, capabilities, result, references, bindings, action, link
_STOLEN, _EGRESS_REDIRECT = 4, 1

_GONE = (0, errno.ENOENT, errno.EINVAL)


def index(link: str) -> int:
    """Return a link's index; 0 where no link has this name."""
    try:
        return socket.if_nametoindex(link)
    except OSError:
        return 0


def peer_name(tap: str) -> str:
    """Return the name of the veth's end in the namespace."""
    return f"s5v{tap.removeprefix(TAP_PREFIX)}"


@dataclass(frozen=True, kw_only=True)
class VethTap:
    """A tap in the network namespace of its task, and the veth pair that joins it to the host.

    Attributes:
        name: of the tap, and of the host's end.
        uid: the user that may attach to the tap.
        mtu: in bytes.
        namespace: path of the task's namespace.
    """

    name: str
    uid: int
    mtu: int
    namespace: str

    def make(self, host: NetlinkSocket) -> None:
        """Make or repair them; a new host's end is down.

        A tap that no tender has is made anew, whatever an earlier tender has done to it. One that a tender has is kept:
        its pair alone was deleted.

        Args:
            host: an rtnetlink socket of the namespace with the host's end, in which the calling thread is.

        Raises:
            OSError: the kernel refused.
            HostError: the namespace does not exist, or cannot be entered.
        """
        with closing(NetworkNamespace(self.namespace)) as opened:
            with opened.entered():
                inside, is_paired = NetlinkSocket(NETLINK_ROUTE), index(peer_name(self.name))
            with closing(inside):
                if not (is_paired and index(self.name)):  # otherwise of another program, or of an earlier namespace
                    inside.run([_deletion(peer_name(self.name))])
                    host.run([_deletion(self.name)])
                    with needing(VETH, f"link {self.name}"):
                        host.execute([_pair(self.name, self.mtu, opened.descriptor)])
                with opened.entered():
                    self._make_inside(inside)

    def _make_inside(self, inside: NetlinkSocket) -> None:
        _create_tap(self.name, self.uid)
        without_offload(self.name)
        tap, peer = socket.if_nametoindex(self.name), socket.if_nametoindex(peer_name(self.name))
        # A tap that outlived an earlier pair still redirects to it.
        for code in inside.run([(_DELQDISC, 0, _ingress(link)) for link in (tap, peer)]):
            if code not in _GONE:
                raise OSError(code, os.strerror(code))
        inside.execute([*_up(tap, self.mtu), *_up(peer, self.mtu)])
        with needing(REDIRECTION, f"the redirection of {self.name} in {self.namespace}"):
            inside.execute([*redirection(tap, peer), *redirection(peer, tap)])


def _create_tap(name: str, uid: int) -> None:
    """Create a tap in the calling thread's namespace, in place of one that no process has.

    Raises:
        OSError: the kernel refused.
        HostError: there is no device for taps.
    """
    with needing(TUN, f"tap {name}"):
        first = os.open(_TUN, os.O_RDWR | os.O_CLOEXEC)
    try:
        found = bool(index(name))
        fcntl.ioctl(first, _TUNSETIFF, _IFREQ_FLAGS.pack(name.encode(), _IFF_TAP | _IFF_NO_PI))
        if not found:
            fcntl.ioctl(first, _TUNSETOWNER, uid)
        fcntl.ioctl(first, _TUNSETPERSIST, not found)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return
    finally:
        os.close(first)
    if found:  # deleted with the last descriptor
        _create_tap(name, uid)


def has_veth_tap(name: str, namespace: str) -> bool:
    """Return whether tap and pair in a namespace are up and joined; True where the namespace has no path any more.

    The kernel sends no message of it to other namespaces, and the host's end shows the state of the pair only.

    Raises:
        OSError: the kernel refused to show it.
    """
    try:
        with (
            closing(NetworkNamespace(namespace)) as opened,
            opened.entered(),
            closing(NetlinkSocket(NETLINK_ROUTE)) as inside,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket,
        ):
            tap, peer = index(name), index(peer_name(name))
            is_up = all(_is_up(any_socket, link) for link in (name, peer_name(name)))
            return is_up and _is_redirected(inside, tap, peer) and _is_redirected(inside, peer, tap)
    except HostError:
        return True


def _is_redirected(inside: NetlinkSocket, link: int, to: int) -> bool:
    """Return whether all frames that arrive at a link are redirected to another, and nothing else is done to them."""
    found = []
    for _, rule in inside.request(_GETTFILTER, NLM_DUMP, _TCMSG.pack(socket.AF_UNSPEC, link, 0, _INGRESS_HANDLE, 0)):
        options = rule[_TCMSG.size :]
        for key in (_TCA_OPTIONS, _U32_ACTIONS, 1, _ACTION_OPTIONS, _MIRRED_PARAMETERS):
            options = attributes(options).get(key, b"")
        if options:
            found.append(_MIRRED.unpack(options)[-2:])
    return found == [(_EGRESS_REDIRECT, to)]


def _is_up(any_socket: socket.socket, link: str) -> bool:
    try:
        answer = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, _IFREQ_FLAGS.pack(link.encode(), 0))
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise
        return False
    return bool(_IFREQ_FLAGS.unpack(answer)[1] & _IFF_UP)


def _deletion(link: str) -> Request:
    header = _IFINFOMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    return (_DELLINK, 0, header + attribute(_IFLA_IFNAME, link.encode(), b"\0"))


def _pair(name: str, mtu: int, namespace: int) -> Request:
    size = attribute(_IFLA_MTU, mtu.to_bytes(4, sys.byteorder))
    peer = _IFINFOMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + size
    peer += attribute(_IFLA_IFNAME, peer_name(name).encode(), b"\0")
    peer += attribute(_IFLA_NET_NS_FD, namespace.to_bytes(4, sys.byteorder))
    info = nested(_IFLA_LINKINFO, attribute(_KIND, b"veth\0"), nested(_DATA, attribute(_PEER, peer)))
    link = _IFINFOMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + attribute(_IFLA_IFNAME, name.encode(), b"\0") + size + info
    return (_NEWLINK, NLM_CREATE | _NLM_EXCL, link)


def _up(link: int, mtu: int) -> tuple[Request, ...]:
    header = _IFINFOMSG.pack(socket.AF_UNSPEC, 0, link, _IFF_UP, _IFF_UP)
    return ((_SETLINK, 0, header + attribute(_IFLA_MTU, mtu.to_bytes(4, sys.byteorder))),)


def redirection(link: int, to: int) -> tuple[Request, ...]:
    """Return the requests for a redirection of all frames that arrive at a link, by tc (u32, mirred)."""
    mirred = _MIRRED.pack(0, 0, _STOLEN, 0, 0, _EGRESS_REDIRECT, to)
    action = attribute(_ACTION_KIND, b"mirred\0") + nested(_ACTION_OPTIONS, attribute(_MIRRED_PARAMETERS, mirred))
    options = nested(_TCA_OPTIONS, attribute(_U32_SELECTOR, _ANY), nested(_U32_ACTIONS, nested(1, action)))
    rule = _TCMSG.pack(socket.AF_UNSPEC, link, 0, _INGRESS_HANDLE, _EVERY_FRAME)
    return (
        (_NEWQDISC, NLM_CREATE | _NLM_EXCL, _ingress(link) + attribute(_TCA_KIND, b"ingress\0")),
        (_NEWTFILTER, NLM_CREATE | _NLM_EXCL, rule + attribute(_TCA_KIND, b"u32\0") + options),
    )


def _ingress(link: int) -> bytes:
    return _TCMSG.pack(socket.AF_UNSPEC, link, _INGRESS_HANDLE, _INGRESS, 0)


def without_offload(link: str) -> None:
    """Switch off GRO and GSO: a guest has no segmentation offload. A tender lacks CAP_NET_ADMIN for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for command in (_ETHTOOL_SGRO, _ETHTOOL_SGSO):
            value = array.array("I", [command, 0])
            request = struct.pack("16sP16x", link.encode(), value.buffer_info()[0])
            fcntl.ioctl(any_socket, _SIOCETHTOOL, request)
