"""The macvlans of taps (`task_taps`): set up as bridge ports and deleted by rtnetlink messages of this module.

pyroute2 takes ten times the processor time: it starts a thread for each tap, and encodes messages field by field.
"""

import errno
import os
import socket
import struct
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing

from solo5_systemd.network import rtnetlink as rt
from solo5_systemd.network.derived_addresses import octets
from solo5_systemd.network.raw_netlink import (
    NETLINK_ROUTE,
    NLM_ACK,
    NLM_CREATE,
    NLM_DUMP,
    NLM_REPLACE,
    NetlinkSocket,
    Request,
    attribute,
    attributes,
    link_index,
    nested,
)
from solo5_systemd.network.sysctls import set_for_link
from solo5_systemd.network.task_taps import TaskTap

# linux/rtnetlink.h, if_link.h, neighbour.h
_IFLA_GROUP, _IFLA_EXT_MASK, _SKIP_STATS = 27, 29, 8
_IFLA_AF_SPEC, _VLAN_INFO, _VLAN = 26, 2, struct.Struct("=HH")  # linux/if_bridge.h: flags, VLAN
_PVID, _UNTAGGED, _RANGE_BEGIN, _RANGE_END = 2, 4, 8, 16
_VLANS = range(1, 4095)
_SLAVE_KIND, _SLAVE_DATA = 4, 5
_HAIRPIN, _LEARNING, _UNICAST_FLOOD, _GROUP_FWD_MASK, _ISOLATED = 4, 8, 9, 31, 33
_MULTICAST_ROUTER, _MCAST_MAX_GROUPS = 25, 42
_NDA_VLAN, _NDA_MASTER = 5, 9
_AF_BRIDGE = 7
_NUD_NOARP, _NTF_MASTER, _NTF_STICKY = 0x40, 0x04, 0x40  # a static entry, of the port's bridge, which stays there

_ALL_GROUPS = 0xFFFD
"""group_fwd_mask: frames to 01:80:C2:00:00:0X are forwarded, and so filtered by rules; a bridge drops X = 1 itself.

Without it a bridge learns their source and delivers them as received on the tap, past every rule (br_handle_frame of
net/bridge/br_input.c): a guest could take another guest's MAC address, and send packets to the host.
"""

_GROUPS_MAX = 64
"""Multicast groups of a port. A bridge that has 4096 of all ports (mcast_hash_max) turns its multicast snooping off for
good; 23 reports of IGMPv3 name as many. Linux before 6.3 ignores the attribute."""

_DELETION_GROUP = 0x5305DEAD  # a link group for deletions, which no other program uses

_RTNL = threading.Lock()
"""Held while links are deleted and while taps are made. The kernel's rtnl lock is taken for a deletion, and a write to
a sysctl of a link does not wait for it: the kernel restarts write(2) until it gets the lock, which costs a core."""


def make(route: NetlinkSocket, tap: TaskTap, *, uid: int, mtu: int, alias: str) -> None:
    """Make a tap whose macvlan is up and a port of its bridge (`_port`), or set up existing ones; idempotent.

    Args:
        route: an rtnetlink socket.
        uid: the user that may attach to the tap.
        mtu: in bytes.
        alias: description of the macvlan (ifalias).

    Raises:
        OSError: the kernel refused.
        HostError: the tap's namespace does not exist.
    """
    with _RTNL:
        tap.make(route, uid=uid, mtu=mtu)
        set_for_link("ipv6", tap.name, "disable_ipv6", "1")
        set_for_link("ipv6", tap.name, "addr_gen_mode", "1")  # none: no link-local address
        index = socket.if_nametoindex(tap.name)
        link = rt.number(rt.IFLA_MASTER, socket.if_nametoindex(tap.bridge)) + rt.number(rt.IFLA_MTU, mtu)
        link += attribute(rt.IFLA_IFALIAS, alias.encode()) + attribute(rt.IFLA_ADDRESS, _high_mac(tap.mac))
        # On a joined bridge it is set up last: before, a port has the bridge's VLAN, learns and is flooded.
        first = (rt.SETLINK, 0, rt.ifinfo(index, link, up=not tap.joined))
        last = [(rt.SETLINK, 0, rt.ifinfo(index, up=True))] if tap.joined else []
        route.execute([first, *_port_vlan(index, tap.vlan), *_port(index, tap), *last])


def has_tap(route: NetlinkSocket, tap: TaskTap) -> bool:
    """Return whether a link is up and a port of a bridge, with the MAC, settings and FDB entry that `make` sets.

    And whether it is the macvlan of a tap (`task_taps`).

    Raises:
        OSError: the kernel refused to show it.
    """
    index, master = link_index(tap.name), link_index(tap.bridge)
    if not (index and master):
        return False
    try:
        [(_, link)] = route.request(rt.GETLINK, NLM_ACK, rt.ifinfo(index))
        flags, found = rt.IFINFOMSG.unpack_from(link)[3], rt.link_attributes(link)
        settings = attributes(attributes(found.get(rt.IFLA_LINKINFO, b"")).get(_SLAVE_DATA, b""))
        is_port = (
            bool(flags & rt.IFF_UP)
            and found.get(rt.IFLA_MASTER) == master.to_bytes(4, sys.byteorder)
            and found.get(rt.IFLA_ADDRESS) == _high_mac(tap.mac)
            and all(settings.get(key, value) == value for key, value in _settings(tap).items())
        )
        return is_port and _has_entry(route, index, tap) and tap.is_whole(route, found)
    except OSError as error:
        if error.errno in (errno.ENODEV, errno.ENOENT):
            return False
        raise


def states(route: NetlinkSocket) -> Mapping[str, object]:
    """Return for each macvlan with a carrier a value that is the same while nothing changes that `has_tap` reads.

    Two dumps, whatever their number. A tap that is down, or is no more, takes the carrier along.

    Raises:
        OSError: the kernel refused.
    """
    wanted = rt.ifinfo(0, nested(rt.IFLA_LINKINFO, rt.MACVLAN), rt.number(_IFLA_EXT_MASK, _SKIP_STATS))
    found: dict[int, tuple[bytes, set[tuple[object, ...]]]] = {}
    for _, link in route.request(rt.GETLINK, NLM_DUMP, wanted):
        _, _, index, flags, _ = rt.IFINFOMSG.unpack_from(link)
        if flags & rt.IFF_LOWER_UP:
            found[index] = link, set()
    for _, entry in route.request(rt.GETNEIGH, NLM_DUMP, rt.NDMSG.pack(_AF_BRIDGE, 0, 0, 0, 0)):
        _, index, state, flags, _ = rt.NDMSG.unpack_from(entry)
        if flags & _NTF_MASTER and index in found:
            values = attributes(entry[rt.NDMSG.size :])  # with the time of the last use, which is left out
            found[index][1].add((state, flags, values.get(rt.NDA_LLADDR), values.get(_NDA_VLAN)))
    return {rt.link_name(link): (link, entries) for link, entries in found.values()}


def _has_entry(route: NetlinkSocket, index: int, tap: TaskTap) -> bool:
    """Return whether the static FDB entry of a port is there; raises OSError, ENOENT for none."""
    wanted = rt.NDMSG.pack(_AF_BRIDGE, index, 0, _NTF_MASTER, 0) + attribute(rt.NDA_LLADDR, octets(tap.mac))
    if tap.vlan:
        wanted += attribute(_NDA_VLAN, tap.vlan.to_bytes(2, sys.byteorder))
    [(_, entry)] = route.request(rt.GETNEIGH, NLM_ACK, wanted)
    _, found, state, flags, _ = rt.NDMSG.unpack_from(entry)
    return found == index and bool(state & _NUD_NOARP) and bool(flags & _NTF_STICKY) == tap.joined


def link_of_mac(route: NetlinkSocket, bridge: int, mac: str, vlan: int) -> int:
    """Return the index of the link at which a bridge has a MAC address in a VLAN, 0 where it has it nowhere.

    Raises:
        OSError: the kernel refused.
    """
    wanted = rt.NDMSG.pack(_AF_BRIDGE, 0, 0, 0, 0)
    wanted += attribute(rt.NDA_LLADDR, octets(mac)) + rt.number(_NDA_MASTER, bridge)
    if vlan:
        wanted += attribute(_NDA_VLAN, vlan.to_bytes(2, sys.byteorder))
    try:
        [(_, entry)] = route.request(rt.GETNEIGH, NLM_ACK, wanted)
    except FileNotFoundError:
        return 0
    return int(rt.NDMSG.unpack_from(entry)[1])


def delete(indexes: Collection[int]) -> None:
    """Delete links by their index, as far as they exist.

    The kernel waits for a grace period, 16 to 32 ms, under the rtnl lock: so the links are put into one group and
    deleted by one request.

    Raises:
        OSError: the kernel refused.
    """
    group = rt.number(_IFLA_GROUP, _DELETION_GROUP)
    requests = [(rt.SETLINK, 0, rt.ifinfo(index, group)) for index in indexes]
    requests.append((rt.DELLINK, 0, rt.ifinfo(0, group)))
    with closing(NetlinkSocket(NETLINK_ROUTE)) as route, _RTNL:
        codes = route.run(requests)
    for code in codes:
        if code not in (0, errno.ENODEV):  # ENODEV: another program has deleted the link
            raise OSError(code, os.strerror(code))


def _high_mac(mac: str) -> bytes:
    """Return the MAC of a tap's macvlan, as libvirt has it for taps.

    A joined bridge without a MAC of its own takes the lowest of its ports. It differs from the guest's, whose frames
    the bridge would otherwise take for the host's.
    """
    first, *others = octets(mac)
    return bytes([0xEE if first == 0xFE else 0xFE, *others])


def _port_vlan(tap: int, vlan: int) -> Sequence[Request]:
    """Return the requests that make a VLAN the only one of a port; none for 0."""
    if not vlan:
        return ()
    ours = attribute(_VLAN_INFO, _VLAN.pack(_PVID | _UNTAGGED, vlan))
    others = b"".join(
        attribute(_VLAN_INFO, _VLAN.pack(_RANGE_BEGIN, span[0]))
        + attribute(_VLAN_INFO, _VLAN.pack(_RANGE_END, span[-1]))
        for span in (_VLANS[: vlan - 1], _VLANS[vlan:])
        if span
    )
    both = ((rt.SETLINK, ours), (rt.DELLINK, others))
    return [(kind, 0, rt.ifinfo(tap, nested(_IFLA_AF_SPEC, vlans), family=_AF_BRIDGE)) for kind, vlans in both]


def _settings(tap: TaskTap) -> Mapping[int, bytes]:
    return {
        _HAIRPIN: bytes([not tap.joined]),
        _LEARNING: b"\x00",
        _UNICAST_FLOOD: b"\x00",
        _ISOLATED: bytes([tap.isolated]),
        _GROUP_FWD_MASK: _ALL_GROUPS.to_bytes(2, sys.byteorder),
        _MULTICAST_ROUTER: b"\x00",  # whatever PIM and router advertisements (RFC 4286) it sends
        _MCAST_MAX_GROUPS: _GROUPS_MAX.to_bytes(4, sys.byteorder),
    }


def _port(index: int, tap: TaskTap) -> Sequence[Request]:
    """Return the requests that set hairpin mode (see nft_rules), isolation, forwarded groups and the static FDB entry.

    The MAC is the only entry of the port, and none is learned. Frames for any other MAC do not reach this guest,
    and its own frames for an unknown MAC are not flooded to other ports of this kind.
    """
    settings = nested(_SLAVE_DATA, *(attribute(key, value) for key, value in _settings(tap).items()))
    # Of a link that is a port already: so not in the message that makes it one.
    link = nested(rt.IFLA_LINKINFO, attribute(_SLAVE_KIND, b"bridge\0"), settings)
    # Other ports of a joined bridge learn: without NTF_STICKY, one frame there with this MAC would move the entry.
    flags = _NTF_MASTER | _NTF_STICKY if tap.joined else _NTF_MASTER
    entry = rt.NDMSG.pack(_AF_BRIDGE, index, _NUD_NOARP, flags, 0) + attribute(rt.NDA_LLADDR, octets(tap.mac))
    return (rt.NEWLINK, 0, rt.ifinfo(index, link)), (rt.NEWNEIGH, NLM_CREATE | NLM_REPLACE, entry)
