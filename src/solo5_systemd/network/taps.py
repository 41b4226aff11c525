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
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from solo5_systemd.network.modules import TUN, needing
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
_IFLA_ADDRESS, _IFLA_MTU, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_IFALIAS, _IFLA_GROUP = 1, 4, 10, 18, 20, 27
_IFLA_AF_SPEC, _VLAN_INFO, _VLAN = 26, 2, struct.Struct("=HH")  # linux/if_bridge.h: flags, VLAN
_PVID, _UNTAGGED, _RANGE_BEGIN, _RANGE_END = 2, 4, 8, 16
_VLANS = range(1, 4095)
_SLAVE_KIND, _SLAVE_DATA = 4, 5
_HAIRPIN, _LEARNING, _UNICAST_FLOOD, _GROUP_FWD_MASK, _ISOLATED = 4, 8, 9, 31, 33
_NDA_LLADDR = 2
_AF_BRIDGE = 7
_NUD_NOARP, _NTF_MASTER, _NTF_STICKY = 0x40, 0x04, 0x40  # a static entry, of the port's bridge, which stays there
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


@dataclass(frozen=True, kw_only=True)
class BridgePort:
    """The settings of a tap as a bridge port.

    Attributes:
        mac: the only MAC address behind the port.
        isolated: the bridge forwards no frames between isolated ports. That needs neither a rule of nftables nor
            br_netfilter.
        joined: the bridge is one of others.
        vlan: the only VLAN of the port, on a bridge of others; 0: that of a new port.
    """

    mac: str
    isolated: bool
    joined: bool = False
    vlan: int = 0


class Taps:
    """An rtnetlink socket that makes taps and sets them up as bridge ports. Not thread-safe."""

    def __init__(self) -> None:
        self._route = NetlinkSocket(NETLINK_ROUTE)

    def close(self) -> None:
        """Close the socket."""
        self._route.close()

    def make(
        self,
        name: str,
        *,
        uid: int | None,
        bridge: str,
        mtu: int,
        alias: str,
        port: BridgePort,
        make: Callable[[NetlinkSocket], None] | None = None,
    ) -> None:
        """Make a tap that is up and a port of a bridge, or set up an existing one; idempotent.

        Args:
            name: of the tap.
            uid: the user that may attach to it; None where it exists.
            bridge: the name of its bridge.
            mtu: in bytes.
            alias: its description (ifalias).
            port: its settings as a port; see `set_port`.
            make: makes the link of that name instead of a tap, with an rtnetlink socket.

        Raises:
            OSError: the kernel refused.
        """
        with _RTNL:
            if make is not None:
                make(self._route)
            elif uid is not None:
                create_tap(name, uid)
            set_for_link("ipv6", name, "disable_ipv6", "1")
            set_for_link("ipv6", name, "addr_gen_mode", "1")  # none: no link-local address
            without_offload(name)
            tap = socket.if_nametoindex(name)
            link = attribute(_IFLA_MASTER, socket.if_nametoindex(bridge).to_bytes(4, sys.byteorder))
            link += attribute(_IFLA_MTU, mtu.to_bytes(4, sys.byteorder)) + attribute(_IFLA_IFALIAS, alias.encode())
            if port.joined and uid is not None:
                link += attribute(_IFLA_ADDRESS, _high_mac(port.mac))
            up = _IFINFOMSG.pack(socket.AF_UNSPEC, 0, tap, _IFF_UP, _IFF_UP)
            unchanged = _IFINFOMSG.pack(socket.AF_UNSPEC, 0, tap, 0, 0)
            # On a bridge of others it is set up last: before, a port has the bridge's VLAN, learns and is flooded.
            first, last = (unchanged, [(_SETLINK, 0, up)]) if port.joined else (up, [])
            self._route.execute([(_SETLINK, 0, first + link), *_port_vlan(tap, port.vlan), *_port(tap, port), *last])

    def make_alone(self, name: str, *, uid: int, mtu: int, alias: str) -> None:
        """Make a tap that is up and no bridge's port, or set up an existing one; idempotent. Raises as `make`."""
        with _RTNL:
            keep_or_create_tap(name, uid)
            set_for_link("ipv6", name, "disable_ipv6", "1")
            link = attribute(_IFLA_MTU, mtu.to_bytes(4, sys.byteorder)) + attribute(_IFLA_IFALIAS, alias.encode())
            up = _IFINFOMSG.pack(socket.AF_UNSPEC, 0, socket.if_nametoindex(name), _IFF_UP, _IFF_UP)
            self._route.execute([(_SETLINK, 0, up + link)])

    def set_port(self, name: str, port: BridgePort) -> None:
        """Set hairpin mode (see nft_rules), isolation, forwarded groups, VLAN and the static FDB entry of a port.

        The MAC is the only entry of the port, and none is learned. Frames for any other MAC do not reach this guest,
        and its own frames for an unknown MAC are not flooded to other ports of this kind.

        Raises:
            OSError: the kernel refused.
        """
        tap = socket.if_nametoindex(name)
        self._route.execute([*_port_vlan(tap, port.vlan), *_port(tap, port)])


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


def create_tap(name: str, uid: int) -> None:
    """Create a tap in the calling thread's namespace, or take an existing one, that stays when it is closed.

    Raises:
        OSError: the kernel refused; EBUSY: a tender has it.
        HostError: there is no device for taps.
    """
    with needing(TUN, f"tap {name}"):
        descriptor = os.open(_TUN, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
        fcntl.ioctl(descriptor, _TUNSETOWNER, uid)
        fcntl.ioctl(descriptor, _TUNSETPERSIST, 1)
    finally:
        os.close(descriptor)


def keep_or_create_tap(name: str, uid: int) -> None:
    """Create a tap without offload as `create_tap`, or keep one that a running tender has; raises OSError."""
    try:
        create_tap(name, uid)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
    without_offload(name)


def _high_mac(mac: str) -> bytes:
    """Return the MAC of the host's end of a tap on a bridge of others, as libvirt has it.

    A bridge without a MAC of its own takes the lowest of its ports. It differs from the guest's, whose frames the
    bridge would otherwise take for the host's.
    """
    octets = bytes.fromhex(mac.replace(":", ""))
    return (b"\xee" if octets[:1] == b"\xfe" else b"\xfe") + octets[1:]


def _port_vlan(tap: int, vlan: int) -> Sequence[Request]:
    """Return the requests that make a VLAN the only one of a port; none for 0."""
    if not vlan:
        return ()
    link = _IFINFOMSG.pack(_AF_BRIDGE, 0, tap, 0, 0)
    ours = attribute(_VLAN_INFO, _VLAN.pack(_PVID | _UNTAGGED, vlan))
    others = b"".join(
        attribute(_VLAN_INFO, _VLAN.pack(_RANGE_BEGIN, span[0]))
        + attribute(_VLAN_INFO, _VLAN.pack(_RANGE_END, span[-1]))
        for span in (_VLANS[: vlan - 1], _VLANS[vlan:])
        if span
    )
    return (_SETLINK, 0, link + nested(_IFLA_AF_SPEC, ours)), (_DELLINK, 0, link + nested(_IFLA_AF_SPEC, others))


def _port(tap: int, port: BridgePort) -> Sequence[Request]:
    settings = nested(
        _SLAVE_DATA,
        attribute(_HAIRPIN, bytes([not port.joined])),
        attribute(_LEARNING, b"\x00"),
        attribute(_UNICAST_FLOOD, b"\x00"),
        attribute(_ISOLATED, bytes([port.isolated])),
        attribute(_GROUP_FWD_MASK, _ALL_GROUPS.to_bytes(2, sys.byteorder)),
    )
    # Of a link that is a port already: so not in the message that makes it one.
    link = nested(_IFLA_LINKINFO, attribute(_SLAVE_KIND, b"bridge\0"), settings)
    # Other ports of a bridge of others learn: without NTF_STICKY, one frame there with this MAC would move the entry.
    flags = _NTF_MASTER | _NTF_STICKY if port.joined else _NTF_MASTER
    entry = _NDMSG.pack(_AF_BRIDGE, tap, _NUD_NOARP, flags, 0)
    entry += attribute(_NDA_LLADDR, bytes.fromhex(port.mac.replace(":", "")))
    return (
        (_NEWLINK, 0, _IFINFOMSG.pack(socket.AF_UNSPEC, 0, tap, 0, 0) + link),
        (_NEWNEIGH, NLM_CREATE | NLM_REPLACE, entry),
    )


def without_offload(link: str) -> None:
    """Switch off GRO and GSO: a guest has no segmentation offload. A tender lacks CAP_NET_ADMIN for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for command in (_ETHTOOL_SGRO, _ETHTOOL_SGSO):
            value = array.array("I", [command, 0])
            request = struct.pack("16sP16x", link.encode(), value.buffer_info()[0])
            fcntl.ioctl(any_socket, _SIOCETHTOOL, request)
