"""Bridges and links of this network namespace, by rtnetlink messages; taps through `taps`."""

import errno
import os
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager

from solo5_systemd.base.errors import HostError, TakenError, host_errors
from solo5_systemd.base.names import TaskName, task_namespace
from solo5_systemd.network import netlink as nl
from solo5_systemd.network import taps
from solo5_systemd.network.derived_addresses import bridge_mac, octets
from solo5_systemd.network.ipam import TAP_PREFIX, segment_link
from solo5_systemd.network.joined import TAP_MTU_MAX, Link
from solo5_systemd.network.model import Lease, Network
from solo5_systemd.network.modules import BRIDGE, VETH, needing
from solo5_systemd.network.neighbours import Neighbours
from solo5_systemd.network.routes import Routes
from solo5_systemd.network.sysctls import read_sysctl, set_if_present, set_up_bridge6
from solo5_systemd.network.tap_counters import tap_alias
from solo5_systemd.network.taps import TaskTap
from solo5_systemd.settings.addresses import IpNetwork

# linux/if_link.h, veth.h
_FORWARD_DELAY, _STP_STATE, _VLAN_FILTERING, _MCAST_SNOOPING, _DEFAULT_PVID, _VETH_PEER = 1, 5, 7, 23, 39, 1
_BRIDGE_SETTINGS = (
    nl.number(_STP_STATE, 0)
    + nl.number(_FORWARD_DELAY, 0)  # a new port forwards at once
    + nl.attribute(_MCAST_SNOOPING, b"\0")  # with it, the bridge sends MLD and IGMP queries
)


class Links:
    """The bridges and taps of the network service. Not thread-safe.

    Attributes:
        routes: the routes and addresses of the namespace.
    """

    def __init__(self, owner: Callable[[TaskName], int]) -> None:
        """Open netlink sockets.

        Args:
            owner: returns the user id that may attach to the taps of a task.
        """
        self.routes = Routes()
        self._socket = nl.NetlinkSocket(nl.NETLINK_ROUTE)
        self.neighbours = Neighbours()
        self._owner = owner

    def close(self) -> None:
        """Close the netlink sockets."""
        self.routes.close()
        self._socket.close()
        self.neighbours.close()

    def link(self, name: str) -> Link | None:
        """Return a link; None where no link has this name.

        Raises:
            HostError: the kernel refused.
        """
        try:
            [(_, message)] = self._socket.request(nl.GETLINK, nl.NLM_ACK, nl.ifinfo(0, nl.named(name)))
        except OSError as error:
            if error.errno == errno.ENODEV:
                return None
            raise HostError(f"the kernel refused to show link {name}: {error.strerror}.") from error
        return _link_of(message)

    def has_bridge(self, network: Network, segment: str = "") -> bool:
        """Return whether the network's first bridge or a segment of it exists, with the MAC of `bridge_mac`."""
        link = self.link(segment or network.bridge)
        return link is not None and link.kind == "bridge" and link.mac == bridge_mac(network.name, segment)

    def is_whole(self, network: Network) -> bool:
        """Return whether the network's first bridge is up, and has its addresses, sysctl and, if shared, route."""
        bridge = network.bridge
        link = self.link(bridge)
        if link is None or not (link.up and self.has_bridge(network)):
            return False
        if network.ipv4 is not None and (
            network.gateway4 not in self.routes.addresses(link=bridge)
            or read_sysctl(f"ipv4/conf/{bridge}/route_localnet") != "1"
        ):
            return False
        return network.ipv6 is None or (
            network.gateway6 in self.routes.addresses((6,), bridge)
            and (not network.shared or self.routes.has_loopback6(bridge))
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
        with _changing(f"bridge {network.bridge}"):
            self._make_bridge(network)
            # Guests must not learn the host's other addresses; those of a network with IPv6 only, none (8).
            set_if_present(f"ipv4/conf/{network.bridge}/arp_ignore", "1" if network.ipv4 else "8")
            if network.ipv4 is not None:
                set_if_present(f"ipv4/conf/{network.bridge}/route_localnet", "1")  # for ports published at 127.0.0.1
            if network.ipv6 is not None:
                set_up_bridge6(network.bridge)
            bridge = socket.if_nametoindex(network.bridge)
            for gateway, inside in ((network.gateway4, network.ipv4), (network.gateway6, network.ipv6)):
                if gateway is not None and inside is not None:
                    self.routes.add_address(bridge, gateway, inside)
            self._set(bridge, up=True)
            if network.shared and network.ipv6 is not None:
                self.routes.add_loopback6(bridge)  # a link that is down has no route

    def make_segment(self, network: Network, segment: str) -> None:
        """Create a segment and the veth pair that joins it to the network's first bridge, or repair them; idempotent.

        The segment has no address: for guests and host it is a part of the first bridge. In an isolated network the
        first bridge's port is isolated like a tap; the segment's end is not, since frames for the host pass it.

        Raises:
            TakenError: another program's link has the segment's name.
            HostError: the kernel refused.
        """
        with _changing(f"bridge {segment}"):
            self._make_bridge(network, segment)
            # No reply: the first bridge has the gateway's address.
            set_if_present(f"ipv4/conf/{segment}/arp_ignore", "8")
            down, up = segment_link(segment)
            if not (nl.link_index(down) and nl.link_index(up)):
                mtu = nl.number(nl.IFLA_MTU, network.mtu)
                peer = nl.attribute(_VETH_PEER, nl.ifinfo(0, nl.named(up), mtu))
                with needing(VETH, f"link {down}"):
                    self._socket.execute([nl.new_link("veth", peer, nl.named(down), mtu)])
            for end, bridge in ((down, network.bridge), (up, segment)):
                set_if_present(f"ipv6/conf/{end}/disable_ipv6", "1")
                master = nl.number(nl.IFLA_MASTER, socket.if_nametoindex(bridge))
                self._set(socket.if_nametoindex(end), master, up=True)
            # Hairpin mode as for taps. The segment learns no MAC from its link: its taps have theirs, and whatever else
            # has another MAC is behind that link.
            hairpin = {taps.HAIRPIN: b"\1", taps.ISOLATED: bytes([network.policy.isolated])}
            ports = ((down, hairpin), (up, {taps.LEARNING: b"\0"}))
            self._socket.execute([taps.port_settings(socket.if_nametoindex(end), each) for end, each in ports])
            self._set(socket.if_nametoindex(segment), up=True)

    def ports(self, bridge: str) -> frozenset[str]:
        """Return the names of all ports of a bridge; raises as `link`."""
        with _changing(f"bridge {bridge}"):
            wanted = nl.ifinfo(0, nl.number(nl.IFLA_MASTER, nl.link_index(bridge)))
            return frozenset(nl.link_name(body) for _, body in self._socket.request(nl.GETLINK, nl.NLM_DUMP, wanted))

    def known_macs(self, bridge: str, macs: Iterable[str], vlans: Collection[int]) -> frozenset[str]:
        """Return those of some MAC addresses that a bridge has in some VLANs, and not as a guest's; raises as `link`.

        These are its own, and those of machines behind its ports. Each is looked up: machines of the LAN can fill the
        forwarding database, and the kernel's time for a list of it grows with the square of its length.
        """
        with _changing(f"bridge {bridge}"):
            index = nl.link_index(bridge)
            return frozenset(
                mac for mac in macs for vlan in vlans if _is_of_others(taps.link_of_mac(self._socket, index, mac, vlan))
            )

    def make_tap(self, task: TaskName, lease: Lease, network: Network) -> None:
        """Create a NIC's tap in the task's namespace and its macvlan, or repair them; idempotent.

        Raises:
            HostError: the kernel refused, or the task's namespace does not exist.
        """
        with _changing(f"tap {lease.tap}"):
            # Another MTU than its own could change that of a joined bridge: it is the lowest of the ports.
            bridge = self.link(lease.bridge) if network.join else None
            mtu = min(TAP_MTU_MAX, bridge.mtu) if bridge else lease.mtu
            alias = tap_alias(task, lease.nic)
            taps.make(self._socket, _tap(task, lease, network), uid=self._owner(task), mtu=mtu, alias=alias)
            # An earlier guest may have had such an address, with another MAC: the kernel would send to that one for
            # some eight seconds (5 s of NUD_DELAY, then three probes), unless the new guest asks for one meanwhile.
            self.neighbours.forget(network.bridge, lease.addresses)

    def route_behind(self, lease: Lease, network: Network, routes: Iterable[IpNetwork]) -> bool:
        """Route the ranges behind a guest to it; idempotent. Return whether a route was missing, and is added.

        A route of another program for the same range stays. Raises as `make_tap`.
        """
        with _changing(f"bridge {network.bridge}"):
            bridge = nl.link_index(network.bridge)
            added = [self.routes.add(each, lease.address_of(each.version), bridge) for each in routes]
        return any(added)

    def delete_routes(self, lease: Lease, network: Network, routes: Iterable[IpNetwork]) -> None:
        """Delete the routes to the ranges behind a guest; idempotent. Raises as `make_tap`."""
        with _changing(f"bridge {network.bridge}"):
            for each in routes:
                self.routes.delete(each, lease.address_of(each.version), nl.link_index(network.bridge))

    def has_tap(self, task: TaskName, lease: Lease, network: Network) -> bool:
        """Return whether tap and macvlan are as `make_tap` makes them; True where the task's namespace does not exist.

        Raises:
            HostError: the kernel refused to show them.
        """
        with _changing(f"tap {lease.tap}"):
            return taps.has_tap(self._socket, _tap(task, lease, network))

    def tap_states(self) -> Mapping[str, object]:
        """Return as `taps.states`; raises as `has_tap`."""
        with _changing("taps"):
            return taps.states(self._socket)

    def taps(self) -> frozenset[str]:
        """Return the names of the macvlans of all taps, which have the prefix `s5-`."""
        names = (name for _, name in socket.if_nameindex() if name.startswith(TAP_PREFIX))
        return frozenset(name for name in names if (link := self.link(name)) and link.kind in ("tun", "macvlan"))

    def _is_port(self, name: str, bridge: str) -> bool:
        link = self.link(name)
        return link is not None and link.up and link.master == nl.link_index(bridge)

    def _make_bridge(self, network: Network, segment: str = "") -> None:
        """Create the network's first bridge or a segment, without ports, unless it exists."""
        name = segment or network.bridge
        if not nl.link_index(name):
            mac = nl.attribute(nl.IFLA_ADDRESS, octets(bridge_mac(network.name, segment)))
            mtu = nl.number(nl.IFLA_MTU, network.mtu)
            with needing(BRIDGE, f"bridge {name}"):
                self._socket.execute([nl.new_link("bridge", _BRIDGE_SETTINGS, nl.named(name), mac, mtu)])
        elif not self.has_bridge(network, segment):
            raise TakenError(
                f"link {name} exists and is not a bridge of solo5-networkd: expected a free name.",
                f"Set another one as network.{network.name}.bridge below /etc/solo5.",
            )
        if segment or network.ipv6 is None:
            set_if_present(f"ipv6/conf/{name}/disable_ipv6", "1")

    def _set(self, link: int, *values: bytes, up: bool) -> None:
        self._socket.execute([(nl.SETLINK, 0, nl.ifinfo(link, *values, up=up))])


def delete_links(names: Iterable[str]) -> None:
    """Delete these links, as far as they exist, by one request.

    Raises:
        HostError: the kernel refused.
    """
    indexes = {name: index for name in names if (index := nl.link_index(name))}
    if indexes:
        with _changing(f"links {', '.join(indexes)}"):
            taps.delete(indexes.values())


def _is_of_others(link: int) -> bool:
    """Return whether a link, by its index, is there and no guest's tap. A bridge forgets the MACs of a port with it."""
    try:
        return bool(link) and not socket.if_indextoname(link).startswith(TAP_PREFIX)
    except OSError:
        return False


def _tap(task: TaskName, lease: Lease, network: Network) -> TaskTap:
    join = network.join
    return TaskTap(
        name=lease.tap,
        mac=lease.mac,
        namespace=task_namespace(task),
        bridge=lease.bridge,
        isolated=network.policy.isolated,
        joined=join is not None,
        vlan=join.vlan if join is not None else 0,
    )


def _link_of(message: bytes) -> Link:
    found = nl.link_attributes(message)
    info = nl.attributes(found.get(nl.IFLA_LINKINFO, b""))
    kind = os.fsdecode(info.get(nl.INFO_KIND, b"").rstrip(b"\0"))
    data = nl.attributes(info.get(nl.INFO_DATA, b"")) if kind == "bridge" else {}
    return Link(
        kind=kind,
        up=bool(nl.IFINFOMSG.unpack_from(message)[3] & nl.IFF_UP),
        mtu=nl.integer(found, nl.IFLA_MTU),
        mac=found.get(nl.IFLA_ADDRESS, b"").hex(":"),
        master=nl.integer(found, nl.IFLA_MASTER),
        vlan_filtering=nl.integer(data, _VLAN_FILTERING) != 0,
        default_pvid=nl.integer(data, _DEFAULT_PVID),
    )


def _changing(what: str) -> AbstractContextManager[None]:
    return host_errors(f"the kernel refused to change {what}")
