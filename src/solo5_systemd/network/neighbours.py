"""The host's neighbour tables: MAC addresses of guests, the announced look-ups, and how many entries there may be.

A packet for an address without an entry waits in the kernel, which asks for the address: first user space, where
`app_solicit` is set on the link (neigh_app_ns of net/core/neighbour.c), then the link.
"""

import logging
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from solo5_systemd.base.errors import HostError
from solo5_systemd.network import netlink as nl
from solo5_systemd.network.derived_addresses import ASKER, link_local, octets
from solo5_systemd.network.model import IpAddress, Lease
from solo5_systemd.network.sysctls import read_sysctl, write_sysctl

# linux/rtnetlink.h, neighbour.h, if_link.h
_NUD_INCOMPLETE, _NUD_REACHABLE, _NUD_PERMANENT = 0x01, 0x02, 0x80
_IFLA_OPERSTATE, _OPERSTATE_UP = 16, 6

_SYSCTLS_OF_LOOKUPS = (
    ("ipv4/neigh/{}/app_solicit", "1"),
    ("ipv6/neigh/{}/app_solicit", "1"),
    ("ipv4/conf/{}/arp_evict_nocarrier", "0"),
    ("ipv6/conf/{}/ndisc_evict_nocarrier", "0"),
    # A guest announces its address before its stack takes packets (MirageOS), and the kernel would send what it holds.
    ("ipv4/conf/{}/drop_gratuitous_arp", "1"),
    ("ipv6/conf/{}/drop_unsolicited_na", "1"),
)

_ETHERNET, _IPV4, _ARP, _IPV6 = 1, 0x0800, 0x0806, 0x86DD
_ARP_PACKET = struct.Struct("!HHBBH6s4s6s4s")
_REQUEST = 1
_NONE = bytes(6)
# Of no machine (RFC 7600): a guest may learn this sender, but not the gateway with the MAC address of `ASKER`, which it
# would send to. Without one (0.0.0.0), the question would be a probe, for the guest a conflict (RFC 5227, 2.1.1).
_DUMMY = bytes([192, 0, 0, 8])
_IPV6_HEAD = struct.Struct("!IHBB")  # version, length, next header, hop limit
_ICMPV6, _SOLICIT, _SOURCE = 58, 135, b"\1\1"


_LIMITS = {
    family: tuple(f"{family}/neigh/default/gc_thresh{number}" for number in (1, 2, 3)) for family in ("ipv4", "ipv6")
}
_BEYOND_GUESTS = 512
"""Entries for neighbours that are no guests: half of the kernel's default limit."""

_log = logging.getLogger(__name__)


class Neighbours(nl.NetlinkSocket):
    """An rtnetlink socket for the entries of guests on a bridge. Not thread-safe.

    Methods raise OSError if the kernel refuses, or the bridge does not exist.
    """

    _asking: socket.socket | None = None
    """For questions; kept, since the kernel takes 10 ms to close a packet socket."""

    def close(self) -> None:
        """Close both sockets."""
        if self._asking is not None:
            self._asking.close()
        super().close()

    def hold(self, bridge: str, lease: Lease) -> bool:
        """Have the kernel hold packets for a guest, and announce the first; return whether it holds one already.

        It announces each look-up on the bridge (`LookupWatch`), before it asks the link. What it holds meanwhile is
        not dropped when the link has no carrier: a bridge without a guest that runs.
        """
        announce_lookups(bridge)
        return self.forget(bridge, _addresses(lease))

    def forget(self, bridge: str, addresses: Iterable[IpAddress]) -> bool:
        """Delete the entries of addresses, as far as there are any; an operator's own (permanent) entries stay.

        One for which the kernel looks, and holds packets, stays, too. Return whether there is one of these.
        """
        looked_for = False
        for entry, state in self._found(bridge, addresses):
            looked_for |= state == _NUD_INCOMPLETE
            if state not in (_NUD_INCOMPLETE, _NUD_PERMANENT):
                self.execute([(nl.DELNEIGH, 0, entry)])
        return looked_for

    def keep(self, bridge: str, lease: Lease) -> None:
        """Have the kernel hold packets for a guest until `deliver` or `refuse`, instead of for four seconds."""
        # An update to this state stops the timer of the entry (__neigh_update of net/core/neighbour.c).
        for entry, state in self._found(bridge, _addresses(lease)):
            if state == _NUD_INCOMPLETE:
                self.execute([(nl.NEWNEIGH, nl.NLM_REPLACE, _in_state(entry, state))])

    def refuse(self, bridge: str, lease: Lease) -> None:
        """Drop the packets that the kernel holds for a guest: their senders learn that it is unreachable."""
        for entry, state in self._found(bridge, _addresses(lease)):
            if state == _NUD_INCOMPLETE:
                self.execute([(nl.DELNEIGH, 0, entry)])

    def deliver(self, bridge: str, lease: Lease) -> None:
        """Set the MAC address of a guest, as if it had answered: packets that wait for it are sent at once."""
        number = socket.if_nametoindex(bridge)
        mac = nl.attribute(nl.NDA_LLADDR, octets(lease.mac))
        entries = (_in_state(_entry(number, address), _NUD_REACHABLE) + mac for address in _addresses(lease))
        self.execute([(nl.NEWNEIGH, nl.NLM_CREATE | nl.NLM_REPLACE, entry) for entry in entries])

    def _found(self, bridge: str, addresses: Iterable[IpAddress]) -> Iterator[tuple[bytes, int]]:
        """Yield the entries that exist, each with its state."""
        number = socket.if_nametoindex(bridge)
        for address in addresses:
            entry = _entry(number, address)
            with suppress(FileNotFoundError):
                [(_, found)] = self.request(nl.GETNEIGH, nl.NLM_ACK, entry)
                yield entry, nl.NDMSG.unpack_from(found)[2]

    def passes_frames(self, link: str) -> bool:
        """Return whether a link has a carrier, and the kernel has activated its queue since (linkwatch_do_dev)."""
        try:
            [(_, found)] = self.request(nl.GETLINK, nl.NLM_ACK, nl.ifinfo(0, nl.named(link)))
            return nl.link_attributes(found)[_IFLA_OPERSTATE] == bytes([_OPERSTATE_UP])
        except OSError:  # it does not exist
            return False

    def ask(self, bridge: str, lease: Lease) -> None:
        """Ask a guest for its first address; table bridge announces its answer, and keeps it from the kernel (`ASKER`).

        The kernel would send what it holds at once: too early for a guest that answers before it listens to a port.
        """
        if lease.first_address is None:
            return
        if self._asking is None:  # without a protocol, it receives nothing
            self._asking = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC)
        self._asking.sendto(question(lease.mac, lease.first_address), (bridge, 0))


def announce_lookups(bridge: str) -> None:
    """Have the kernel announce each look-up on a bridge; idempotent. Raises HostError."""
    for name, value in _SYSCTLS_OF_LOOKUPS:
        write_sysctl(name.format(bridge), value)


def make_room(guests: int, family: str = "ipv4") -> None:
    """Raise the limits of the host's neighbour table, so that it has room for the guests and for hosts beyond.

    They are never lowered: the limits are those of all network namespaces, and cost no memory by themselves. Only the
    first namespace has these settings; a container has what its host gives it. `guests`: their addresses of a family.
    """
    needed, names = _BEYOND_GUESTS + 2 * guests, _LIMITS[family]
    try:
        if int(read_sysctl(names[-1]) or needed) >= needed:
            return
        limit = 1 << (needed - 1).bit_length()
        # The highest first: each is above the former one, as in the kernel's defaults of 128, 512 and 1024.
        for name, value in zip(reversed(names), (limit, limit // 2, limit // 8), strict=True):
            if int(read_sysctl(name)) < value:
                write_sysctl(name, str(value))
        _log.info("neighbour table of %s: room for %d entries, for %d guests", family, limit, guests)
    except HostError as error:  # a guest that has no entry is reached again when another entry expires
        _log.warning("neighbour table of %s: cannot make room for %d guests: %s", family, guests, error)


def question(mac: str, address: IpAddress) -> bytes:
    """Return the frame that asks a guest for its address: of ARP, or of neighbour discovery (RFC 4861, 4.3)."""
    guest, asker = octets(mac), octets(ASKER)
    if address.version == 4:
        packet = _ARP_PACKET.pack(_ETHERNET, _IPV4, 6, 4, _REQUEST, asker, _DUMMY, _NONE, address.packed)
        return guest + asker + _ARP.to_bytes(2) + packet
    ends, body = link_local(ASKER).packed + address.packed, bytes(4) + address.packed + _SOURCE + asker
    size = 4 + len(body)
    # The sum of 16-bit words in one's complement is the remainder of the number that they are together.
    total = int.from_bytes(ends + struct.pack("!IIBBH", size, _ICMPV6, _SOLICIT, 0, 0) + body)
    message = struct.pack("!BBH", _SOLICIT, 0, -total % 0xFFFF) + body
    return guest + asker + _IPV6.to_bytes(2) + _IPV6_HEAD.pack(6 << 28, size, _ICMPV6, 255) + ends + message


def _addresses(lease: Lease) -> Sequence[IpAddress]:
    """Return the addresses at which the host reaches a guest."""
    own = (link_local(lease.mac),) if lease.ipv6 else ()
    return (*lease.addresses, *own)


def _entry(link: int, address: IpAddress) -> bytes:
    return nl.NDMSG.pack(nl.FAMILIES[address.version], link, 0, 0, 0) + nl.attribute(nl.NDA_DST, address.packed)


def _in_state(entry: bytes, state: int) -> bytes:
    family, link, *_ = nl.NDMSG.unpack_from(entry)
    return nl.NDMSG.pack(family, link, state, 0, 0) + entry[nl.NDMSG.size :]
