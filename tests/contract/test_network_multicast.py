"""Multicast of a guest: its neighbours receive it, and neither the host, nor another network, nor a link beyond."""

import socket
import struct
from ipaddress import IPv4Address, IPv6Address

import pytest
from tests.contract.guest import UDP
from tests.contract.guest6 import Guest6, multicast
from tests.contract.netns import Outside
from tests.contract.netservice import Service, nic
from tests.contract.test_network_policy import arrived, datagram

GROUP, GROUP6, PORT = IPv4Address("224.0.0.251"), IPv6Address("ff02::fb"), 7777
"""Those of mDNS, with a port of the test's."""

FIRST, SECOND = b"of IPv4", b"of IPv6"
TEXTS = {FIRST, SECOND}


def member(link: str, address: str) -> socket.socket:
    """Return a socket that receives what is sent to the group on a link."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, GROUP.packed + socket.inet_aton(address))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, link.encode())
    made.bind(("", PORT))
    made.setblocking(False)
    return made


@pytest.mark.parametrize("isolated", [False, True])
async def test_neighbours_receive_it_unless_they_are_isolated(
    service: Service, outside: Outside, bridge_nf: None, isolated: bool
) -> None:
    policy = f"ipv6 = true\nisolated = {str(isolated).lower()}\n"
    async with service.running(f"[network.default]\n{policy}[network.other]\nipv6 = true\n") as client:
        leases = [await client.lease(name) for name in ("a", "b")]
        leases += (await client.have("c", nics=(nic("service", "other"),))).leases
        async with Guest6(leases[0]) as a, Guest6(leases[1]) as b, Guest6(leases[2]) as c:
            with outside.entered():
                beyond = member("veth-out", outside.address)
            here = member("solo5-default", str(a.gateway))
            for guest in (a, b, c):
                await guest.resolve(guest.gateway)  # its port is up: a bridge floods to no other
            mac = b"\x01\0\x5e" + struct.pack("!I", int(GROUP) & 0x7FFFFF)[1:]
            a.send(a.ipv4(mac, GROUP, UDP, datagram(FIRST)))
            a.send(a.udp(multicast(GROUP6), GROUP6, PORT, SECOND))
            # Each path is the only one of its packets, which keep their order: after a reply, all of them have passed.
            for guest in (b, c):
                await guest.pinged6(guest.gateway6, b"after")
            await a.pinged6(a.gateway6, b"after")
            received = [{text for text in TEXTS if any(text in frame for frame in guest.frames)} for guest in (b, c)]
            assert received == [set() if isolated else TEXTS, set()]
            assert arrived(here) == arrived(beyond) == []
            for listener in (here, beyond):
                listener.close()
