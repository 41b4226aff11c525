"""Round trips and datagrams a second through a network of ours, beside the same guest on its tap without our rules.

One guest runs throughout, in its sandbox, with its tap on its bridge: what differs between the turns is the packet
filter alone. `bare` is the tap as bridged by hand: no table of nftables exists, and so nothing tracks connections.
`tracked` has the tables without their hooks, so that the kernel tracks connections and no rule is traversed.
"""

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

from tests.bench.extent import extent
from tests.bench.figures import Figure, spread
from tests.contract.netns import Outside, run

GUEST = Path("/srv/guests/net.spt")
TURNS = extent(60, 2)
ROUND_TRIPS = 300
WINDOW, SIZE, SECONDS = 32, 1400, 0.1
"""Datagrams under way, their bytes, and for how long they are sent in each turn."""

PORT, PUBLISHED = 7, 7007
SERVICE = "solo5-networkd.service"
OURS, TRACKED, BARE = "ours", "tracked", "bare"
ORDERS = list(permutations((OURS, TRACKED, BARE)))


@dataclass(frozen=True)
class Channel:
    """A client's socket, the address that answers it, and the process of the tender behind that."""

    client: socket.socket
    address: tuple[str, int]
    tender: int

    def round_trip(self) -> float:
        """Return the microseconds of one round trip: the median of a turn, which a pause does not move."""
        taken = []
        for _ in range(ROUND_TRIPS):
            begun = time.perf_counter()
            self.client.sendto(b"x", self.address)
            self.client.recv(2000)
            taken.append(time.perf_counter() - begun)
        return sorted(taken)[len(taken) // 2] * 1e6

    def cost(self) -> float:
        """Return the microseconds of processor time of a datagram and its echo, of client and tender.

        The packet filter runs on their time. What other programs take does not count.
        """
        return self._flood()[1]

    def rate(self) -> float:
        """Return the datagrams of a second, there and back, with many under way."""
        return self._flood()[0]

    def _flood(self) -> tuple[float, float]:
        data, count = bytes(SIZE), 0
        for _ in range(WINDOW):
            self.client.sendto(data, self.address)
        before, begun = self._ran(), time.perf_counter()
        while time.perf_counter() - begun < SECONDS:
            self.client.recv(2000)
            self.client.sendto(data, self.address)
            count += 1
        seconds, ran = time.perf_counter() - begun, self._ran() - before
        for _ in range(WINDOW):
            self.client.recv(2000)
        return count / seconds, ran / count / 1e3

    def _ran(self) -> int:
        """Return the nanoseconds of processor time of client and tender."""
        return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in ("self", self.tender))


class Tables:
    """The tables of ours, which no service restores meanwhile."""

    def __init__(self) -> None:
        names = [line.split()[1:] for line in run("nft", "list", "tables").splitlines()]
        self._names = [(family, table) for family, table in names if table == "solo5"]
        assert len(self._names) == len(names), "other tables would be part of every turn"
        listing = run("nft", "--stateless", "list", "ruleset")
        # Without the tables' own flags, at the first level: a table with an owner is not to be changed.
        self._listing = "\n".join(line for line in listing.splitlines() if not line.startswith("\tflags "))
        self._delete()
        self._mode = BARE

    def set(self, mode: str) -> None:
        if mode == self._mode:
            return
        if mode == BARE:
            self._delete()
        else:
            if self._mode == BARE:
                nft(self._listing)
            flags = "{ flags dormant; }" if mode == TRACKED else ""
            nft("\n".join(f"add table {family} {table} {flags}" for family, table in self._names))
        self._mode = mode

    def _delete(self) -> None:
        nft("\n".join(f"delete table {family} {table}" for family, table in self._names))


def nft(commands: str) -> None:
    subprocess.run(["nft", "-f", "-"], input=commands, text=True, check=True)


def figures() -> Iterator[Figure]:
    """Yield the figures of all paths, with and without the rules."""
    with ExitStack() as stack:
        outside = Outside()
        stack.callback(outside.close)
        outside.ip("route", "add", "default", "via", outside.host)
        ours, tender = stack.enter_context(_task("path", "default"))
        stack.enter_context(_on_one_processor(tender))
        stack.enter_context(_without_service())
        tables = Tables()
        stack.callback(tables.set, OURS)
        for name, entered, published in (
            ("host to guest", None, (ours, PORT)),
            ("outside to published port", outside, (outside.host, PUBLISHED)),
        ):
            channels = {
                OURS: Channel(_socket(stack, entered), published, tender),
                TRACKED: _channel(stack, ours, tender, entered),
                BARE: _channel(stack, ours, tender, entered),
            }
            yield from _rules(name, tables, channels)


def _rules(name: str, tables: Tables, channels: Mapping[str, Channel]) -> Iterator[Figure]:
    """Yield the figures of one guest with and without the packet filter, in turns."""
    for what, unit, measure in (
        ("round trip", "µs", Channel.round_trip),
        ("processor time of a datagram", "µs", Channel.cost),
        ("1400 bytes", "1/s", Channel.rate),
    ):
        found: dict[str, list[float]] = {mode: [] for mode in channels}
        for turn in range(TURNS):
            for mode in ORDERS[turn % len(ORDERS)]:
                tables.set(mode)
                measure(channels[mode])  # not counted: the kernel frees former tables for a while, and a flow begins
                found[mode].append(measure(channels[mode]))
        tables.set(OURS)
        yield _figure(f"{name}, {what}", unit, list(zip(found[OURS], found[BARE], strict=True)))
        if measure is not Channel.rate:
            yield _figure(f"{name}, {what}, rules alone", unit, list(zip(found[OURS], found[TRACKED], strict=True)))


def _figure(name: str, unit: str, pairs: list[tuple[float, float]]) -> Figure:
    ours, floor = (spread([pair[side] for pair in pairs]) for side in (0, 1))
    return Figure(name=name, unit=unit, ours=ours.median, floor=floor.median, spread=ours, floor_spread=floor)


def _channel(stack: ExitStack, address: str, tender: int, outside: Outside | None = None) -> Channel:
    return Channel(_socket(stack, outside), (address, PORT), tender)


def _socket(stack: ExitStack, outside: Outside | None) -> socket.socket:
    with ExitStack() as inside:
        if outside:
            inside.enter_context(outside.entered())
        client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    stack.enter_context(client)
    client.settimeout(5)
    return client


@contextmanager
def _on_one_processor(tender: int) -> Iterator[None]:
    """Keep client and tender on one processor.

    On two, each wakes the other by an interrupt or not, as the scheduler has it: turns of 20 and of 50 µs, at random.
    """
    processors = os.sched_getaffinity(0)
    for process in (0, tender):
        os.sched_setaffinity(process, {max(processors)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, processors)


@contextmanager
def _without_service() -> Iterator[None]:
    """Have no service that would restore the tables. Its networks, taps and guests stay as they are."""
    run("systemctl", "mask", "--runtime", SERVICE)
    run("systemctl", "stop", SERVICE)
    try:
        yield
    finally:
        run("systemctl", "unmask", "--runtime", SERVICE)


@contextmanager
def _task(name: str, network: str) -> Iterator[tuple[str, int]]:
    """Start a task in a network, and yield its address and the process ID of its tender."""
    net = ("--net", f"service={network}")
    words = ("--ipv4={net.service.ipv4_cidr}", "--ipv4-gateway={net.service.gateway4}")
    port = ("-p", f"{PUBLISHED}:{PORT}/udp") if network == "default" else ()
    run("solo5ctl", "run", "--detach", f"--name={name}", *port, *net, str(GUEST), *words)
    try:
        text = run("solo5ctl", "inspect", "--json", name)
        [nic] = json.loads(text)[0]["nics"]
        unit = f"solo5-task-{name}.service"
        yield nic["ipv4"].partition("/")[0], int(run("systemctl", "show", "--property=MainPID", "--value", unit))
    finally:
        run("solo5ctl", "rm", "--force", name)
