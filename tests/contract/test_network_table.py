"""The table of paths in docs/network.md: each of its cells is a test, with packets of this kernel.

All attempts of all cells are made at once, and once more when those that are to arrive have arrived: what has not
arrived when these have arrived twice was dropped.
"""

import asyncio
import itertools
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from ipaddress import IPv6Address, IPv6Interface, ip_address
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.contract.guest import Address, Guest
from tests.contract.netns import Outside, private_namespace, run
from tests.contract.netservice import PrivateBus, Service, leaving_nothing, nic, tcp, udp, until
from tests.contract.stations import SERVICE, GuestStation, NamespaceStation, Seen, Station, Via
from tests.support.doc_tables import DOCS, table

from solo5_systemd.network.model import Lease

CLOSED, IMPOSSIBLE = "closed", "–"
_IPV4, _IPV6 = (table((DOCS / "network.md").read_text(), f"Every path, by {family}") for family in ("IPv4", "IPv6"))
TABLES = {"IPv4": _IPV4, "IPv6": _IPV4 | _IPV6}
"""The tables by family; that of IPv6 has the rows that differ."""

CLIENT, HOST, LOOPBACK = "a client beyond the host", "the host", "the host's loopback"
ITSELF, NEIGHBOUR, STRANGER = "the guest itself", "a guest of its network", "a guest of another network"
MEMBER, MACHINE = "a guest of a joined network", "a machine of the joined bridge"
FAR = "beyond"
PORT, ADDRESS, GATEWAY = "published port", "guest's address", "its gateway"
SERVED, METADATA, INTERNET = "service of the host", "metadata service", "Internet"

PUBLISHED, GUEST_PORT = 8080, 80
FIRST_NUMBER = {"IPv4": 20000, "IPv6": 21000, "IPv6 alone": 22000}
"""The first number of the attempts on each stage: above the ports of all services, and none of them twice."""


class World:
    """The addresses of one family: those of the host at its links, and those of the rows.

    Args:
        near: the part of all addresses of the link that is shared with the client, up to the last number.
        far: the same of the link to the Internet.
        lan: the same of the joined bridge.
    """

    def __init__(
        self, family: socket.AddressFamily, near: str, far: str, lan: str, loopback: str, metadata: str
    ) -> None:
        self.family = family
        self.prefix = 24 if family == socket.AF_INET else 64
        self.here, self.far_here, self.lan_here = (ip_address(f"{each}1") for each in (near, far, lan))
        self.metadata = ip_address(metadata)
        self.own: Mapping[str, Address] = {
            CLIENT: ip_address(f"{near}2"),
            FAR: ip_address(f"{far}2"),
            MEMBER: ip_address(f"{lan}77"),
            MACHINE: ip_address(f"{lan}2"),
            LOOPBACK: ip_address(loopback),
        }


FOUR = World(socket.AF_INET, "192.0.2.", "198.51.100.", "192.168.1.", "127.0.0.1", "169.254.169.254")
SIX = World(socket.AF_INET6, "2001:db8:f::", "2001:db8:e::", "2001:db8:a::", "::1", "fd00:ec2::254")
STAGES = {"IPv4": "IPv4", "IPv6": "IPv6", "IPv6 alone": "IPv6"}
"""The table of each stage: on networks with IPv6 alone, that of IPv6 holds as on those with both."""

WORLDS = {"IPv4": FOUR, "IPv6": SIX, "IPv6 alone": SIX}
SETTINGS = """
[network.default]
{ipv4}
ipv6 = {ipv6}
[network.other]
{ipv4}
ipv6 = {ipv6}
[network.lan]
join = "br0"
ipv6 = {ipv6}
ipv4 = "192.168.1.0/24"
gateway4 = "192.168.1.1"
"""


@dataclass(frozen=True)
class Attempt:
    """Packets from a row to a column, by a protocol."""

    row: str
    column: str
    via: Via

    def expected(self, stage: str) -> str:
        """Return what the stage's table has: `closed`, or the source address at the receiver."""
        cell = TABLES[STAGES[stage]][self.row][self.column]
        if cell == CLOSED:
            return CLOSED
        parts = [re.fullmatch(r"(?:((?:TCP|UDP|ping|, )+) )?as (.+)", part) for part in cell.split("; ")]
        assert all(parts), f"{cell!r} is neither “closed” nor “as …”, “TCP, UDP as …”"
        sources = [part[2] for part in parts if part and (part[1] is None or self.via in part[1].split(", "))]
        return sources[0] if sources else CLOSED


def attempts(stage: str) -> list[Attempt]:
    """Return those of all cells of a stage's table; a ping has no port that could be published."""
    rows = TABLES[STAGES[stage]]
    cells = [(row, column) for row, cells in rows.items() for column in cells if cells[column] != IMPOSSIBLE]
    return [Attempt(*cell, via) for cell in cells for via in Via if (cell[1], via) != (PORT, Via.PING)]


class Stage:
    """All rows and columns of a table, played by guests and network namespaces."""

    def __init__(self, world: World, guests: Mapping[str, Guest], stations: Mapping[str, Station]) -> None:
        self._world, self._stations = world, stations
        self._address, self._gateway = ends(world, guests[ITSELF])
        self._own = {**world.own, **{row: ends(world, guest)[0] for row, guest in guests.items()}}
        # The host's address that a row sends to for a published port.
        self._near = {row: ends(world, guest)[1] for row, guest in guests.items()}
        self._near |= {LOOPBACK: world.own[LOOPBACK], MACHINE: world.lan_here}

    def send(self, attempt: Attempt, number: int) -> None:
        world = self._world
        address, port = {
            PORT: (self._near.get(attempt.row, world.here), PUBLISHED),
            ADDRESS: (self._address, GUEST_PORT),
            GATEWAY: (self._gateway, SERVICE),
            SERVED: (world.here, SERVICE),
            METADATA: (world.metadata, SERVICE),
            INTERNET: (world.own[FAR], SERVICE),
        }[attempt.column]
        self._stations[attempt.row].send(attempt.via, address, port, number)

    def outcome(self, attempt: Attempt, number: int) -> str:
        """Return the source of an attempt that has arrived and was answered, else `closed`."""
        receiver = {PORT: ITSELF, ADDRESS: ITSELF, GATEWAY: HOST, SERVED: HOST}.get(attempt.column, FAR)
        requests = self._seen(receiver, attempt.via, number, is_reply=False)
        if not (requests and self._seen(attempt.row, attempt.via, number, is_reply=True)):
            return CLOSED
        [source] = {each.source for each in requests}
        return self._word(attempt.row, source)

    def _seen(self, station: str, via: Via, number: int, *, is_reply: bool) -> list[Seen]:
        seen = self._stations[station].seen()
        return [each for each in seen if (each.via, each.number, each.is_reply) == (via, number, is_reply)]

    def _word(self, row: str, source: Address) -> str:
        if source == self._own.get(row):
            return "itself"
        world = self._world
        known = {self._gateway: "the gateway", world.here: "the host", world.far_here: "the host"}
        return known.get(source, str(source))

    async def play(self, stage: str) -> Mapping[Attempt, str]:
        """Return the outcomes of all attempts."""
        wanted = attempts(stage)
        first, second = (dict(zip(wanted, itertools.count(FIRST_NUMBER[stage] + start))) for start in (0, len(wanted)))
        for numbers in (first, second):
            waiting = {each for each in wanted if each.expected(stage) != CLOSED}
            for attempt, number in numbers.items():
                self.send(attempt, number)

            def have_all(numbers: Mapping[Attempt, int] = numbers, waiting: set[Attempt] = waiting) -> bool:
                waiting -= {each for each in waiting if self.outcome(each, numbers[each]) != CLOSED}
                return not waiting

            with suppress(TimeoutError):  # a cell is wrong: its test fails
                await until(have_all)
        return {attempt: self.outcome(attempt, number) for attempt, number in first.items()}


def ends(world: World, guest: Guest) -> tuple[Address, Address]:
    """Return the address of a guest and of its gateway."""
    return (guest.ip6, guest.gateway6) if world is SIX else (guest.ip, guest.gateway)


def _guest(world: World, lease: Lease) -> Guest:
    if world is FOUR:
        return Guest(lease)
    if lease.ipv6 is None:  # of a joined network: the guest has an address of its own choice
        own, router = IPv6Address(str(world.own[MEMBER])), IPv6Address(str(world.lan_here))
        lease = replace(lease, ipv6=IPv6Interface((own, world.prefix)), gateway6=router)
    return Guest(lease)


async def _play(service: Service, name: str) -> Mapping[Attempt, str]:
    """Set the stage in this network namespace, play, and clear it."""
    world = WORLDS[name]
    alone = "ipv4 = false" if name == "IPv6 alone" else ""
    service.configure(SETTINGS.format(ipv4=alone, ipv6=str(world is SIX).lower()))
    async with AsyncExitStack() as stack:
        client, far = Outside(), Outside("far", str(FOUR.far_here), str(FOUR.own[FAR]))
        machine = Outside("lan", "192.168.1.9", str(FOUR.own[MACHINE]))
        links = ((client, CLIENT, world.here), (far, FAR, world.far_here), (machine, MACHINE, world.lan_here))
        run("ip", "link", "add", "br0", "type", "bridge")
        stack.callback(run, "ip", "link", "del", "br0")
        run("ip", "address", "flush", "dev", "lan-in")
        run("ip", "link", "set", "lan-in", "master", "br0")
        run("ip", "address", "add", f"{FOUR.lan_here}/24", "dev", "br0")
        run("ip", "link", "set", "br0", "up")
        for each, row, router in links:
            stack.callback(each.close)
            if world is SIX:
                there = "br0" if row == MACHINE else f"{each.link}-in"
                run("ip", "address", "add", f"{router}/64", "dev", there, "nodad")
                each.ip("address", "add", f"{world.own[row]}/64", "dev", f"{each.link}-out", "nodad")
            each.ip("route", "add", "default", "via", str(router))
        far.ip("address", "add", str(world.metadata), "dev", "lo")
        run("ip", "route", "add", str(world.metadata), "via", str(world.own[FAR]))
        await service.restart()
        requests = await stack.enter_async_context(service.client())
        leases = {
            ITSELF: await requests.lease("a", tcp(PUBLISHED, GUEST_PORT), udp(PUBLISHED, GUEST_PORT)),
            NEIGHBOUR: await requests.lease("b"),
            STRANGER: await requests.lease("c", network="other"),
            MEMBER: (await requests.have("d", nics=(nic("service", "lan", str(FOUR.own[MEMBER])),))).leases[0],
        }
        guests = {row: await stack.enter_async_context(_guest(world, lease)) for row, lease in leases.items()}
        others = {CLIENT: client, FAR: far, MACHINE: machine}
        sockets = stack.enter_context(ExitStack())
        stations = {row: each async for row, each in _stations(sockets, world, guests, others)}
        found = await Stage(world, guests, stations).play(name)
        for task in "abcd":
            await requests.drop(task)
        service.end()
        return found


async def _stations(
    sockets: ExitStack, world: World, guests: Mapping[str, Guest], outside: Mapping[str, Outside]
) -> AsyncIterator[tuple[str, Station]]:
    for row, guest in guests.items():
        near = [guest.router(world.here)]
        if row == NEIGHBOUR:
            near.append(guests[ITSELF].own(world.here))
        yield row, GuestStation(guest, {each: await guest.resolve(each) for each in near})
    namespaces: dict[str, Callable[[], AbstractContextManager[object]]] = {HOST: nullcontext}
    for row, entered in (namespaces | {row: each.entered for row, each in outside.items()}).items():
        station = NamespaceStation(sockets, entered, family=world.family)
        station.serve()
        yield row, station
    yield LOOPBACK, NamespaceStation(sockets, nullcontext, world.own[LOOPBACK], world.family)


@pytest.fixture(scope="module")
def outcomes() -> Iterator[Mapping[str, Mapping[Attempt, str]]]:
    """The outcomes of all attempts, by stage."""
    with private_namespace(), TemporaryDirectory(dir="/run") as directory:
        Path(directory).chmod(0o755)
        bus = PrivateBus(Path(directory))
        (Path(directory) / "service").mkdir()
        # The loop is not made the thread's own: that is pytest's, which would be left without a reference.
        with (
            leaving_nothing(Path(directory) / "service", bus) as service,
            asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner,
        ):
            yield {stage: runner.run(_play(service, stage)) for stage in STAGES}
        bus.close()


@pytest.mark.parametrize(
    ("stage", "attempt"),
    [
        pytest.param(stage, each, id=f"{stage}: {each.row} to {each.column}, {each.via}")
        for stage in STAGES
        for each in attempts(stage)
    ],
)
def test_a_packet_takes_the_path_of_the_table(
    outcomes: Mapping[str, Mapping[Attempt, str]], stage: str, attempt: Attempt
) -> None:
    assert outcomes[stage][attempt] == attempt.expected(stage)


def test_only_what_no_packet_can_do_is_left_out() -> None:
    """A guest that sends to its own address sends nothing."""
    for rows in TABLES.values():
        left_out = {(row, column) for row, cells in rows.items() for column in cells if cells[column] == IMPOSSIBLE}
        assert left_out == {(ITSELF, ADDRESS)}


def test_each_row_has_a_path_that_shows_when_the_others_would_have_arrived() -> None:
    for stage, family in STAGES.items():
        assert {each.row for each in attempts(stage) if each.expected(stage) != CLOSED} == set(TABLES[family])
