"""Routes and addresses of other programs: those that take the packets for guests are reported with the remedy."""

import json
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path

import pytest
from tests.contract.guest import Guest
from tests.contract.netns import run
from tests.contract.netservice import Client, Service, nic, until
from tests.contract.test_network_ipv6 import refused
from tests.contract.test_network_paths import ask_udp

from solo5_systemd.base.names import NetworkName, TaskName
from solo5_systemd.network.lease_files import read_lease_records, read_networks, read_repairs
from solo5_systemd.network.links import Links
from solo5_systemd.network.model import UNREPAIRED, Lease, Network
from solo5_systemd.network.routes import overtaken

BRIDGE = "solo5-default"
SETTINGS = '[network.default]\nipv4 = "10.88.0.0/16"\nipv6 = "2001:db8:1::/64"\n'


@pytest.fixture
async def client(vpn: str, service: Service) -> AsyncIterator[Client]:
    async with service.running(SETTINGS) as client:
        yield client
    run("ip", "route", "flush", "type", "blackhole")
    run("ip", "link", "set", vpn, "down")  # with its routes


@pytest.fixture
def vpn(namespace: None) -> Iterator[str]:
    """A link like that of a VPN."""
    run("ip", "link", "add", "vpn", "type", "veth", "peer", "name", "far")
    run("ip", "link", "set", "far", "up")
    run("ip", "link", "set", "vpn", "up")
    yield "vpn"
    run("ip", "link", "delete", "vpn")


@asynccontextmanager
async def guest(client: Client, task: str, address: str) -> AsyncIterator[Lease]:
    reservation = await client.have(task, nics=(nic("service", ip=address),))
    async with Guest(reservation.leases[0]):
        yield reservation.leases[0]
    await client.drop(task)


def reported(service: Service) -> list[str]:
    """Return what was reported, the newest first."""
    return [each.what for each in read_repairs()]


def found(service: Service) -> list[str]:
    """Return the guests that `solo5ctl doctor` finds, with their routes."""
    leases = [lease for record in read_lease_records() for lease in record.reservation.leases]
    return [f"{each.guest}: {each.route}" for each in overtaken(read_networks(), leases)]


def give_back(what: str) -> None:
    """Run the command that a report names."""
    run("sh", "-ec", what.partition("gives them back: ")[2].partition(";")[0])


@pytest.mark.parametrize(
    ("commands", "route"),
    [
        (["ip route add 10.88.5.0/24 dev vpn"], "route 10.88.5.0/24 of link vpn"),
        (["ip route add blackhole 10.88.5.0/24"], "a route that drops packets"),
        (  # as of Tailscale, whose rule precedes the main table
            ["ip route add default dev vpn table 52", "ip rule add priority 5270 lookup 52"],
            "route 0.0.0.0/0 of link vpn in table 52",
        ),
    ],
    ids=["more specific", "blackhole", "table with precedence"],
)
async def test_a_route_that_takes_packets_is_reported_with_its_remedy(
    client: Client, service: Service, commands: list[str], route: str
) -> None:
    async with guest(client, "a", "10.88.5.7"):
        assert await ask_udp("10.88.5.7", 7) == b"HELLO"
        for command in commands:
            run(*command.split())
        await client.attach(TaskName("a"))
        [what] = reported(service)
        assert what.startswith(f"{UNREPAIRED}{route} takes the packets for 10.88.5.7 of network default. ")
        assert found(service) == [f"10.88.5.7: {route}"]
        with pytest.raises((TimeoutError, OSError)):
            await refused("10.88.5.7", 7)
        give_back(what)
        assert await ask_udp("10.88.5.7", 7) == b"HELLO"
        assert found(service) == []


async def test_only_the_guests_whose_packets_are_taken_are_named(client: Client, service: Service, vpn: str) -> None:
    async with guest(client, "a", "10.88.5.7"):
        run("ip", "route", "add", "10.88.5.0/24", "dev", vpn)
        async with guest(client, "b", "10.88.6.7"), guest(client, "c", "10.88.5.9"):
            assert [[*each.tasks] for each in read_repairs()] == [["c"]]


async def test_a_route_of_ipv6_is_reported_with_its_remedy(client: Client, service: Service, vpn: str) -> None:
    async with guest(client, "a", "10.88.5.7") as lease:
        assert lease.address6 is not None
        inside = IPv6Network((int(lease.address6) >> 8 << 8, 120))
        run("ip", "-6", "route", "add", str(inside), "dev", vpn)
        await client.attach(TaskName("a"))
        [what] = reported(service)
        assert f"route {inside} of link vpn takes the packets for {lease.address6} of network default" in what
        give_back(what)
        assert found(service) == []
        route = json.loads(run("ip", "-j", "-6", "route", "get", str(lease.address6)))[0]
        assert route["dev"] == BRIDGE


async def test_a_wider_route_or_one_beside_is_no_reason_for_a_report(
    client: Client, service: Service, vpn: str
) -> None:
    async with guest(client, "a", "10.88.5.7") as lease:
        for route in ("10.0.0.0/8", "10.89.0.0/24", "0.0.0.0/1", "2001:db8::/32", "2001:db8:2::/64", "::/1"):
            run("ip", "-6" if ":" in route else "-4", "route", "add", route, "dev", vpn)
        run("ip", "route", "add", "10.88.5.9", "dev", vpn)  # of no guest
        run("ip", "link", "set", BRIDGE, "down")  # its own route is lost, and restored
        await client.attach(TaskName("a"))
        assert all(not what.startswith(UNREPAIRED) for what in reported(service))
        assert found(service) == []
        await until(lambda: f"{lease.address} dev {BRIDGE}" in run("ip", "route", "get", str(lease.address)))
        assert await ask_udp("10.88.5.7", 7) == b"HELLO"


MANY, CALLS_MAX = 500, 20
"""Addresses of each family, and how many calls of functions one that is read may cost; pyroute2 makes 50 and more."""

SHARED = Network(
    name=NetworkName("default"),
    bridge=BRIDGE,
    ipv4=IPv4Network("10.88.0.0/16"),
    gateway4=IPv4Address("10.88.0.1"),
    mtu=1500,
    masquerade=True,
    shared=True,
    ipv6=IPv6Network("2001:db8:1::/64"),
    gateway6=IPv6Address("2001:db8:1::1"),
)


def calls(read: Callable[[], object]) -> int:
    """Return how many Python functions are called while something is read."""
    count = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        read()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return count


def test_very_many_routes_and_addresses_of_other_programs_are_read_with_little_work_for_each(
    vpn: str, tmp_path: Path
) -> None:
    """A job may be root of the network namespace of its group; starts of other tasks wait while they are read."""
    numbers = [f"{number // 250}.{number % 250}" for number in range(MANY)]
    lines = [f"address add 10.99.{each}/32 dev {BRIDGE}" for each in numbers]
    lines += [f"route add 10.98.{each}/32 dev {vpn}" for each in numbers]
    lines += [f"address add 2001:db8:2::{number:x}/128 dev {BRIDGE} nodad" for number in range(MANY)]
    with closing(Links(lambda task: 0)) as links:
        links.make_bridge(SHARED)
        (tmp_path / "lines").write_text("".join(f"{line}\n" for line in lines))
        run("ip", "-batch", str(tmp_path / "lines"))
        assert links.is_whole(SHARED)
        assert len(links.routes.addresses((4, 6))) > 2 * MANY
        reads: dict[str, tuple[Callable[[], object], int]] = {  # with how many addresses and routes they read
            "a bridge": (lambda: links.is_whole(SHARED), 4 * MANY),
            "MTU of the uplink": (lambda: links.routes.uplink_mtu(), 4 * MANY),
            "IPv6 of the uplink": (lambda: links.routes.uplink_has_ipv6(), 4 * MANY),
            "ranges": (lambda: [*links.routes.ranges(())], 3 * MANY),
            "prefixes": (lambda: [*links.routes.prefixes(())], 2 * MANY),
            "addresses": (lambda: links.routes.addresses((4, 6)), 2 * MANY),
        }
        cost = {what: calls(read) / items for what, (read, items) in reads.items()}
        assert max(cost.values()) <= CALLS_MAX, cost
    run("ip", "link", "delete", BRIDGE)
