"""Taps: created through /dev/net/tun, set up and deleted by rtnetlink messages of this module.

pyroute2 takes ten times the processor time: it starts a thread for each tap, and encodes messages field by field.
"""

import array
import errno
import fcntl
import os
import socket
import struct
import sys
import threading
from collections.abc import Collection, Sequence

from solo5_systemd.network.raw_netlink import (
    NETLINK_ROUTE,
    NLM_CREATE,
    NLM_REPLACE,
    NetlinkSocket,
    Request,
    attribute,
    nested,
)
from solo5_systemd.network.sysctls import set_for_link

_TUN = "/dev/net/tun"
_TUNSETIFF, _TUNSETPERSIST, _TUNSETOWNER = 0x400454CA, 0x400454CB, 0x400454CC  # linux/if_tun.h
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_SIOCETHTOOL = 0x8946
_ETHTOOL_SGSO, _ETHTOOL_SGRO = 0x24, 0x2C

# linux/rtnetlink.h, if_link.h, neighbour.h
_NEWLINK, _DELLINK, _SETLINK, _NEWNEIGH = 16, 17, 19, 28
_IFINFOMSG = struct.Struct("=BxHiII")  # family, type, index, flags, changed flags
_NDMSG = struct.Struct("=BxxxiHBB")  # family, index, state, flags, type
_IFLA_MTU, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_IFALIAS, _IFLA_GROUP = 4, 10, 18, 20, 27
_SLAVE_KIND, _SLAVE_DATA = 4, 5
_HAIRPIN, _LEARNING, _UNICAST_FLOOD, _GROUP_FWD_MASK, _ISOLATED = 4, 8, 9, 31, 33
_NDA_LLADDR = 2
_AF_BRIDGE = 7
_NUD_NOARP, _NTF_MASTER = 0x40, 0x04  # a static entry, of the port's bridge
_IFF_UP = 1

_ALL_GROUPS = 0xFFFD
"""group_fwd_mask: frames to 01:80:C2:00:00:0X are forwarded, and so filtered by rules; a bridge drops X = 1 itself.

Without it a bridge learns their source and delivers them as received on the tap, past every rule (br_handle_frame of
net/bridge/br_input.c): a guest could take another guest's MAC address, and send packets to the host.
"""

_DELETION_GROUP = 0x5305DEAD  # a link group for deletions, which no other program uses

_RTNL = threading.Lock()
"""Held while links are deleted and while taps are made. The kernel's rtnl lock is taken for a deletion, and a write to
a sysctl of a link does not wait for it: the kernel restarts write(2) until it gets the lock, which costs a core."""


class Taps:
    """An rtnetlink socket that makes taps and sets them up as bridge ports. Not thread-safe."""

    def __init__(self) -> None:
        self._route = NetlinkSocket(NETLINK_ROUTE)

    def make(self, name: str, *, uid: int | None, bridge: str, mtu: int, alias: str, mac: str, isolated: bool) -> None:
        """Make a tap that is up and a port of a bridge, or set up an existing one; idempotent.

        Args:
            name: of the tap.
            uid: the user that may attach to it; None where it exists.
            bridge: the name of its bridge.
            mtu: in bytes.
            alias: its description (ifalias).
            mac: the only MAC address behind the port; see `set_port`.
            isolated: as in `set_port`.

        Raises:
            OSError: the kernel refused.
        """
        with _RTNL:
            if uid is not None:
                _create(name, uid)
            set_for_link("ipv6", name, "disable_ipv6", "1")
            set_for_link("ipv6", name, "addr_gen_mode", "1")  # none: no link-local address
            _without_offload(name)
            tap = socket.if_nametoindex(name)
            port = _IFINFOMSG.pack(socket.AF_UNSPEC, 0, tap, _IFF_UP, _IFF_UP)
            port += attribute(_IFLA_MASTER, socket.if_nametoindex(bridge).to_bytes(4, sys.byteorder))
            port += attribute(_IFLA_MTU, mtu.to_bytes(4, sys.byteorder)) + attribute(_IFLA_IFALIAS, alias.encode())
            self._run([(_SETLINK, 0, port), *_port(tap, mac, isolated=isolated)])

    def set_port(self, name: str, mac: str, *, isolated: bool) -> None:
        """Set hairpin mode (see nft_rules), isolation, forwarded groups and the static FDB entry of a bridge port.

        The MAC is the only entry of the port, and none is learned. Frames for any other MAC do not reach this guest,
        and its own frames for an unknown MAC are not flooded to the other ports.

        Raises:
            OSError: the kernel refused.
        """
        self._run(_port(socket.if_nametoindex(name), mac, isolated=isolated))

    def _run(self, requests: Sequence[Request]) -> None:
        for code in self._route.run(requests):
            if code:
                raise OSError(code, os.strerror(code))


def delete(indexes: Collection[int]) -> None:
    """Delete links by their index, as far as they exist.

    The kernel waits for a grace period, 16 to 32 ms, under the rtnl lock: so the links are put into one group and
    deleted by one request.

    Raises:
        OSError: the kernel refused.
    """
    group = attribute(_IFLA_GROUP, _DELETION_GROUP.to_bytes(4, sys.byteorder))
    requests = [(_SETLINK, 0, _IFINFOMSG.pack(socket.AF_UNSPEC, 0, index, 0, 0) + group) for index in indexes]
    requests.append((_DELLINK, 0, _IFINFOMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + group))
    route = NetlinkSocket(NETLINK_ROUTE)
    try:
        with _RTNL:
            codes = route.run(requests)
    finally:
        route.close()
    for code in codes:
        if code not in (0, errno.ENODEV):  # ENODEV: another program has deleted the link
            raise OSError(code, os.strerror(code))


def _create(name: str, uid: int) -> None:
    """Create a tap that stays when its descriptor is closed."""
    descriptor = os.open(_TUN, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
        fcntl.ioctl(descriptor, _TUNSETOWNER, uid)
        fcntl.ioctl(descriptor, _TUNSETPERSIST, 1)
    finally:
        os.close(descriptor)


def _port(tap: int, mac: str, *, isolated: bool) -> Sequence[Request]:
    settings = nested(
        _SLAVE_DATA,
        attribute(_HAIRPIN, b"\x01"),
        attribute(_LEARNING, b"\x00"),
        attribute(_UNICAST_FLOOD, b"\x00"),
        attribute(_ISOLATED, bytes([isolated])),
        attribute(_GROUP_FWD_MASK, _ALL_GROUPS.to_bytes(2, sys.byteorder)),
    )
    # Of a link that is a port already: so not in the message that makes it one.
    port = nested(_IFLA_LINKINFO, attribute(_SLAVE_KIND, b"bridge\0"), settings)
    entry = _NDMSG.pack(_AF_BRIDGE, tap, _NUD_NOARP, _NTF_MASTER, 0)
    entry += attribute(_NDA_LLADDR, bytes.fromhex(mac.replace(":", "")))
    return (
        (_NEWLINK, 0, _IFINFOMSG.pack(socket.AF_UNSPEC, 0, tap, 0, 0) + port),
        (_NEWNEIGH, NLM_CREATE | NLM_REPLACE, entry),
    )


def _without_offload(link: str) -> None:
    # A guest has no segmentation offload. The tender's own ioctl fails for lack of CAP_NET_ADMIN.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for command in (_ETHTOOL_SGRO, _ETHTOOL_SGSO):
            value = array.array("I", [command, 0])
            request = struct.pack("16sP16x", link.encode(), value.buffer_info()[0])
            fcntl.ioctl(any_socket, _SIOCETHTOOL, request)
