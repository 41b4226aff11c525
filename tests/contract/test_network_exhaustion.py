"""What one guest can take away from the host and from other guests: entries of connection tracking, and packets."""

import asyncio
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from tests.contract.guest import BROADCAST, UDP, Guest
from tests.contract.netns import Outside
from tests.contract.netservice import Service, tcp, udp
from tests.contract.test_network_paths import ask_tcp, ask_udp
from tests.contract.test_network_policy import METADATA, arrived, bound

from solo5_systemd.network.plan import Lease

COUNT = Path("/proc/sys/net/netfilter/nf_conntrack_count")


def tracked() -> int:
    """How many connections the host has in its table."""
    return int(COUNT.read_text())


async def send_many(guest: Guest, to: IPv4Address, many: int) -> None:
    """Datagrams by way of the gateway, each of a connection of its own."""
    gateway = await guest.resolve(guest.gateway)
    for number in range(many):
        body = struct.pack("!HHHH", 1024 + number % 60000, 1024 + number // 60000, 8 + 4, 0) + b"many"
        guest.send(guest.ipv4(gateway, to, UDP, body))
    await until_answered(guest)


async def until_answered(guest: Guest) -> None:
    """The gateway's ARP answers, so that what was sent before has been dealt with; a ping would be a connection."""
    guest.frames.clear()
    await guest.resolve(guest.gateway)


async def test_one_guest_does_not_fill_the_table_of_connections(service: Service, outside: Outside) -> None:
    await service.restart()
    with outside.entered():
        listener = bound(outside.address, 7)
    async with service.client() as client:
        async with Guest(await client.lease("a")) as a, Guest(await client.lease("b")) as b:
            await a.send_udp(IPv4Address(outside.address), 7, b"before", source_port=9)
            await send_many(a, IPv4Address(outside.address), 12_000)
            full = tracked()
            assert 4096 <= full < 4200, "one guest's limit, and a few of others"
            (network,) = await client.networks()
            assert network.refused.keys() == {a.ip}
            assert 12_000 - 4096 <= network.refused[a.ip] < 12_000
            arrived(listener)
            await a.send_udp(IPv4Address(outside.address), 7, b"goes on", source_port=9)
            await a.send_udp(IPv4Address(outside.address), 7, b"is new", source_port=8)
            await b.send_udp(IPv4Address(outside.address), 7, b"of b")
            await until_answered(a)
            await until_answered(b)
            assert arrived(listener) == [b"goes on", b"of b"]
        # The next guest of that name and address begins with nothing, and the table with less.
        await client.drop("a")
        assert tracked() < 100
        async with Guest(await client.lease("a")) as a:
            await a.send_udp(IPv4Address(outside.address), 7, b"once more")
            async with asyncio.timeout(30):
                assert await asyncio.get_running_loop().sock_recv(listener, 100) == b"once more"
        await client.drop("a")
        await client.drop("b")
    listener.close()


async def test_the_limit_is_configurable(service: Service, outside: Outside) -> None:
    (service.settings / "solo5.toml").write_text("[network.default]\nconnections = 32\n")
    await service.restart()
    async with service.client() as client:
        async with Guest(await client.lease("a")) as a:
            await send_many(a, IPv4Address(outside.address), 100)
            assert 32 <= tracked() < 40
        await client.drop("a")


async def test_what_is_dropped_is_not_tracked(service: Service, outside: Outside) -> None:
    await service.restart()
    async with service.client() as client:
        async with Guest(await client.lease("a")) as a:
            await until_answered(a)
            before = tracked()
            for to in (a.gateway, IPv4Address(outside.host), METADATA):
                await send_many(a, to, 3000)
            assert tracked() <= before + 3, "or as good as none"
            assert (await client.networks())[0].refused == {}
        await client.drop("a")


@contextmanager
def flood(lease: Lease, *frames: bytes) -> Iterator[list[float]]:
    """A guest in a process of its own, which sends as fast as it can; in the end, how many frames a second."""
    program = str(Path(__file__).with_name("flood.py"))
    words = [sys.executable, program, lease.tap, *(frame.hex() for frame in frames)]
    rate: list[float] = []
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "begun\n"
        yield rate
        process.stdin.close()
        sent, seconds = process.stdout.read().split()
        rate.append(int(sent) / float(seconds))


async def round_trips(many: int, sock: socket.socket | None, host: str) -> list[float]:
    """Milliseconds from a question to its answer, by UDP, none of which is lost."""
    found = []
    for _ in range(many):
        begun = time.monotonic()
        assert await ask_udp(host, 5353, sock=sock.dup() if sock else None) == b"HELLO"
        found.append((time.monotonic() - begun) * 1000)
    return found


@pytest.mark.timeout(180)
async def test_a_flood_of_one_guest_stops_nobody_elses_traffic(service: Service, outside: Outside) -> None:
    """Neighbours that it floods itself are another matter: what may call a guest can fill its queue."""
    await service.restart()
    async with service.client() as client:
        flooder = await client.lease("a")
        quiet = await client.lease("c", udp(5353), tcp(8080))
        async with Guest(flooder) as a:
            gateway = await a.resolve(a.gateway)
            body = struct.pack("!HHHH", 1, 1, 8, 0)
            frames = {
                "to the host": a.ipv4(gateway, a.gateway, UDP, body),
                "beyond the host": a.ipv4(gateway, IPv4Address(outside.address), UDP, body),
                "to all": a.ipv4(BROADCAST, IPv4Address("255.255.255.255"), UDP, body),
            }
        with outside.entered():
            neighbour = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with neighbour:
            async with Guest(quiet):
                calm = await round_trips(50, neighbour, outside.host)
                for what, frame in frames.items():
                    with flood(flooder, frame) as rate:
                        trips = await round_trips(50, neighbour, outside.host)
                        assert await ask_tcp("127.0.0.1", 8080) == b"HELLO"
                    print(
                        f"{what}: {rate[0]:.0f} frames/s; another guest answers in {statistics.median(trips):.2f} ms, "
                        f"at most {max(trips):.2f} (without: {statistics.median(calm):.2f}, {max(calm):.2f})"
                    )
        for task in "ac":
            await client.drop(task)
