"""A guest with IPv6 on a tap: answers neighbour discovery, ping, UDP and TCP of IPv6 besides what `Guest` does."""

import asyncio
import contextlib
import struct
from ipaddress import IPv6Address

from tests.contract.guest import IPV6, TCP, UDP, Address, Guest

from solo5_systemd.network.derived_addresses import link_local
from solo5_systemd.network.model import Lease

ICMPV6, FRAGMENT = 58, 44
ECHO_REQUEST, ECHO_REPLY = 128, 129
ROUTER_SOLICIT, ROUTER_ADVERT, SOLICIT, ADVERT, REDIRECT = 133, 134, 135, 136, 137
SOURCE, TARGET = 1, 2
"""Options of neighbour discovery: the link-layer address of the sender or of the target."""

NOWHERE = IPv6Address(0)
ALL_NODES = IPv6Address("ff02::1")


class Guest6(Guest):
    def __init__(self, lease: Lease, greeting: bytes = b"") -> None:
        super().__init__(lease, greeting)
        assert lease.address6 is not None
        assert lease.gateway6 is not None
        self.ip6, self.gateway6 = lease.address6, lease.gateway6
        self.link_local = link_local(lease.mac)

    def own(self, peer: Address) -> Address:
        return self.ip6 if isinstance(peer, IPv6Address) else super().own(peer)

    def router(self, peer: Address) -> Address:
        return self.gateway6 if isinstance(peer, IPv6Address) else super().router(peer)

    async def resolve(self, address: Address) -> bytes:
        """Return the MAC of an address by ARP or neighbour discovery, with retries until the bridge port is up."""
        if not isinstance(address, IPv6Address):
            return await super().resolve(address)

        def answers(frame: bytes) -> bool:
            return kind_of(frame) == ADVERT and frame[62:78] == address.packed

        for _ in range(20):
            self.send(self.solicit(address))
            with contextlib.suppress(TimeoutError):
                return (await self.heard(answers, 0.3))[80:86]
        raise TimeoutError(f"nobody answers for {address}")

    def solicit(
        self, target: IPv6Address, *, source: IPv6Address | None = None, mac: bytes = b"", to: bytes = b""
    ) -> bytes:
        """Return a neighbour solicitation; from `::` without an option."""
        sender = self.ip6 if source is None else source
        option = b"" if sender == NOWHERE else bytes([SOURCE, 1]) + (mac or self.mac)
        group = IPv6Address(int(IPv6Address("ff02::1:ff00:0")) | int(target) & 0xFFFFFF)
        return self.icmp6(to or multicast(group), group, SOLICIT, bytes(4) + target.packed + option, source=sender)

    def advertise(
        self,
        target: IPv6Address,
        *,
        mac: bytes = b"",
        source: IPv6Address | None = None,
        to: IPv6Address = ALL_NODES,
        to_mac: bytes = b"",
    ) -> bytes:
        """Return a neighbour advertisement that overrides entries."""
        body = b"\x60\0\0\0" + target.packed + bytes([TARGET, 1]) + (mac or self.mac)
        return self.icmp6(to_mac or multicast(to), to, ADVERT, body, source=source)

    def icmp6(self, mac: bytes, to: IPv6Address, kind: int, body: bytes, *, source: IPv6Address | None = None) -> bytes:
        """Return a frame with an ICMPv6 message; `body`: from the bytes after the checksum on."""
        sender = self.ip6 if source is None else source
        head = bytes([kind, 0])
        sum_ = checksum(sender, to, ICMPV6, head + b"\0\0" + body)
        return self.ipv6(mac, to, ICMPV6, head + sum_ + body, source=sender)

    def udp(self, mac: bytes, to: Address, port: int, data: bytes, source_port: int = 40000) -> bytes:
        if not isinstance(to, IPv6Address):
            return super().udp(mac, to, port, data, source_port)
        return self.ipv6(mac, to, UDP, datagram(self.ip6, to, source_port, port, data))

    def echo(self, mac: bytes, to: Address, number: int) -> bytes:
        if not isinstance(to, IPv6Address):
            return super().echo(mac, to, number)
        return self.icmp6(mac, to, ECHO_REQUEST, struct.pack("!HH", number, 0))

    def packet(self, mac: bytes, to: Address, protocol: int, body: bytes) -> bytes:
        if not isinstance(to, IPv6Address):
            return super().packet(mac, to, protocol, body)
        return self.ipv6(mac, to, protocol, body)

    def ipv6(
        self, mac: bytes, to: IPv6Address, protocol: int, body: bytes, *, source: IPv6Address | None = None
    ) -> bytes:
        """Return a frame with a packet."""
        ends = (self.ip6 if source is None else source).packed + to.packed
        return mac + self.mac + IPV6.to_bytes(2) + struct.pack("!IHBB", 6 << 28, len(body), protocol, 255) + ends + body

    async def pinged6(self, address: IPv6Address, word: bytes) -> None:
        """Wait for a reply of an address to a ping with this word: it has processed all earlier packets."""
        hop = await self.resolve(self.gateway6)
        async with asyncio.timeout(60):
            while True:
                self.send(self.icmp6(hop, address, ECHO_REQUEST, b"\0\1\0\1" + word))
                with contextlib.suppress(TimeoutError):
                    await self.heard(lambda f: kind_of(f) == ECHO_REPLY and f[62:] == word, 0.5)
                    return

    def _on_readable(self) -> None:
        before = len(self.frames)
        super()._on_readable()
        frame = self.frames[before]
        if frame[12:14] != IPV6.to_bytes(2):
            return
        source, to, body = IPv6Address(frame[22:38]), IPv6Address(frame[38:54]), frame[54:]
        if kind_of(frame) == SOLICIT and frame[62:78] in (self.ip6.packed, self.link_local.packed):
            target = IPv6Address(frame[62:78])
            if source != NOWHERE:
                self.send(self.advertise(target, source=target, to=source, to_mac=frame[6:12]))
        elif to == self.ip6 and kind_of(frame) == ECHO_REQUEST:
            self.send(self.icmp6(frame[6:12], source, ECHO_REPLY, body[4:]))
        elif to == self.ip6 and frame[20] == UDP and body[8:] != body[8:].upper():
            port, own = struct.unpack_from("!HH", body)
            self.send(self.udp(frame[6:12], source, port, self.greeting + body[8:].upper(), own))
        elif to == self.ip6 and frame[20] == TCP and (answer := self._on_tcp(frame, body)):
            self.send(self.ipv6(frame[6:12], source, TCP, answer))


def kind_of(frame: bytes) -> int:
    """Return the type of an ICMPv6 message; 0 for any other frame."""
    return frame[54] if frame[12:14] == IPV6.to_bytes(2) and frame[20] == ICMPV6 else 0


def multicast(group: IPv6Address) -> bytes:
    """Return the MAC address of a group (RFC 2464)."""
    return b"\x33\x33" + group.packed[12:]


def datagram(source: IPv6Address, to: IPv6Address, source_port: int, port: int, data: bytes) -> bytes:
    head = struct.pack("!HHH", source_port, port, 8 + len(data))
    return head + checksum(source, to, UDP, head + b"\0\0" + data) + data


def checksum(source: IPv6Address, to: IPv6Address, protocol: int, body: bytes) -> bytes:
    """Return the checksum of a transport header with its pseudo header (RFC 8200, section 8.1)."""
    data = source.packed + to.packed + struct.pack("!II", len(body), protocol) + body
    total = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + bytes(len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return (~total & 0xFFFF or 0xFFFF).to_bytes(2)
