"""Round trips and datagrams a second through a network of ours, beside the same guest on its tap without our rules.

One guest runs throughout, in its sandbox, with its tap on its bridge: what differs between the turns is the packet
filter alone. The floor is the tap as bridged by hand: no table of nftables exists, and so nothing tracks connections.
"""

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from tests.bench.extent import extent
from tests.bench.figures import Report, times
from tests.contract.netns import Outside, run

GUEST = Path("/srv/guests/net.spt")
TURNS = extent(60, 2)
ROUND_TRIPS = 300
WINDOW, SIZE, SECONDS = 32, 1400, 0.1
"""Datagrams under way, their bytes, and for how long they are sent in each turn."""

PORT, PUBLISHED = 7, 7007
SERVICE = "solo5-networkd.service"


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
        assert all(table == "solo5" for _, table in names), "other tables would be part of every turn"
        self._removal = "\n".join(f"delete table {family} {table}" for family, table in names)
        listing = run("nft", "--stateless", "list", "ruleset")
        # Without the tables' own flags, at the first level: a table with an owner is not to be changed.
        self._listing = "\n".join(line for line in listing.splitlines() if not line.startswith("\tflags "))
        self._are_there = True

    def set(self, *, there: bool) -> None:
        if there is not self._are_there:
            nft(self._listing if there else self._removal)
            self._are_there = there


def nft(commands: str) -> None:
    subprocess.run(["nft", "-f", "-"], input=commands, text=True, check=True)


def measure(report: Report, _: object) -> None:
    """Add the figures of all paths, in turns with and without the rules."""
    with ExitStack() as stack:
        outside = Outside()
        stack.callback(outside.close)
        outside.ip("route", "add", "default", "via", outside.host)
        ours, tender = stack.enter_context(_task())
        stack.enter_context(_on_one_processor(tender))
        stack.enter_context(_without_service())
        tables = Tables()
        tables.set(there=False)
        stack.callback(tables.set, there=True)
        for name, entered, published in (
            ("host to guest", None, (ours, PORT)),
            ("outside to published port", outside, (outside.host, PUBLISHED)),
        ):
            with_rules = Channel(udp_socket(stack, entered), published, tender)
            bare = Channel(udp_socket(stack, entered), (ours, PORT), tender)
            for what, unit, measured in (
                ("round trip", "µs", Channel.round_trip),
                ("processor time of a datagram", "µs", Channel.cost),
                ("1400 bytes", "1/s", Channel.rate),
            ):
                found: dict[bool, list[float]] = {True: [], False: []}
                for turn in range(TURNS):
                    for there in (bool(turn % 2), not turn % 2):
                        tables.set(there=there)
                        channel = with_rules if there else bare
                        measured(channel)  # not counted: the kernel frees former tables for a while, and a flow begins
                        found[there].append(measured(channel))
                report.add(times(f"{name}, {what}", found[True], found[False], unit=unit))


def udp_socket(stack: ExitStack, where: Outside | None) -> socket.socket:
    """Return a socket of a namespace; None: this one."""
    with where.entered() if where else nullcontext():
        client = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    client.settimeout(10)
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
def _task() -> Iterator[tuple[str, int]]:
    """Start a task, and yield its address and the process ID of its tender."""
    words = ("--ipv4={net.service.ipv4_cidr}", "--ipv4-gateway={net.service.gateway4}")
    run("solo5ctl", "run", "--detach", "--name=path", "-p", f"{PUBLISHED}:{PORT}/udp", str(GUEST), *words)
    try:
        [nic] = json.loads(run("solo5ctl", "inspect", "--json", "path"))[0]["nics"]
        pid = run("systemctl", "show", "--property=MainPID", "--value", "solo5-task-path.service")
        yield nic["ipv4"].partition("/")[0], int(pid)
    finally:
        run("solo5ctl", "rm", "--force", "path")
