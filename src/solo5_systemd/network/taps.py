"""Taps in network namespaces of tasks: each is the lower link of a macvlan of the host, the port of its bridge.

        host                              namespace of the task
    bridge ── s5-NAME (macvlan) ───────── s5-NAME (tap) ── tender

Packet filter, counters and port settings are those of the macvlan. In mode source it receives the frames of the tap
with the guest's MAC as their source; others stay in the namespace, which has no address. It has a MAC of its own:
what a tender changes of its tap (SIOCSIFHWADDR needs no capability) changes nothing of the port.

A tender can attach with IFF_VNET_HDR and have the kernel fill in a checksum, at any place of a frame that the rules
have seen. The header before each frame is then so long that no write has it; a tender under solo5-confine cannot set
its size.

All by rtnetlink messages of our own: docs/decisions/network-service.md has what they save. Functions raise OSError if
the kernel refuses.
"""

import array
import errno
import fcntl
import os
import socket
import struct
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import TaskName, task_namespace
from solo5_systemd.network import netlink as nl
from solo5_systemd.network.derived_addresses import octets
from solo5_systemd.network.model import Lease
from solo5_systemd.network.modules import MACVLAN, TUN, needing
from solo5_systemd.network.namespaces import NetworkNamespace
from solo5_systemd.network.sysctls import write_sysctl
from solo5_systemd.network.tap_counters import tap_alias
from solo5_systemd.settings.network_policy import Network

# linux/rtnetlink.h, if_link.h, net_namespace.h
_GETNSID, _IFLA_NET_NS_FD, _IFLA_LINK_NETNSID, _IFLA_TARGET_NETNSID, _NETNSA_NSID, _NETNSA_FD = 90, 28, 37, 46, 1, 3
_MODE, _FLAGS, _MACADDR_MODE, _MACADDR, _MACADDR_DATA = 1, 2, 3, 4, 5
_SOURCE, _NODST, _ADD = 16, 2, 0  # NODST: the namespace's own stack does not get these frames as well
_SETTINGS = {_MODE: _SOURCE.to_bytes(4, sys.byteorder), _FLAGS: _NODST.to_bytes(2, sys.byteorder)}
_SIOCETHTOOL = 0x8946
_ETHTOOL_SGSO, _ETHTOOL_SGRO = 0x24, 0x2C

_TUN = "/dev/net/tun"
# linux/if_tun.h
_TUNSETIFF, _TUNSETPERSIST, _TUNSETOWNER, _TUNSETVNETHDRSZ = 0x400454CA, 0x400454CB, 0x400454CC, 0x400454D8
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_ENDLESS = struct.pack("i", 0x7FFFFFFF)  # more than one write has (MAX_RW_COUNT)


def _make_links(host: nl.NetlinkSocket, task: TaskName, lease: Lease, *, uid: int, mtu: int) -> None:
    """Make or repair tap and macvlan; a new macvlan is down.

    A tap that no tender has is made anew, whatever an earlier tender has done to it. One that a tender has is kept:
    its macvlan alone was deleted or changed.
    """
    tap = lease.tap
    found = nl.link_index(tap)
    with (
        closing(NetworkNamespace()) as own,
        closing(NetworkNamespace(task_namespace(task))) as there,
        there.entered(),
        closing(nl.NetlinkSocket()) as inside,
    ):
        is_new = _create_tap(tap, uid)
        lower = socket.if_nametoindex(tap)
        inside.execute([(nl.SETLINK, 0, nl.ifinfo(lower, nl.number(nl.IFLA_MTU, mtu), up=True))])
        _switch_offload_off(tap)
        if found and not is_new:
            [(_, link)] = host.request(nl.GETLINK, nl.NLM_ACK, nl.ifinfo(0, nl.named(tap)))
            if _is_whole(host, task, lease, nl.link_attributes(link)):
                return
        if found or not is_new:  # a link of another program or of an earlier namespace, or a changed one
            uppers = () if is_new else _deletions_of_uppers(host, there, lower)
            host.run([(nl.DELLINK, 0, nl.ifinfo(0, nl.named(tap))), *uppers])
        with needing(MACVLAN, f"link {tap}"):
            inside.execute([_macvlan(lease, lower, own.descriptor, mtu)])
    made = socket.if_nametoindex(_first_name(tap))
    try:
        host.execute([(nl.SETLINK, 0, nl.ifinfo(made, nl.named(tap)))])
    except OSError:
        host.run([(nl.DELLINK, 0, nl.ifinfo(made))])  # nothing else looks for this name
        raise


def _first_name(name: str) -> str:
    """Return the name with which the macvlan is made: Linux before 6.15 refuses one that its lower link has."""
    return f"{name[:-1]}~"


def _macvlan(lease: Lease, lower: int, namespace: int, mtu: int) -> nl.Request:
    settings = (nl.attribute(key, value) for key, value in _SETTINGS.items())
    data = b"".join((*settings, nl.number(_MACADDR_MODE, _ADD), _source(lease.mac)))
    link = nl.named(_first_name(lease.tap)) + nl.number(nl.IFLA_LINK, lower) + nl.number(nl.IFLA_MTU, mtu)
    return nl.new_link("macvlan", data, link, nl.number(_IFLA_NET_NS_FD, namespace))


def _is_whole(host: nl.NetlinkSocket, task: TaskName, lease: Lease, found: Mapping[int, bytes]) -> bool:
    """Return whether macvlan and tap are as `_make_links` makes them, and the tap is up; True without the namespace.

    Raises OSError; ENODEV: there is no tap.
    """
    info = nl.attributes(found.get(nl.IFLA_LINKINFO, b""))
    expected = {**_SETTINGS, _MACADDR_DATA: _source(lease.mac)}
    settings = nl.attributes(info.get(nl.INFO_DATA, b""))
    if info.get(nl.INFO_KIND) != b"macvlan\0" or not expected.items() <= settings.items():
        return False
    try:
        with closing(NetworkNamespace(task_namespace(task))) as there:
            its_id = _id_of(host, there)
    except HostError:
        return True
    if found.get(_IFLA_LINK_NETNSID) != its_id:  # the tap is in an earlier namespace
        return False
    lower = nl.ifinfo(nl.integer(found, nl.IFLA_LINK), nl.attribute(_IFLA_TARGET_NETNSID, its_id))
    [(_, link)] = host.request(nl.GETLINK, nl.NLM_ACK, lower)
    return bool(nl.IFINFOMSG.unpack_from(link)[3] & nl.IFF_UP)


def _deletions_of_uppers(host: nl.NetlinkSocket, namespace: NetworkNamespace, tap: int) -> Sequence[nl.Request]:
    """Return the requests that delete all macvlans of a tap: another program may have renamed one."""
    wanted = {nl.IFLA_LINK: tap.to_bytes(4, sys.byteorder), _IFLA_LINK_NETNSID: _id_of(host, namespace)}
    return [
        (nl.DELLINK, 0, nl.ifinfo(nl.IFINFOMSG.unpack_from(link)[2]))
        for _, link in host.request(nl.GETLINK, nl.NLM_DUMP, nl.ifinfo(0, nl.nested(nl.IFLA_LINKINFO, nl.MACVLAN)))
        if wanted.items() <= nl.link_attributes(link).items()
    ]


def _id_of(host: nl.NetlinkSocket, namespace: NetworkNamespace) -> bytes:
    """Return the ID of a namespace in that of a socket, as links have it."""
    [(_, answer)] = host.request(_GETNSID, nl.NLM_ACK, bytes(4) + nl.number(_NETNSA_FD, namespace.descriptor))
    return nl.attributes(answer[4:])[_NETNSA_NSID]


def _source(mac: str) -> bytes:
    return nl.attribute(_MACADDR, octets(mac))


def _create_tap(name: str, uid: int) -> bool:
    """Create a tap in the calling thread's namespace, in place of one that no process has; return whether it is new."""
    with needing(TUN, f"tap {name}"):
        first = os.open(_TUN, os.O_RDWR | os.O_CLOEXEC)
    try:
        found = nl.link_index(name)
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


# -- ports of bridges --------------------------------------------------------------------------------------------------

# linux/rtnetlink.h, if_link.h, neighbour.h
_IFLA_EXT_MASK, _SKIP_STATS = 29, 8
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

RTNL = threading.Lock()
"""Held while links are deleted and while taps are made. The kernel's rtnl lock is taken for a deletion, and a write to
a sysctl of a link does not wait for it: the kernel restarts write(2) until it gets the lock, which costs a core."""


def make(route: nl.NetlinkSocket, task: TaskName, lease: Lease, network: Network, *, uid: int, mtu: int) -> None:
    """Make a tap whose macvlan is up and a port of its bridge (`_port`), or set up existing ones; idempotent.

    `uid`: the user that may attach to the tap. Raises HostError, too: the task's namespace does not exist.
    """
    with RTNL:
        _make_links(route, task, lease, uid=uid, mtu=mtu)
        write_sysctl(f"ipv6/conf/{lease.tap}/disable_ipv6", "1")
        write_sysctl(f"ipv6/conf/{lease.tap}/addr_gen_mode", "1")  # none: no link-local address
        index, alias = socket.if_nametoindex(lease.tap), tap_alias(task, lease.nic)
        link = nl.number(nl.IFLA_MASTER, socket.if_nametoindex(lease.bridge)) + nl.number(nl.IFLA_MTU, mtu)
        link += nl.attribute(nl.IFLA_IFALIAS, alias.encode()) + nl.attribute(nl.IFLA_ADDRESS, _high_mac(lease.mac))
        requests = [(nl.SETLINK, 0, nl.ifinfo(index, link, up=not network.join)), *_port(index, lease, network)]
        if network.join:  # set up last: before, a port has the bridge's VLAN, learns and is flooded
            requests[1:1] = _port_vlan(index, network.join.vlan)
            requests.append((nl.SETLINK, 0, nl.ifinfo(index, up=True)))
        route.execute(requests)


def has_tap(route: nl.NetlinkSocket, task: TaskName, lease: Lease, network: Network) -> bool:
    """Return whether a link is up and a port of its bridge as `make` makes it, and the macvlan of its tap."""
    index, master = nl.link_index(lease.tap), nl.link_index(lease.bridge)
    if not (index and master):
        return False
    try:
        [(_, link)] = route.request(nl.GETLINK, nl.NLM_ACK, nl.ifinfo(index))
        flags, found = nl.IFINFOMSG.unpack_from(link)[3], nl.link_attributes(link)
        settings = nl.attributes(nl.attributes(found.get(nl.IFLA_LINKINFO, b"")).get(_SLAVE_DATA, b""))
        if not (
            flags & nl.IFF_UP
            and nl.integer(found, nl.IFLA_MASTER) == master  # else the kernel refuses to look for the entry
            and found.get(nl.IFLA_ADDRESS) == _high_mac(lease.mac)
            and all(settings.get(key, value) == value for key, value in _settings(network).items())
        ):
            return False
        vlan = network.join.vlan if network.join else 0
        wanted = nl.NDMSG.pack(_AF_BRIDGE, index, 0, _NTF_MASTER, 0) + _mac_in(lease.mac, vlan)
        [(_, entry)] = route.request(nl.GETNEIGH, nl.NLM_ACK, wanted)
        _, at, state, flags, _ = nl.NDMSG.unpack_from(entry)
        is_entry = at == index and bool(state & _NUD_NOARP) and bool(flags & _NTF_STICKY) == bool(network.join)
        return is_entry and _is_whole(route, task, lease, found)
    except OSError as error:
        if error.errno in (errno.ENODEV, errno.ENOENT):  # deleted meanwhile, or without its FDB entry
            return False
        raise


def states(route: nl.NetlinkSocket) -> Mapping[str, object]:
    """Return for each macvlan with a carrier a value that is the same while nothing changes that `has_tap` reads.

    Two dumps, whatever their number. A tap that is down, or is no more, takes the carrier along.
    """
    wanted = nl.ifinfo(0, nl.nested(nl.IFLA_LINKINFO, nl.MACVLAN), nl.number(_IFLA_EXT_MASK, _SKIP_STATS))
    found: dict[int, tuple[bytes, set[tuple[object, ...]]]] = {}
    for _, link in route.request(nl.GETLINK, nl.NLM_DUMP, wanted):
        _, _, index, flags, _ = nl.IFINFOMSG.unpack_from(link)
        if flags & nl.IFF_LOWER_UP:
            found[index] = link, set()
    for _, entry in route.request(nl.GETNEIGH, nl.NLM_DUMP, nl.NDMSG.pack(_AF_BRIDGE, 0, 0, 0, 0)):
        _, index, state, flags, _ = nl.NDMSG.unpack_from(entry)
        if flags & _NTF_MASTER and index in found:
            values = nl.attributes(entry[nl.NDMSG.size :])  # with the time of the last use, which is left out
            found[index][1].add((state, flags, values.get(nl.NDA_LLADDR), values.get(_NDA_VLAN)))
    return {nl.link_name(link): (link, entries) for link, entries in found.values()}


def link_of_mac(route: nl.NetlinkSocket, bridge: int, mac: str, vlan: int) -> int:
    """Return the index of the link at which a bridge has a MAC address in a VLAN; 0: it has it nowhere."""
    wanted = nl.NDMSG.pack(_AF_BRIDGE, 0, 0, 0, 0) + _mac_in(mac, vlan) + nl.number(_NDA_MASTER, bridge)
    try:
        [(_, entry)] = route.request(nl.GETNEIGH, nl.NLM_ACK, wanted)
    except FileNotFoundError:
        return 0
    return int(nl.NDMSG.unpack_from(entry)[1])


def _mac_in(mac: str, vlan: int = 0) -> bytes:
    own = nl.attribute(_NDA_VLAN, vlan.to_bytes(2, sys.byteorder)) if vlan else b""
    return nl.attribute(nl.NDA_LLADDR, octets(mac)) + own


def _high_mac(mac: str) -> bytes:
    """Return the MAC of a tap's macvlan, as libvirt has it for taps.

    A joined bridge without a MAC of its own takes the lowest of its ports. It differs from the guest's, whose frames
    the bridge would otherwise take for the host's.
    """
    first, *others = octets(mac)
    return bytes([0xEE if first == 0xFE else 0xFE, *others])


def _port_vlan(tap: int, vlan: int) -> Sequence[nl.Request]:
    """Return the requests that make a VLAN the only one of a port; none for 0."""
    if not vlan:
        return ()
    ours = nl.attribute(_VLAN_INFO, _VLAN.pack(_PVID | _UNTAGGED, vlan))
    others = b"".join(
        nl.attribute(_VLAN_INFO, _VLAN.pack(_RANGE_BEGIN, span[0]))
        + nl.attribute(_VLAN_INFO, _VLAN.pack(_RANGE_END, span[-1]))
        for span in (_VLANS[: vlan - 1], _VLANS[vlan:])
        if span  # none below VLAN 1, or above 4094
    )
    both = ((nl.SETLINK, ours), (nl.DELLINK, others))
    return [(kind, 0, nl.ifinfo(tap, nl.nested(_IFLA_AF_SPEC, vlans), family=_AF_BRIDGE)) for kind, vlans in both]


def _settings(network: Network) -> Mapping[int, bytes]:
    return {
        _HAIRPIN: bytes([not network.join]),
        _LEARNING: b"\x00",
        _UNICAST_FLOOD: b"\x00",
        _ISOLATED: bytes([network.policy.isolated]),  # from each other; needs neither a rule nor br_netfilter
        _GROUP_FWD_MASK: _ALL_GROUPS.to_bytes(2, sys.byteorder),
        _MULTICAST_ROUTER: b"\x00",  # whatever PIM and router advertisements (RFC 4286) it sends
        _MCAST_MAX_GROUPS: _GROUPS_MAX.to_bytes(4, sys.byteorder),
    }


def _port(index: int, lease: Lease, network: Network) -> Sequence[nl.Request]:
    """Return the requests that set hairpin mode (see nft_rules), isolation, forwarded groups and the static FDB entry.

    The MAC is the only entry of the port, and none is learned. Frames for any other MAC do not reach this guest,
    and its own frames for an unknown MAC are not flooded to other ports of this kind.
    """
    settings = nl.nested(_SLAVE_DATA, *(nl.attribute(key, value) for key, value in _settings(network).items()))
    # Of a link that is a port already: so not in the message that makes it one.
    link = nl.nested(nl.IFLA_LINKINFO, nl.attribute(_SLAVE_KIND, b"bridge\0"), settings)
    # Other ports of a joined bridge learn: without NTF_STICKY, one frame there with this MAC would move the entry.
    flags = _NTF_MASTER | _NTF_STICKY if network.join else _NTF_MASTER
    entry = nl.NDMSG.pack(_AF_BRIDGE, index, _NUD_NOARP, flags, 0) + _mac_in(lease.mac)
    return (nl.NEWLINK, 0, nl.ifinfo(index, link)), (nl.NEWNEIGH, nl.NLM_CREATE | nl.NLM_REPLACE, entry)
