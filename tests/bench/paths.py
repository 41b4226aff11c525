"""Round trips and datagrams a second through a network of ours, beside the same guest on a tap that is bridged by hand.

The floor is the least that such a path can have: the kernel's bridge and routing, and no rule of ours for its packets
but those that find that they are for another bridge.
"""

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.figures import Figure, spread
from tests.contract.netns import Outside, run

GUEST = Path("/srv/guests/net.spt")
TURNS = 20
ROUND_TRIPS = 1000
WINDOW, SIZE, SECONDS = 32, 1400, 0.25
"""Datagrams under way, their bytes, and for how long they are sent in each turn."""

PORT, PUBLISHED = 7, 7007
HAND = "10.201.0"
FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


@dataclass(frozen=True)
class Channel:
    """A client's socket, and the address that answers it."""

    client: socket.socket
    address: tuple[str, int]

    def round_trip(self) -> float:
        """Return the microseconds of one round trip, as the mean of a turn."""
        begun = time.perf_counter()
        for _ in range(ROUND_TRIPS):
            self.client.sendto(b"x", self.address)
            self.client.recv(2000)
        return (time.perf_counter() - begun) / ROUND_TRIPS * 1e6

    def rate(self) -> float:
        """Return the datagrams of a second, there and back."""
        data, count, begun = bytes(SIZE), 0, time.perf_counter()
        for _ in range(WINDOW):
            self.client.sendto(data, self.address)
        while time.perf_counter() - begun < SECONDS:
            self.client.recv(2000)
            self.client.sendto(data, self.address)
            count += 1
        seconds = time.perf_counter() - begun
        for _ in range(WINDOW):
            self.client.recv(2000)
        return count / seconds


def figures() -> Iterator[Figure]:
    """Yield the figures of both paths, from the host and from outside, each in turns with its floor."""
    with ExitStack() as stack:
        before = FORWARD.read_text()
        stack.callback(FORWARD.write_text, before)
        FORWARD.write_text("1")
        outside = Outside()
        stack.callback(outside.close)
        outside.ip("route", "add", "default", "via", outside.host)
        stack.enter_context(_by_hand())
        for where, network in (("", "default"), (" in a namespace of its own", "apart")):
            with _task(network) as ours:
                for name, entered, address in (
                    (f"host to guest{where}", None, (ours, PORT)),
                    (f"outside to published port{where}", outside, (outside.host, PUBLISHED)),
                ):
                    yield from _path(name, entered, address)


def _path(name: str, entered: Outside | None, address: tuple[str, int]) -> Iterator[Figure]:
    with _socket(entered) as near, _socket(entered) as far:
        path, floor = Channel(near, address), Channel(far, (f"{HAND}.2", PORT))
        for each in (path, floor):
            each.round_trip()  # not measured: ARP, caches
        pairs = [(path.round_trip(), floor.round_trip()) for _ in range(TURNS)]
        yield _figure(f"{name}, round trip", "µs", pairs)
        yield _figure(f"{name}, 1400 bytes", "1/s", [(path.rate(), floor.rate()) for _ in range(TURNS)])


def _figure(name: str, unit: str, pairs: list[tuple[float, float]]) -> Figure:
    ours, floor = (spread([pair[side] for pair in pairs]) for side in (0, 1))
    return Figure(name=name, unit=unit, ours=ours.median, floor=floor.median, spread=ours, floor_spread=floor)


@contextmanager
def _socket(outside: Outside | None) -> Iterator[socket.socket]:
    with ExitStack() as stack:
        if outside:
            stack.enter_context(outside.entered())
        client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with client:
        client.settimeout(5)
        yield client


@contextmanager
def _task(network: str) -> Iterator[str]:
    """Start a task in a network, and yield its address."""
    net = ("--net", f"service={network}")
    words = ("--ipv4={net.service.ipv4_cidr}", "--ipv4-gateway={net.service.gateway4}")
    run("solo5ctl", "run", "--detach", "--name=path", "-p", f"{PUBLISHED}:{PORT}/udp", *net, str(GUEST), *words)
    try:
        text = run("solo5ctl", "inspect", "--json", "path")
        [nic] = json.loads(text)[0]["nics"]
        yield nic["ipv4"].partition("/")[0]
    finally:
        run("solo5ctl", "rm", "--force", "path")


@contextmanager
def _by_hand() -> Iterator[None]:
    """Start the same guest on a tap and a bridge without a rule."""
    for words in (
        "link add by-hand type bridge forward_delay 0",
        f"address add {HAND}.1/24 dev by-hand",
        "link set by-hand up",
        "tuntap add by-hand-tap mode tap",
        "link set by-hand-tap master by-hand up",
    ):
        run("ip", *words.split())
    command = ["/usr/local/bin/solo5-spt", "--net:service=by-hand-tap", str(GUEST)]
    command += [f"--ipv4={HAND}.2/24", f"--ipv4-gateway={HAND}.1"]
    tender = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        tender.kill()
        tender.wait()
        run("ip", "link", "delete", "by-hand-tap")
        run("ip", "link", "delete", "by-hand")
