"""Links, addresses and routes of this network namespace, through pyroute2; taps through `taps`."""

import contextlib
import errno
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from solo5_systemd.base.errors import HostError, TakenError
from solo5_systemd.base.names import TaskName
from solo5_systemd.network import netlink as nl
from solo5_systemd.network import taps
from solo5_systemd.network.derived_addresses import bridge_mac, octets
from solo5_systemd.network.ipam import segment_link
from solo5_systemd.network.joined import TAP_MTU_MAX, Link
from solo5_systemd.network.model import IpAddress, Lease
from solo5_systemd.network.modules import BRIDGE, VETH, needing
from solo5_systemd.network.neighbours import Neighbours
from solo5_systemd.network.routes import LOCAL_TABLE, LOOPBACK6, MAIN_TABLE, Routes
from solo5_systemd.network.sysctls import read_sysctl, write_sysctl
from solo5_systemd.network.tap_counters import TAP_PREFIX
from solo5_systemd.settings.addresses import IpNetwork
from solo5_systemd.settings.network_policy import Network

_IFA_F_NODAD = 2  # linux/if_addr.h
_IFLA_GROUP = 27  # linux/if_link.h
_DELETION_GROUP = 0x5305DEAD  # a link group for deletions, which no other program uses
_OF_ROUTER6 = {"accept_ra": "0", "autoconf": "0", "accept_dad": "0", "forwarding": "1", "disable_ipv6": "0"}
"""Sysctls of a bridge that is to have the address of an IPv6 router, at once and without router advertisements."""


class Links:
    """The bridges and taps of the network service. Not thread-safe. Methods raise HostError if the kernel refuses."""

    def __init__(self, owner: Callable[[TaskName], int]) -> None:
        """Open netlink sockets; `owner` returns the user id that may attach to the taps of a task."""
        self.routes = Routes()
        self.neighbours = Neighbours()
        self._owner = owner

    def close(self) -> None:
        """Close the netlink sockets."""
        self.rest()
        self.routes.close()
        self.neighbours.close()

    @cached_property
    def _route(self) -> IPRoute:
        """A socket of pyroute2 in the thread's network namespace, with a pipe, opened in a millisecond."""
        return IPRoute()

    def rest(self) -> None:
        """Close it until it is used again: its three descriptors are some that select(2) of libnftables could have."""
        if (opened := vars(self).pop("_route", None)) is not None:
            opened.close()

    def link(self, name: str) -> Link | None:
        """Return a link; None where no link has this name."""
        with kernel_errors(f"link {name}"), _ignoring(errno.ENODEV):  # deleted after if_nametoindex(3)
            if index := nl.link_index(name):
                return _link_of(self._route.get_links(index)[0])
        return None

    def has_bridge(self, network: Network, segment: str = "") -> bool:
        """Return whether the network's first bridge or a segment of it exists, with the MAC of `bridge_mac`."""
        name, mac = segment or network.bridge, octets(bridge_mac(network.name, segment))
        with kernel_errors(f"link {name}"):
            try:
                [(_, link)] = self.routes.request(nl.GETLINK, nl.NLM_ACK, nl.ifinfo(0, nl.named(name)))
            except OSError as error:
                if error.errno != errno.ENODEV:
                    raise
                return False
        found = nl.link_attributes(link)
        kind = nl.attributes(found.get(nl.IFLA_LINKINFO, b"")).get(nl.INFO_KIND)
        return kind == b"bridge\0" and found.get(nl.IFLA_ADDRESS) == mac

    def check_name(self, network: Network, segment: str = "") -> None:
        """Check that no other link has the name of a bridge; raises TakenError."""
        name = segment or network.bridge
        if nl.link_index(name) and not self.has_bridge(network, segment):
            raise TakenError(
                f"link {name} exists and is not a bridge of solo5-networkd: expected a free name.",
                f"Set another one as network.{network.name}.bridge below /etc/solo5.",
            )

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
        ends = zip(map(self.link, segment_link(segment)), (network.bridge, segment), strict=True)
        return self.has_bridge(network, segment) and all(
            link is not None and link.up and link.master == nl.link_index(bridge) for link, bridge in ends
        )

    def make_bridge(self, network: Network) -> None:
        """Create the network's bridge, or repair it; idempotent. Raises TakenError if its name is another link's."""
        with kernel_errors(f"bridge {network.bridge}"):
            self._make_bridge(network)
            # Guests must not learn the host's other addresses; those of a network with IPv6 only, none (8).
            write_sysctl(f"ipv4/conf/{network.bridge}/arp_ignore", "1" if network.ipv4 else "8")
            bridge = nl.link_index(network.bridge)
            if network.ipv4 is not None:
                write_sysctl(f"ipv4/conf/{network.bridge}/route_localnet", "1")  # for ports published at 127.0.0.1
                broadcast = str(network.ipv4.broadcast_address)
                self._add_gateway(bridge, network.gateway4, network.ipv4, broadcast=broadcast)
            if network.ipv6 is not None:
                for name, value in _OF_ROUTER6.items():
                    write_sysctl(f"ipv6/conf/{network.bridge}/{name}", value)
                # Usable at once: without duplicate address detection.
                self._add_gateway(bridge, network.gateway6, network.ipv6, family=socket.AF_INET6, flags=_IFA_F_NODAD)
            self._route.link("set", index=bridge, state="up")
            if network.shared and network.ipv6 is not None:
                with _ignoring(errno.EEXIST):
                    self._route.route("add", **_loopback_route(bridge))  # a link that is down has no route

    def _add_gateway(self, bridge: int, address: IpAddress | None, inside: IpNetwork, **more: object) -> None:
        with _ignoring(errno.EEXIST):
            self._route.addr("add", index=bridge, address=str(address), prefixlen=inside.prefixlen, **more)

    def make_segment(self, network: Network, segment: str) -> None:
        """Create a segment and the veth pair that joins it to the network's first bridge, or repair them; idempotent.

        The segment has no address: for guests and host it is a part of the first bridge. In an isolated network the
        first bridge's port is isolated like a tap; the segment's end is not, since frames for the host pass it.
        Raises as `make_bridge`.
        """
        with kernel_errors(f"bridge {segment}"):
            self._make_bridge(network, segment)
            # No reply: the first bridge has the gateway's address.
            write_sysctl(f"ipv4/conf/{segment}/arp_ignore", "8")
            down, up = segment_link(segment)
            if not (nl.link_index(down) and nl.link_index(up)):
                with needing(VETH, f"link {down}"):
                    self._route.link("add", ifname=down, kind="veth", mtu=network.mtu, peer={"ifname": up})
                self._route.link("set", index=nl.link_index(up), mtu=network.mtu)
            for end, bridge in ((down, network.bridge), (up, segment)):
                write_sysctl(f"ipv6/conf/{end}/disable_ipv6", "1")
                self._route.link("set", index=nl.link_index(end), master=nl.link_index(bridge), state="up")
            # Hairpin mode as for taps. The segment learns no MAC from its link: its taps have theirs, and whatever else
            # has another MAC is behind that link.
            self._route.brport("set", index=nl.link_index(down), mode=1, isolated=int(network.policy.isolated))
            self._route.brport("set", index=nl.link_index(up), learning=0)
            self._route.link("set", index=nl.link_index(segment), state="up")

    def has_mac(self, bridge: str, mac: str, vlans: Iterable[int]) -> bool:
        """Return whether a bridge has a MAC address in some VLANs, and not as a guest's.

        It is its own, or that of a machine behind its ports. It is looked up: machines of the LAN can fill the
        forwarding database, and the kernel's time for a list of it grows with the square of its length.
        """
        with kernel_errors(f"bridge {bridge}"):
            index = nl.link_index(bridge)
            for vlan in vlans:
                link = taps.link_of_mac(self.routes, index, mac, vlan)
                with contextlib.suppress(OSError):  # of no such link: a bridge forgets the MACs of a port with it
                    if not socket.if_indextoname(link).startswith(TAP_PREFIX):
                        return True
        return False

    def make_tap(self, task: TaskName, lease: Lease, network: Network) -> None:
        """Create a NIC's tap in the task's namespace (which exists), and its macvlan, or repair them; idempotent.

        Raises TakenError where another link has the name of its bridge.
        """
        with kernel_errors(f"tap {lease.tap}"):
            # Another MTU than its own could change that of a joined bridge: it is the lowest of the ports.
            bridge = self.link(lease.bridge) if network.join else None
            if not network.join:  # else the guest would be on a bridge of another program
                self.check_name(network, "" if lease.bridge == network.bridge else lease.bridge)
            mtu = min(TAP_MTU_MAX, bridge.mtu) if bridge else lease.mtu
            taps.make(self.routes, task, lease, network, uid=self._owner(task), mtu=mtu)
            # An earlier guest may have had such an address, with another MAC: the kernel would send to that one for
            # some eight seconds (5 s of NUD_DELAY, then three probes), unless the new guest asks for one meanwhile.
            self.neighbours.forget(network.bridge, lease.addresses)

    def route_behind(self, lease: Lease, network: Network, routes: Iterable[IpNetwork]) -> bool:
        """Route the ranges behind a guest to it; idempotent. Return whether a route was missing, and is added.

        A route of another program for the same range stays.
        """
        added = False
        with kernel_errors(f"bridge {network.bridge}"):
            for route in routes:
                with _ignoring(errno.EEXIST):
                    self._route.route("add", **_behind(lease, network, route))
                    added = True
        return added

    def delete_routes(self, lease: Lease, network: Network, routes: Iterable[IpNetwork]) -> None:
        """Delete the routes to the ranges behind a guest; idempotent."""
        with kernel_errors(f"bridge {network.bridge}"):
            for route in routes:
                with _ignoring(errno.ESRCH):
                    self._route.route("del", **_behind(lease, network, route))

    def has_tap(self, task: TaskName, lease: Lease, network: Network) -> bool:
        """Return whether tap and macvlan are as `make_tap` makes them; True: the task's namespace does not exist."""
        with kernel_errors(f"tap {lease.tap}"):
            return taps.has_tap(self.routes, task, lease, network)

    def tap_states(self) -> Mapping[str, object]:
        """Return as `taps.states`."""
        with kernel_errors("taps"):
            return taps.states(self.routes)

    def taps(self) -> frozenset[str]:
        """Return the names of the macvlans of all taps, which have the prefix `s5-`."""
        found = set()
        with kernel_errors("taps"):
            for _, link in self.routes.request(nl.GETLINK, nl.NLM_DUMP, nl.ifinfo(0)):
                kind = nl.attributes(nl.link_attributes(link).get(nl.IFLA_LINKINFO, b"")).get(nl.INFO_KIND)
                if kind in (b"tun\0", b"macvlan\0"):
                    found.add(nl.link_name(link))
        return frozenset(name for name in found if name.startswith(TAP_PREFIX))

    def _make_bridge(self, network: Network, segment: str = "") -> None:
        """Create the network's first bridge or a segment, without ports, unless it exists."""
        name = segment or network.bridge
        self.check_name(network, segment)
        if not nl.link_index(name):
            with needing(BRIDGE, f"bridge {name}"):
                self._route.link(
                    "add",
                    ifname=name,
                    kind="bridge",
                    address=bridge_mac(network.name, segment),
                    mtu=network.mtu,
                    br_stp_state=0,
                    br_forward_delay=0,  # a new port forwards at once
                    br_mcast_snooping=0,  # with it, the bridge sends MLD and IGMP queries
                )
        if segment or network.ipv6 is None:
            write_sysctl(f"ipv6/conf/{name}/disable_ipv6", "1")


def delete_links(names: Iterable[str]) -> None:
    """Delete these links, as far as they exist.

    The kernel waits for a grace period, 16 to 32 ms, under the rtnl lock: so the links are put into one group and
    deleted by one request. Raises HostError if the kernel refuses.
    """
    indexes = {name: index for name in names if (index := nl.link_index(name))}
    if not indexes:
        return
    group = nl.number(_IFLA_GROUP, _DELETION_GROUP)
    requests = [(nl.SETLINK, 0, nl.ifinfo(index, group)) for index in indexes.values()]
    requests.append((nl.DELLINK, 0, nl.ifinfo(0, group)))
    with kernel_errors(f"links {', '.join(indexes)}"), contextlib.closing(nl.NetlinkSocket()) as route, taps.RTNL:
        route.execute(requests, but=errno.ENODEV)  # another program has deleted the link


def _link_of(message: Any) -> Link:
    info = message.get_attr("IFLA_LINKINFO")
    kind = info.get_attr("IFLA_INFO_KIND") if info else ""
    data = info.get_attr("IFLA_INFO_DATA") if kind == "bridge" else None
    return Link(
        kind=kind,
        up=bool(message["flags"] & nl.IFF_UP),
        mtu=message.get_attr("IFLA_MTU"),
        mac=message.get_attr("IFLA_ADDRESS") or "",
        master=message.get_attr("IFLA_MASTER") or 0,
        vlan_filtering=bool(data and data.get_attr("IFLA_BR_VLAN_FILTERING")),
        default_pvid=(data and data.get_attr("IFLA_BR_VLAN_DEFAULT_PVID")) or 0,
    )


def _behind(lease: Lease, network: Network, route: IpNetwork) -> dict[str, Any]:
    """Return a route, for pyroute2, to a range behind a guest."""
    gateway, oif = str(lease.address_of(route.version)), nl.link_index(network.bridge)
    family = nl.FAMILIES[route.version]
    return {"family": family, "dst": str(route), "gateway": gateway, "oif": oif, "table": MAIN_TABLE}


def _loopback_route(bridge: int) -> dict[str, Any]:
    """Return a route, for pyroute2: what comes from the bridge for ::1 is delivered.

    In IPv6 it stands for `route_localnet`, and applies to packets that were translated to ::1: a packet that arrives
    with ::1 in its header is dropped before (ip6_rcv_core of net/ipv6/ip6_input.c). The kernel's own route to ::1 is of
    link lo alone.
    """
    route = {"dst": str(LOOPBACK6), "oif": bridge, "type": "local", "table": LOCAL_TABLE}
    return {"family": socket.AF_INET6, **route}


@contextlib.contextmanager
def _ignoring(code: int) -> Iterator[None]:
    try:
        yield
    except NetlinkError as error:
        if error.code != code:
            raise


@contextlib.contextmanager
def kernel_errors(link: str) -> Iterator[None]:
    """Turn errors of netlink and sysctls into a HostError that names the link."""
    try:
        yield
    except (NetlinkError, OSError) as error:
        reason = error.args[1] if len(error.args) > 1 else error
        raise HostError(f"the kernel refused to change {link}: {reason}.") from error
