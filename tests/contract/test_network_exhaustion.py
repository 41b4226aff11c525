"""Resources that one guest can use up: conntrack entries, fragments, neighbours, CPU time for packets, bandwidth."""

import json
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from tests.contract.guest import ACK, BROADCAST, FIN, MORE, SYN, UDP, Guest, _udp, wait_for_port
from tests.contract.netns import Outside, counted, received, run
from tests.contract.netservice import Client, Service, host_state, nic, tcp, udp, until
from tests.contract.sockets import arrived, ask_tcp, ask_udp, bound, next_at

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import TaskName
from solo5_systemd.network.model import Limits
from solo5_systemd.settings.rate import rate

LOOSE = Path("/proc/sys/net/netfilter/nf_conntrack_tcp_loose")
COUNT = Path("/proc/sys/net/netfilter/nf_conntrack_count")


def tracked() -> int:
    """Return the number of entries in the host's conntrack table."""
    return int(COUNT.read_text())


async def send_many(guest: Guest, to: IPv4Address, many: int) -> None:
    """Send datagrams by the gateway, each of another connection."""
    gateway = await guest.resolve(guest.gateway)
    for number in range(many):
        body = struct.pack("!HHHH", 1024 + number % 60000, 1024 + number // 60000, 8 + 4, 0) + b"many"
        guest.send(guest.ipv4(gateway, to, UDP, body))
    await until_answered(guest)


async def until_answered(guest: Guest) -> None:
    """Wait for an ARP reply of the gateway: it has processed all earlier packets. (A ping is a connection.)"""
    guest.frames.clear()
    await guest.resolve(guest.gateway)


async def test_one_guest_does_not_fill_the_table_of_connections(service: Service, outside: Outside) -> None:
    with outside.entered():
        listener = bound(outside.address, 7)
    async with service.running() as client:
        async with Guest(await client.lease("a", udp(5301))) as a, Guest(await client.lease("b")) as b:
            await a.send_udp(IPv4Address(outside.address), 7, b"before", source_port=9)
            await send_many(a, IPv4Address(outside.address), 12_000)
            full = tracked()
            assert 4096 <= full < 4200, "one guest's limit, and a few of others"
            (network,) = await client.networks()
            assert network.dropped.by_guest("connections").keys() == {a.ip}
            assert 12_000 - 4096 <= network.dropped.by_guest("connections")[a.ip] < 12_000
            arrived(listener)
            await a.send_udp(IPv4Address(outside.address), 7, b"goes on", source_port=9)
            await a.send_udp(IPv4Address(outside.address), 7, b"is new", source_port=8)
            await b.send_udp(IPv4Address(outside.address), 7, b"of b")
            await until_answered(a)
            await until_answered(b)
            assert arrived(listener) == [b"goes on", b"of b"]
            assert await ask_udp(outside.host, 5301) == b"HELLO", "its clients' connections are not its own"
        # The next guest of that name and address begins with nothing, and the table with less.
        await client.drop("a")
        assert tracked() < 100
        async with Guest(await client.lease("a")) as a:
            await a.send_udp(IPv4Address(outside.address), 7, b"once more")
            assert (await next_at(listener))[0] == b"once more"
    listener.close()


@pytest.mark.parametrize("where", ["beyond the host", "the host", "another network"])
async def test_whatever_a_guest_opens_counts(service: Service, outside: Outside, where: str) -> None:
    settings = '[network.default]\nconnections = 32\nhost = ["1024/udp"]\nreach = ["back"]\n[network.back]\n'
    async with service.running(settings) as client, Guest(await client.lease("a")) as a:
        other = await client.lease("b", network="back")
        to = {"beyond the host": outside.address, "the host": str(a.gateway), "another network": str(other.address)}
        await send_many(a, IPv4Address(to[where]), 100)
        assert 32 <= tracked() < 40


class Mute(Guest):
    """A guest that answers ARP only; the test sends for it."""

    def _on_ipv4(self, frame: bytes) -> None:
        pass


SOON = "from solo5_systemd.network import nft_rules\nnft_rules.CLOSED_TIMEOUT_S = 3"
"""A third of the time for which a closed connection stays in the table."""


async def test_closed_connections_do_not_fill_the_table_either(service: Service) -> None:
    """One guest opens and closes connections through the host, then keeps sending; the other one replies."""
    LOOSE.write_text("0")  # what is sent to a connection that is gone does not begin another one
    async with (
        service.running("[network.default]\nconnections = 256\n", change=SOON) as client,
        Mute(await client.lease("a")) as a,
        Mute(await client.lease("b")) as b,
    ):
        gateway = await a.resolve(a.gateway)

        def segments(port: int) -> Iterator[tuple[Guest, bytes]]:
            """Open and close a TCP connection."""
            yield a, a.tcp(gateway, b.ip, (port, 7), (1, 0), SYN)
            yield b, b.tcp(gateway, a.ip, (7, port), (1, 2), SYN | ACK)
            yield a, a.tcp(gateway, b.ip, (port, 7), (2, 2), ACK)
            yield a, a.tcp(gateway, b.ip, (port, 7), (2, 2), FIN | ACK)
            yield b, b.tcp(gateway, a.ip, (7, port), (2, 3), FIN | ACK)
            yield from later(port)

        def later(port: int) -> Iterator[tuple[Guest, bytes]]:
            yield a, a.tcp(gateway, b.ip, (port, 7), (3, 3), ACK)
            yield b, b.tcp(gateway, a.ip, (7, port), (3, 3), ACK)

        ports, most = range(1024, 1024 + 3000), 0
        for port in ports:
            for guest, frame in segments(port):
                guest.send(frame)
            if port % 100 == 0:
                most = max(most, tracked())
        await until_answered(a)
        print(f"{len(ports)} connections opened and closed: at most {max(most, tracked())} in the table")
        assert 256 < max(most, tracked()) <= 3 * 256 + 10, "three times its limit, and a few of the host's"
        (network,) = await client.networks()
        assert network.dropped.by_guest("connections")[a.ip] > 0
        again = [each for port in ports for each in later(port)]

        def is_empty() -> bool:
            for guest, frame in again:
                guest.send(frame)
            return tracked() < 10

        await until(is_empty, 60)


async def test_the_count_outlives_a_change_of_networks(service: Service, outside: Outside) -> None:
    async with (
        service.running("[network.default]\nconnections = 32\n[network.back]\n") as client,
        Guest(await client.lease("a")) as a,
    ):
        await send_many(a, IPv4Address(outside.address), 100)
        await client.have("b", nics=(nic("service", "back"),))
        await send_many(a, IPv4Address(outside.address), 200)
        assert 32 <= tracked() < 40
        await client.drop("b")
        await send_many(a, IPv4Address(outside.address), 300)
        assert 32 <= tracked() < 40
        refused = [network.dropped.by_guest("connections").get(a.ip, 0) for network in await client.networks()]
        assert sum(refused) == 68 + 168 + 268


async def test_what_is_dropped_is_not_tracked(outside: Outside, client: Client) -> None:
    async with Guest(await client.lease("a")) as a:
        await until_answered(a)
        before = tracked()
        for to in (a.gateway, IPv4Address(outside.host), IPv4Address("169.254.169.254")):
            await send_many(a, to, 3000)
        assert tracked() <= before + 3, "or as good as none"
        assert (await client.networks())[0].dropped.by_guest("connections") == {}


def incomplete() -> int:
    """Return the number of datagrams in reassembly, in this network namespace."""
    lines = Path("/proc/thread-self/net/sockstat").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("FRAG:")).split()[2])


async def test_fragments_of_a_guest_take_no_memory_of_the_hosts(
    outside: Outside, bridge_nf: None, client: Client
) -> None:
    async with (
        Guest(await client.lease("a")) as a,
        Guest(await client.lease("b")) as b,
    ):
        gateway = await a.resolve(a.gateway)
        ways = ((gateway, a.gateway), (gateway, IPv4Address(outside.address)), (b.mac, b.ip))
        for mac, to in ways:
            for number in range(100):
                a.send(a.ipv4(mac, to, UDP, bytes(1400), number=number, fragment=MORE))
                a.send(a.ipv4(mac, to, UDP, bytes(1400), number=number + 100, fragment=100))
        await until_answered(a)
        assert incomplete() == 0
        (network,) = await client.networks()
        assert network.dropped.by_guest("fragments") == {a.ip: 200 * len(ways)}


async def test_fragments_pass_where_a_network_permits_them(service: Service, outside: Outside) -> None:
    with outside.entered():
        listener = bound(outside.address, 7)
    async with service.running("[network.default]\nfragments = true\n") as client, Guest(await client.lease("a")) as a:
        gateway, to = await a.resolve(a.gateway), IPv4Address(outside.address)
        body = struct.pack("!HHHH", 9, 7, 8 + 2000, 0) + bytes(2000)
        a.send(a.ipv4(gateway, to, UDP, body[:1000], number=1, fragment=MORE))
        a.send(a.ipv4(gateway, to, UDP, body[1000:], number=1, fragment=1000 // 8))
        assert len((await next_at(listener))[0]) == 2000
        (network,) = await client.networks()
        assert network.dropped.by_guest("fragments") == {}
    listener.close()


def neighbours(link: str) -> int:
    return len(json.loads(run("ip", "-j", "neigh", "show", "nud", "all", "dev", link)))


@contextmanager
def flood(guest: Guest, frame: bytes) -> Iterator[Callable[[], int]]:
    """Run a tender of a guest that sends at its full rate; yield a function that counts the frames sent since then."""
    program = str(Path(__file__).with_name("flood.py"))
    words = ["ip", "netns", "exec", f"solo5-{guest.task}", sys.executable, program, guest.tap, frame.hex()]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "begun\n"
        wait_for_port(guest.tap)
        before = received(guest.tap, guest.task)
        yield lambda: received(guest.tap, guest.task) - before
        process.stdin.close()


@contextmanager
def busy() -> Iterator[None]:
    """Run a process that takes as much time of a processor as a flood, without a packet."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


async def round_trips(many: int, sock: socket.socket | None, host: str) -> list[float]:
    """Return the round-trip times of UDP requests in milliseconds; none may be lost."""
    found = []
    for _ in range(many):
        begun = time.monotonic()
        assert await ask_udp(host, 5353, sock=sock.dup() if sock else None) == b"HELLO"
        found.append((time.monotonic() - begun) * 1000)
    return found


@pytest.mark.timeout(180)
async def test_a_flood_of_one_guest_stops_no_other_traffic(outside: Outside, client: Client) -> None:
    """Other guests of the flooding guest's network are excluded: any allowed sender can fill a guest's queue."""
    flooder = await client.lease("a")
    quiet = await client.lease("c", udp(5353), tcp(8080))
    async with Guest(flooder) as a:
        gateway = await a.resolve(a.gateway)
        body = struct.pack("!HHHH", 1, 1, 8, 0)
        frames = {
            "to the host": a.ipv4(gateway, a.gateway, UDP, body),
            "beyond the host": a.ipv4(gateway, IPv4Address(outside.address), UDP, body),
            "to all": a.ipv4(BROADCAST, IPv4Address("255.255.255.255"), UDP, body),
            "to all, of another MAC": a.frame(BROADCAST, 0x88B5, bytes(46), source=bytes.fromhex("020000000066")),
        }
    with outside.entered():
        neighbour = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with neighbour:
        async with Guest(quiet):
            with busy():
                calm = await round_trips(50, neighbour, outside.host)
            for what, frame in frames.items():
                arrived_before = received(a.tap)
                with flood(a, frame) as sent:
                    begun, trips = time.monotonic(), list[float]()
                    while len(trips) < 50 or sent() < 1000:
                        trips += await round_trips(10, neighbour, outside.host)
                    assert await ask_tcp("127.0.0.1", 8080) == b"HELLO"
                    rate = sent() / (time.monotonic() - begun)
                assert (received(a.tap) - arrived_before >= 1000) is (frame[6:12] == a.mac), "of its own MAC only"
                print(
                    f"{what}: {rate:.0f} frames/s; another guest answers in {statistics.median(trips):.2f} ms, "
                    f"at most {max(trips):.2f} (without: {statistics.median(calm):.2f}, {max(calm):.2f})"
                )
                assert statistics.median(trips) < 20 * statistics.median(calm)


# -- rate limits of a NIC, measured by the kernel's counters while more is sent than is permitted --------------------


SECONDS = 1.5
"""The time of a send_for."""

FLOODS = 8

HEADERS = 28


def at(*texts: str) -> Limits:
    return Limits(rate=rate(texts))


def passed() -> tuple[int, int]:
    """Return the bytes and packets that have passed a rule of this test: those of UDP port 7."""
    [counter] = [item["counter"] for item in json.loads(run("nft", "-j", "list", "counters"))["nftables"][1:]]
    return counter["bytes"], counter["packets"]


def count(hook: str) -> None:
    """Count the datagrams for port 7 behind the rules of the service."""
    run("nft", "add table bridge test; add counter bridge test seen")
    run("nft", f"add chain bridge test c {{ type filter hook {hook} priority 400; }}")
    run("nft", 'add rule bridge test c udp dport 7 counter name "seen"')


def send_for(send: Callable[[], object], seconds: float) -> float:
    """Send as fast as possible for some seconds, and return how many it were."""
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        for _ in range(20):
            send()
    return time.monotonic() - begun


def is_held(send: Callable[[], object], direction: str, tap: str, at: int, *, packets: bool) -> bool:
    """Return whether as many bytes or packets pass as a limit permits, and no more.

    Fewer pass where this process does not run all the time, as on a busy machine: one flood of several has to reach it.
    """
    found: list[float] = []
    while not found or (found[-1] < 0.8 * at and len(found) < FLOODS):
        found.append(measure(send, direction, tap)[packets])
    return max(found) <= 1.2 * at and found[-1] >= 0.8 * at


def measure(send: Callable[[], object], direction: str, tap: str) -> tuple[float, float]:
    """Return the bytes and packets per second that pass during a send_for, once it is above the limit."""
    while not counted("bridge", f"over_{direction}").get(tap, 0):
        send_for(send, 0.05)
    before, dropped = passed(), counted("bridge", f"over_{direction}").get(tap, 0)
    seconds = send_for(send, SECONDS)
    found, packets = (now - then for now, then in zip(passed(), before, strict=True))
    assert counted("bridge", f"over_{direction}").get(tap, 0) - dropped > packets, "there was more than is permitted"
    return found / seconds, packets / seconds


@pytest.mark.parametrize(
    ("text", "size", "per_second"),
    [("sent=1M", 1000, 1_000_000), ("sent=200K", 200, 200_000), ("sent-packets=500", 100, 500)],
)
async def test_what_a_guest_sends_is_held_within_its_limit(
    outside: Outside, client: Client, text: str, size: int, per_second: int
) -> None:
    async with Guest(await client.lease("a", limits=at(text))) as guest:
        count("prerouting")
        data = _udp(4000, 7, bytes(size - HEADERS))
        frame = guest.ipv4(await guest.resolve(guest.gateway), IPv4Address(outside.address), UDP, data)
        assert is_held(lambda: guest.send(frame), "sent", guest.tap, per_second, packets="packets" in text)
        run("nft", "delete table bridge test")


@pytest.mark.parametrize(
    ("text", "size", "per_second"), [("received=1M", 1000, 1_000_000), ("received-packets=500", 100, 500)]
)
async def test_what_a_guest_receives_is_held_within_its_limit(
    client: Client, text: str, size: int, per_second: int
) -> None:
    async with Guest(await client.lease("a", limits=at(text))) as guest:
        count("postrouting")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"FIRST", (str(guest.ip), 7))
            await guest.heard(lambda frame: b"FIRST" in frame)
            data = b"\0" * (size - HEADERS)

            def send() -> object:
                return sender.sendto(data, (str(guest.ip), 7))

            assert is_held(send, "received", guest.tap, per_second, packets="packets" in text)
        run("nft", "delete table bridge test")


async def test_a_guest_without_a_limit_is_not_slowed_down_by_its_neighbours(service: Service, outside: Outside) -> None:
    async with (
        service.running() as client,
        Guest(await client.lease("a", limits=at("sent-packets=10", "received-packets=10"))),
        Guest(await client.lease("b")) as guest,
    ):
        count("prerouting")
        data = _udp(4000, 7, b"x")
        frame = guest.ipv4(await guest.resolve(guest.gateway), IPv4Address(outside.address), UDP, data)
        for _ in range(1000):
            guest.send(frame)
        await until(lambda: passed()[1] == 1000)
    run("nft", "delete table bridge test")


async def test_the_networks_limit_is_for_all_and_a_job_can_only_lower_it(service: Service) -> None:
    async with service.running('[network.default]\nrate = ["sent=1M", "received-packets=500"]\n') as client:
        for cell, wanted in (("sent=2M", "sent=1M"), ("received-packets=501", "received-packets=500")):
            expected = f"rate {cell} is above the limit of network default for NIC service: expected {wanted[-2:]}"
            with pytest.raises(InvalidRequestError, match=expected[:60]):
                await client.reserve(TaskName("a"), (nic("service", limits=at(cell)),), ())
        await client.lease("a")
        await client.lease("b", limits=at("sent=500K"))
        rates = run("nft", "list", "limits", "table", "bridge", "solo5")
        assert rates.count("rate over 1000000 bytes/second") == rates.count("rate over 500000 bytes/second") == 1
        assert rates.count("rate over 500/second") == 2
        service.configure('[network.default]\nrate = ["sent=300K"]\n')
        service.end()
        await service.restart()
        rates = run("nft", "list", "limits", "table", "bridge", "solo5")
        assert rates.count("rate over 300000 bytes/second") == 2
        assert "rate over 500/second" not in rates


async def test_a_limit_outlives_its_tap_and_ends_with_its_task(client: Client) -> None:
    await client.lease("b")
    before = host_state()
    lease = await client.lease("a", limits=at("sent-packets=100"))
    run("ip", "link", "delete", lease.tap)
    await until(lambda: lease.tap in run("ip", "link"))
    async with Guest(lease) as guest:
        frame = guest.ipv4(await guest.resolve(guest.gateway), IPv4Address("192.0.2.9"), UDP, _udp(1, 7, b"x"))
        for _ in range(500):
            guest.send(frame)
        assert counted("bridge", "over_sent").get(lease.tap, 0) > 300
    await client.drop("a")
    assert host_state() == before


async def test_a_limit_applies_on_a_bridge_of_others(service: Service, br0: str) -> None:
    async with (
        service.running(f'[network.lan]\njoin = "{br0}"\nrate = ["sent-packets=100"]\n') as client,
        Guest(await client.lease("a", network="lan")) as guest,
    ):
        for _ in range(500):
            guest.send(guest.arp(1, b"\xff" * 6, IPv4Address("192.0.2.9")))
        assert counted("bridge", "over_sent").get(guest.tap, 0) > 300
