"""Taps in network namespaces of tasks: each is joined by a veth pair to the host, where the rules and the bridge are.

        host                               namespace of the task
    bridge ── s5-NAME ═══ veth pair ═══ s5v-NAME ⇄ s5-NAME ── tender
                                              tc redirect      (tap)

The host's end has the tap's name: packet filter, counters and bridge port are those of any other task. The namespace
has no address, and every frame is redirected from one link to the other before its stack sees it. So a tender that a
guest has taken over reaches what its guest reaches.
"""

import errno
import fcntl
import os
import socket
import struct
import sys
from contextlib import closing

from solo5_systemd.errors import HostError
from solo5_systemd.network.ipam import TAP_PREFIX
from solo5_systemd.network.modules import REDIRECTION, VETH, needing
from solo5_systemd.network.namespaces import NetworkNamespace
from solo5_systemd.network.raw_netlink import (
    NETLINK_ROUTE,
    NLM_CREATE,
    NetlinkSocket,
    Request,
    attribute,
    nested,
)
from solo5_systemd.network.taps import keep_or_create_tap

# linux/rtnetlink.h, if_link.h, veth.h
_NEWLINK, _SETLINK, _NEWQDISC, _DELQDISC, _NEWTFILTER = 16, 19, 36, 37, 44
_IFINFOMSG = struct.Struct("=BxHiII")  # family, type, index, flags, changed flags
_IFLA_IFNAME, _IFLA_MTU, _IFLA_LINKINFO, _IFLA_NET_NS_FD = 3, 4, 18, 28
_KIND, _DATA, _PEER = 1, 2, 1
_IFF_UP = 1
_NLM_EXCL = 0x200
_SIOCGIFFLAGS, _IFREQ_FLAGS = 0x8913, struct.Struct("16sH22x")  # linux/sockios.h, if.h

# linux/pkt_sched.h, pkt_cls.h, tc_act/tc_mirred.h
_TCMSG = struct.Struct("=BxxxiIII")  # family, link, handle, parent, info
_INGRESS, _INGRESS_HANDLE = 0xFFFFFFF1, 0xFFFF0000
_TCA_KIND, _TCA_OPTIONS = 1, 2
_EVERY_FRAME = (1 << 16) | socket.htons(3)  # priority 1, ETH_P_ALL
_U32_SELECTOR, _U32_ACTIONS = 5, 7
_ANY = struct.pack("=BBBxHHhhIIIii", 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0)  # terminal, with one key that all frames have
_ACTION_KIND, _ACTION_OPTIONS, _MIRRED_PARAMETERS = 1, 2, 2
_STOLEN, _EGRESS_REDIRECT = 4, 1

_GONE = (0, errno.ENOENT, errno.EINVAL)


def peer_name(tap: str) -> str:
    """Return the name of the veth's end in the namespace."""
    return f"s5v{tap.removeprefix(TAP_PREFIX)}"


def make_veth_tap(host: NetlinkSocket, name: str, *, uid: int, mtu: int, namespace: str, exists: bool) -> None:
    """Make a tap in a namespace and the veth pair to it, or repair them; the host's end remains down.

    Args:
        host: an rtnetlink socket of the host's namespace.
        name: of the tap, and of the host's end.
        uid: the user that may attach to the tap.
        mtu: in bytes.
        namespace: path of the task's namespace.
        exists: the host's end exists.

    Raises:
        OSError: the kernel refused.
        HostError: the namespace does not exist, or cannot be entered.
    """
    with closing(NetworkNamespace(namespace)) as opened:
        if not exists:
            with needing(VETH, f"link {name}"):
                host.execute([_pair(name, mtu, opened.descriptor)])
        with opened.entered():
            keep_or_create_tap(name, uid)  # a tender that runs has it where its pair alone was deleted
            inside = NetlinkSocket(NETLINK_ROUTE)
            try:
                tap, peer = socket.if_nametoindex(name), socket.if_nametoindex(peer_name(name))
                # A tap that outlived an earlier pair still redirects to it.
                for code in inside.run([(_DELQDISC, 0, _ingress(link)) for link in (tap, peer)]):
                    if code not in _GONE:
                        raise OSError(code, os.strerror(code))
                inside.execute([*_up(tap, mtu), *_up(peer, mtu)])
                with needing(REDIRECTION, f"the redirection of {name} in {namespace}"):
                    inside.execute([*redirection(tap, peer), *redirection(peer, tap)])
            finally:
                inside.close()


def has_veth_tap(name: str, namespace: str) -> bool:
    """Return whether tap and pair in a namespace are up; True where the namespace has no path any more.

    The kernel sends no message of it to other namespaces, and the host's end shows the state of the pair only.
    """
    try:
        with (
            closing(NetworkNamespace(namespace)) as opened,
            opened.entered(),
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket,
        ):
            return all(_is_up(any_socket, link) for link in (name, peer_name(name)))
    except HostError:
        return True


def _is_up(any_socket: socket.socket, link: str) -> bool:
    try:
        answer = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, _IFREQ_FLAGS.pack(link.encode(), 0))
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise
        return False
    return bool(_IFREQ_FLAGS.unpack(answer)[1] & _IFF_UP)


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
    mirred = struct.pack("=IIiiiiI", 0, 0, _STOLEN, 0, 0, _EGRESS_REDIRECT, to)
    action = attribute(_ACTION_KIND, b"mirred\0") + nested(_ACTION_OPTIONS, attribute(_MIRRED_PARAMETERS, mirred))
    options = nested(_TCA_OPTIONS, attribute(_U32_SELECTOR, _ANY), nested(_U32_ACTIONS, nested(1, action)))
    rule = _TCMSG.pack(socket.AF_UNSPEC, link, 0, _INGRESS_HANDLE, _EVERY_FRAME)
    return (
        (_NEWQDISC, NLM_CREATE | _NLM_EXCL, _ingress(link) + attribute(_TCA_KIND, b"ingress\0")),
        (_NEWTFILTER, NLM_CREATE | _NLM_EXCL, rule + attribute(_TCA_KIND, b"u32\0") + options),
    )


def _ingress(link: int) -> bytes:
    return _TCMSG.pack(socket.AF_UNSPEC, link, _INGRESS_HANDLE, _INGRESS, 0)
