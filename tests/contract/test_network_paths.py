"""Paths of packets: published ports, hairpin, localhost, masquerading, and forged frames."""

import asyncio
import socket
from ipaddress import IPv4Address

import pytest
from tests.contract.guest import BROADCAST, IPV4, UDP, Guest
from tests.contract.netns import Outside
from tests.contract.netservice import Service, nic, tcp, udp


async def ask_udp(address: str, port: int, data: bytes = b"hello", sock: socket.socket | None = None) -> bytes:
    loop = asyncio.get_running_loop()
    with sock or socket.socket(_family(address), socket.SOCK_DGRAM) as client:
        client.setblocking(False)
        async with asyncio.timeout(30):
            await loop.sock_sendto(client, data, (address, port))
            answer, sender = await loop.sock_recvfrom(client, 2000)
    assert sender[:2] == (address, port)
    return answer


async def ask_tcp(address: str, port: int, sock: socket.socket | None = None) -> bytes:
    loop = asyncio.get_running_loop()
    with sock or socket.socket(_family(address)) as client:
        client.setblocking(False)
        async with asyncio.timeout(30):
            await loop.sock_connect(client, (address, port))
            await loop.sock_sendall(client, b"hello")
            return await loop.sock_recv(client, 2000)


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


async def test_a_port_published_at_one_address_answers_there_alone(service: Service, outside: Outside) -> None:
    async with (
        service.running() as client,
        Guest(await client.lease("a", tcp(8080, host_ip="127.0.0.1"))),
    ):
        assert await ask_tcp("127.0.0.1", 8080) == b"HELLO"
        with pytest.raises(ConnectionRefusedError):
            await ask_tcp(outside.host, 8080)


async def test_a_guest_reaches_published_ports_of_itself_and_of_neighbours(service: Service, bridge_nf: None) -> None:
    async with service.running() as client:
        first = await client.lease("a", udp(5353))
        second = await client.lease("b")
        async with Guest(first) as a, Guest(second) as b:
            for guest in (a, b):
                await guest.send_udp(guest.gateway, 5353, b"hello")
                assert await guest.heard_udp(b"HELLO") == (guest.gateway, 5353)
            assert not [f for f in a.frames if f[:6] == BROADCAST and f[6:12] == a.mac], "its own broadcast"


async def test_a_guest_does_not_reach_the_hosts_loopback(service: Service, bridge_nf: None) -> None:
    (service.settings / "solo5.toml").write_text('[network.default]\nhost = ["9/udp"]\n')
    await service.restart()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("0.0.0.0", 9))
        listener.setblocking(False)
        async with service.client() as client:
            async with Guest(await client.lease("a")) as guest:
                await guest.send_udp(IPv4Address("127.0.0.1"), 9, b"loopback")
                await guest.send_udp(guest.gateway, 9, b"gateway")
                async with asyncio.timeout(30):
                    assert await asyncio.get_running_loop().sock_recv(listener, 100) == b"gateway"
            await client.drop("a")


async def test_forged_frames_are_dropped(service: Service, bridge_nf: None) -> None:
    async with service.running() as client:
        first, second = await client.lease("a"), await client.lease("b")
        async with Guest(first) as a, Guest(second) as b:
            stranger, other = bytes.fromhex("020000000099"), IPv4Address(int(a.ip) ^ 1)
            right = a.ipv4(b.mac, b.ip, UDP, b"\0\1\0\1\0\x0e\0\0proper")
            forged = {
                "MAC": right[:6] + stranger + right[12:],
                "address": a.ipv4(b.mac, b.ip, UDP, b"\0\1\0\1\0\x0e\0\0FORGED", source=other),
                "ARP sender's address": a.arp(2, b.mac, b.ip, ip=other),
                "ARP sender's MAC": a.arp(2, b.mac, b.ip, mac=stranger),
                "the gateway in ARP": a.arp(2, BROADCAST, b.ip, ip=a.gateway),
                "IPv6": a.frame(b.mac, 0x86DD, b"\x60" + bytes(39)),
                "another protocol": a.frame(b.mac, 0x88B5, b"x"),
                "a VLAN": right[:12] + b"\x81\0\0\5" + right[12:],
                "a BPDU": a.frame(bytes.fromhex("0180c2000000"), 0x27, b"\x42\x42\3" + bytes(35)),
                "LLDP": a.frame(bytes.fromhex("0180c200000e"), 0x88CC, b"x"),
            }
            for guest in (a, b):
                await guest.resolve(guest.gateway)
            with _sniffer(first.bridge) as host:
                for frame in forged.values():
                    a.send(frame)
                a.send(right)
                await b.heard(lambda f: f[34:].startswith(right[34:48]))
                a.send(a.ipv4(await a.resolve(a.gateway), a.gateway, UDP, b"\0\1\0\1\0\x0e\0\0proper"))
                seen = await _received_until(host, b"proper")
        for what, frame in forged.items():
            # From the sender's MAC on, and without the padding, which br_netfilter takes off.
            for heard in (*b.frames, *seen):
                assert heard[6:].rstrip(b"\0") != frame[6:].rstrip(b"\0"), what


async def test_two_networks_two_bridges(service: Service) -> None:
    async with service.running('[network.back]\nipv4 = "10.77.0.0/28"\nmtu = 1280\n') as client:
        reservation = await client.have("a", udp(5353, nic_name="back"), nics=(nic("front"), nic("back", "back")))
        front, back = reservation.leases
        assert (back.bridge, str(back.gateway4), back.mtu) == ("solo5-back", "10.77.0.1", 1280)
        assert front.bridge == "solo5-default"
        async with Guest(back):
            assert await ask_udp("127.0.0.1", 5353) == b"HELLO"


def _sniffer(link: str) -> socket.socket:
    sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
    sniffer.bind((link, 0))
    sniffer.setblocking(False)
    return sniffer


async def _received_until(sniffer: socket.socket, last: bytes) -> list[bytes]:
    seen: list[bytes] = []
    async with asyncio.timeout(30):
        while not seen or not (seen[-1].rstrip(b"\0").endswith(last) and seen[-1][12:14] == IPV4.to_bytes(2)):
            seen.append(await asyncio.get_running_loop().sock_recv(sniffer, 2000))
    return seen
