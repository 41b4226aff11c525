"""The table of paths in docs/network.md: each of its cells is a test, with packets of this kernel.

All attempts of all cells are made at once, and once more when those that are to arrive have arrived: what has not
arrived when these have arrived twice was dropped.
"""

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.contract.guest import Guest
from tests.contract.netns import Outside, private_namespace, run
from tests.contract.netservice import PrivateBus, Service, leaving_nothing, nic, tcp, udp, until
from tests.contract.stations import SERVICE, GuestStation, NamespaceStation, Seen, Station, Via
from tests.support.doc_tables import DOCS, table

CLOSED, IMPOSSIBLE = "closed", "–"
TABLES = {"IPv4": table((DOCS / "network.md").read_text(), "Every path, by IPv4")}
"""The tables by family: what it takes to play another one is a `Stage` of its addresses."""

CLIENT, HOST, LOOPBACK = "a client beyond the host", "the host", "the host's 127.0.0.1"
ITSELF, NEIGHBOUR, STRANGER = "the guest itself", "a guest of its network", "a guest of another network"
MEMBER, MACHINE = "a guest of a joined network", "a machine of the joined bridge"
FAR = "beyond"
PORT, ADDRESS, GATEWAY = "published port", "guest's address", "its gateway"
SERVED, METADATA, INTERNET = "service of the host", "metadata service", "Internet"

PUBLISHED, GUEST_PORT = 8080, 80
FIRST_NUMBER = 20000  # above the ports of all services

HERE, FAR_HERE, LAN_HERE = IPv4Address("192.0.2.1"), IPv4Address("198.51.100.1"), IPv4Address("192.168.1.1")
OWN = {
    CLIENT: IPv4Address("192.0.2.2"),
    FAR: IPv4Address("198.51.100.2"),
    MEMBER: IPv4Address("192.168.1.77"),
    MACHINE: IPv4Address("192.168.1.2"),
    LOOPBACK: IPv4Address("127.0.0.1"),
}
METADATA_ADDRESS = IPv4Address("169.254.169.254")
SETTINGS = f"""
[network.default]
[network.other]
[network.lan]
join = "br0"
ipv4 = "192.168.1.0/24"
gateway4 = "{LAN_HERE}"
"""


@dataclass(frozen=True)
class Attempt:
    """Packets from a row to a column, by a protocol."""

    row: str
    column: str
    via: Via

    def expected(self, family: str) -> str:
        """Return what the table has: `closed`, or the source address at the receiver."""
        cell = TABLES[family][self.row][self.column]
        if cell == CLOSED:
            return CLOSED
        parts = [re.fullmatch(r"(?:((?:TCP|UDP|ping|, )+) )?as (.+)", part) for part in cell.split("; ")]
        assert all(parts), f"{cell!r} is neither “closed” nor “as …”, “TCP, UDP as …”"
        sources = [part[2] for part in parts if part and (part[1] is None or self.via in part[1].split(", "))]
        return sources[0] if sources else CLOSED


def attempts(family: str) -> list[Attempt]:
    """Return those of all cells of a table; a ping has no port that could be published."""
    cells = [(row, column) for row, cells in TABLES[family].items() for column in cells if cells[column] != IMPOSSIBLE]
    return [Attempt(*cell, via) for cell in cells for via in Via if (cell[1], via) != (PORT, Via.PING)]


class Stage:
    """All rows and columns of a table, played by guests and network namespaces."""

    def __init__(self, guests: Mapping[str, Guest], stations: Mapping[str, Station]) -> None:
        self._stations = stations
        self._guest = guests[ITSELF]
        self._own = OWN | {row: guest.ip for row, guest in guests.items()}
        # The host's address that a row sends to for a published port.
        self._near = {row: guest.gateway for row, guest in guests.items()}
        self._near |= {LOOPBACK: OWN[LOOPBACK], MACHINE: LAN_HERE}

    def send(self, attempt: Attempt, number: int) -> None:
        address, port = {
            PORT: (self._near.get(attempt.row, HERE), PUBLISHED),
            ADDRESS: (self._guest.ip, GUEST_PORT),
            GATEWAY: (self._guest.gateway, SERVICE),
            SERVED: (HERE, SERVICE),
            METADATA: (METADATA_ADDRESS, SERVICE),
            INTERNET: (OWN[FAR], SERVICE),
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

    def _word(self, row: str, source: IPv4Address) -> str:
        if source == self._own.get(row):
            return "itself"
        return {self._guest.gateway: "the gateway", HERE: "the host", FAR_HERE: "the host"}.get(source, str(source))

    async def play(self, family: str) -> Mapping[Attempt, str]:
        """Return the outcomes of all attempts."""
        wanted = attempts(family)
        first, second = (dict(zip(wanted, itertools.count(FIRST_NUMBER + start))) for start in (0, len(wanted)))
        for numbers in (first, second):
            waiting = {each for each in wanted if each.expected(family) != CLOSED}
            for attempt, number in numbers.items():
                self.send(attempt, number)

            def have_all(numbers: Mapping[Attempt, int] = numbers, waiting: set[Attempt] = waiting) -> bool:
                waiting -= {each for each in waiting if self.outcome(each, numbers[each]) != CLOSED}
                return not waiting

            with suppress(TimeoutError):  # a cell is wrong: its test fails
                await until(have_all)
        return {attempt: self.outcome(attempt, number) for attempt, number in first.items()}


async def _play(service: Service, family: str) -> Mapping[Attempt, str]:
    """Set the stage in this network namespace, play, and clear it."""
    (service.settings / "solo5.toml").write_text(SETTINGS)
    async with AsyncExitStack() as stack:
        client, far = Outside(), Outside("far", str(FAR_HERE), str(OWN[FAR]))
        machine = Outside("lan", "192.168.1.9", str(OWN[MACHINE]))
        for each, router in ((client, HERE), (far, FAR_HERE), (machine, LAN_HERE)):
            stack.callback(each.close)
            each.ip("route", "add", "default", "via", str(router))
        far.ip("address", "add", f"{METADATA_ADDRESS}/32", "dev", "lo")
        run("ip", "route", "add", str(METADATA_ADDRESS), "via", str(OWN[FAR]))
        run("ip", "link", "add", "br0", "type", "bridge")
        stack.callback(run, "ip", "link", "del", "br0")
        run("ip", "address", "flush", "dev", "lan-in")
        run("ip", "link", "set", "lan-in", "master", "br0")
        run("ip", "address", "add", f"{LAN_HERE}/24", "dev", "br0")
        run("ip", "link", "set", "br0", "up")
        await service.restart()
        requests = await stack.enter_async_context(service.client())
        leases = {
            ITSELF: await requests.lease("a", tcp(PUBLISHED, GUEST_PORT), udp(PUBLISHED, GUEST_PORT)),
            NEIGHBOUR: await requests.lease("b"),
            STRANGER: (await requests.have("c", nics=(nic("service", "other"),))).leases[0],
            MEMBER: (await requests.have("d", nics=(nic("service", "lan", str(OWN[MEMBER])),))).leases[0],
        }
        guests = {row: await stack.enter_async_context(Guest(lease)) for row, lease in leases.items()}
        others = {CLIENT: client, FAR: far, MACHINE: machine}
        stations = {row: each async for row, each in _stations(stack.enter_context(ExitStack()), guests, others)}
        found = await Stage(guests, stations).play(family)
        for task in "abcd":
            await requests.drop(task)
        return found


async def _stations(
    sockets: ExitStack, guests: Mapping[str, Guest], outside: Mapping[str, Outside]
) -> AsyncIterator[tuple[str, Station]]:
    for row, guest in guests.items():
        near = [guests[ITSELF].ip] if row == NEIGHBOUR else []
        yield row, GuestStation(guest, {address: await guest.resolve(address) for address in (guest.gateway, *near)})
    namespaces: dict[str, Callable[[], AbstractContextManager[object]]] = {HOST: nullcontext}
    for row, entered in (namespaces | {row: each.entered for row, each in outside.items()}).items():
        station = NamespaceStation(sockets, entered)
        station.serve()
        yield row, station
    yield LOOPBACK, NamespaceStation(sockets, nullcontext, str(OWN[LOOPBACK]))


@pytest.fixture(scope="module")
def outcomes() -> Iterator[Mapping[str, Mapping[Attempt, str]]]:
    """The outcomes of all attempts, by family."""
    with private_namespace(), TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        bus = PrivateBus(Path(directory))
        (Path(directory) / "service").mkdir()
        with leaving_nothing(Path(directory) / "service", bus) as service:
            yield {family: asyncio.run(_play(service, family)) for family in TABLES}
        bus.close()


@pytest.mark.parametrize(
    ("family", "attempt"),
    [
        pytest.param(family, each, id=f"{family}: {each.row} to {each.column}, {each.via}")
        for family in TABLES
        for each in attempts(family)
    ],
)
def test_a_packet_takes_the_path_of_the_table(
    outcomes: Mapping[str, Mapping[Attempt, str]], family: str, attempt: Attempt
) -> None:
    assert outcomes[family][attempt] == attempt.expected(family)


def test_only_what_no_packet_can_do_is_left_out() -> None:
    """A guest that sends to its own address sends nothing."""
    for rows in TABLES.values():
        left_out = {(row, column) for row, cells in rows.items() for column in cells if cells[column] == IMPOSSIBLE}
        assert left_out == {(ITSELF, ADDRESS)}


def test_each_row_has_a_path_that_shows_when_the_others_would_have_arrived() -> None:
    for family, rows in TABLES.items():
        assert {each.row for each in attempts(family) if each.expected(family) != CLOSED} == set(rows)
