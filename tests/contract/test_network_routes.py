"""Routes of other programs, such as a VPN's, that take the packets for guests: noticed, reported, and their end."""

import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

import pytest
from tests.contract.guest import Guest
from tests.contract.netns import run
from tests.contract.netservice import Client, Service, nic, until
from tests.contract.test_network_ipv6 import refused
from tests.contract.test_network_paths import ask_udp

from solo5_systemd.host.kernel import overtaken
from solo5_systemd.network.model import UNREPAIRED, Lease
from solo5_systemd.network.repair_log import read_repairs
from solo5_systemd.network.routes import RouteWatch

BRIDGE = "solo5-default"
SETTINGS = '[network.default]\nipv4 = "10.88.0.0/16"\nipv6 = "2001:db8:1::/64"\n'


@pytest.fixture
async def client(vpn: str, service: Service) -> AsyncIterator[Client]:
    (service.settings / "solo5.toml").write_text(SETTINGS)
    await service.restart()
    async with service.client() as client:
        yield client
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


def reported(service: Service) -> list[tuple[str, tuple[str, ...]]]:
    """Return what was reported, the oldest first."""
    return [(each.what, tuple(map(str, each.tasks))) for each in read_repairs(service.state)][::-1]


async def test_a_more_specific_route_is_reported_with_its_remedy(client: Client, service: Service, vpn: str) -> None:
    async with guest(client, "a", "10.88.5.7"), guest(client, "b", "10.88.6.7"):
        assert await ask_udp("10.88.5.7", 7) == b"HELLO"
        run("ip", "route", "add", "10.88.5.0/24", "dev", vpn)
        await until(lambda: reported(service) != [])
        [(what, tasks)] = reported(service)
        assert tasks == ("a",)
        assert what.startswith(f"{UNREPAIRED}route 10.88.5.0/24 of link vpn takes the packets for 10.88.5.7 of network")
        with pytest.raises(TimeoutError):
            await refused("10.88.5.7", 7)
        [found] = overtaken([BRIDGE])
        assert (str(found.inside), str(found.route.prefix), found.route.link) == ("10.88.0.0/16", "10.88.5.0/24", vpn)
        remedy = what.partition("gives them back: ")[2].partition(";")[0]
        run("sh", "-ec", remedy)
        assert await ask_udp("10.88.5.7", 7) == b"HELLO"
        await until(lambda: len(reported(service)) == 2)
        assert reported(service)[1] == (
            "route 10.88.5.0/24 of link vpn takes the packets for guests of network default no longer",
            ("a",),
        )
        assert overtaken([BRIDGE]) == ()
        for half in ("10.88.5.0/25", "10.88.5.128/25"):
            run("ip", "route", "delete", half, "dev", BRIDGE)
        await until(lambda: len(reported(service)) == 3)
        run("ip", "link", "set", vpn, "down")  # the kernel sends no message about its routes of IPv4
        await until(lambda: len(reported(service)) == 4)
        assert await ask_udp("10.88.5.7", 7) == b"HELLO"


async def test_a_guest_that_starts_later_is_reported_too(client: Client, service: Service, vpn: str) -> None:
    async with guest(client, "a", "10.88.5.7"):
        run("ip", "route", "add", "10.88.5.0/24", "dev", vpn)
        await until(lambda: len(reported(service)) == 1)
        async with guest(client, "b", "10.88.5.8"), guest(client, "c", "10.88.6.8"):
            await until(lambda: len(reported(service)) == 2)
            what, tasks = reported(service)[1]
            assert (tasks, "for 10.88.5.8 of" in what) == (("b",), True)
            run("ip", "route", "delete", "10.88.5.0/24", "dev", vpn)
            await until(lambda: len(reported(service)) == 3)
            assert reported(service)[2][1] == ("a", "b")


async def test_a_route_of_ipv6_is_reported_with_its_remedy(client: Client, service: Service, vpn: str) -> None:
    async with guest(client, "a", "10.88.5.7") as lease:
        assert lease.address6 is not None
        inside = IPv6Network((int(lease.address6) >> 8 << 8, 120))
        run("ip", "-6", "route", "add", str(inside), "dev", vpn)
        await until(lambda: reported(service) != [])
        [(what, tasks)] = reported(service)
        assert tasks == ("a",)
        assert f"route {inside} of link vpn takes the packets for {lease.address6} of network default" in what
        assert [str(each.route.prefix) for each in overtaken([BRIDGE])] == [str(inside)]
        run("sh", "-ec", what.partition("gives them back: ")[2].partition(";")[0])
        await until(lambda: len(reported(service)) == 2)
        assert overtaken([BRIDGE]) == ()
        route = json.loads(run("ip", "-j", "-6", "route", "get", str(lease.address6)))[0]
        assert route["dev"] == BRIDGE


async def test_a_table_with_precedence_is_reported_with_its_remedy(client: Client, service: Service, vpn: str) -> None:
    """As of Tailscale, whose rule precedes the main table."""
    async with guest(client, "a", "10.88.5.7"):
        run("ip", "route", "add", "default", "dev", vpn, "table", "52")
        run("ip", "rule", "add", "priority", "5270", "lookup", "52")
        await until(lambda: reported(service) != [])
        [(what, _)] = reported(service)
        assert "route 0.0.0.0/0 of link vpn in table 52 takes the packets for 10.88.5.7" in what
        run("sh", "-ec", what.partition("gives them back: ")[2].partition(";")[0])
        assert await ask_udp("10.88.5.7", 7) == b"HELLO"
        await until(lambda: len(reported(service)) == 2)
        run("ip", "rule", "delete", "priority", "1")
        await until(lambda: len(reported(service)) == 3)
        run("ip", "rule", "delete", "priority", "5270")
        await until(lambda: len(reported(service)) == 4)


async def test_a_blackhole_and_an_address_alone_are_reported(client: Client, service: Service, vpn: str) -> None:
    async with guest(client, "a", "10.88.5.7"):
        run("ip", "route", "add", "blackhole", "10.88.5.0/24")
        await until(lambda: len(reported(service)) == 1)
        assert "takes the packets for 10.88.5.7" in reported(service)[0][0]
        run("ip", "route", "delete", "blackhole", "10.88.5.0/24")
        await until(lambda: len(reported(service)) == 2)
        run("ip", "route", "add", "10.88.5.7", "dev", vpn)
        await until(lambda: len(reported(service)) == 3)
        run("sh", "-ec", reported(service)[2][0].partition("gives them back: ")[2].partition(";")[0])
        assert await ask_udp("10.88.5.7", 7) == b"HELLO"
        await until(lambda: len(reported(service)) == 4)


async def test_a_wider_route_or_one_beside_is_no_reason_for_a_report(
    client: Client, service: Service, vpn: str
) -> None:
    async with guest(client, "a", "10.88.5.7") as lease:
        for route in ("10.0.0.0/8", "10.89.0.0/24", "0.0.0.0/1", "2001:db8::/32", "2001:db8:2::/64", "::/1"):
            run("ip", "-6" if ":" in route else "-4", "route", "add", route, "dev", vpn)
        run("ip", "route", "add", "10.88.5.9", "dev", vpn)  # of no guest
        run("ip", "link", "set", BRIDGE, "down")  # its own route is lost, and restored
        await until(lambda: any("is restored" in what for what, _ in reported(service)))
        await until(lambda: f"{lease.address} dev {BRIDGE}" in run("ip", "route", "get", str(lease.address)))
        assert await ask_udp("10.88.5.7", 7) == b"HELLO"
        # What was sent before has been handled: a report of another route follows it.
        run("ip", "route", "add", "10.88.5.0/24", "dev", vpn)
        await until(lambda: any(what.startswith(UNREPAIRED) for what, _ in reported(service)))
        assert len([what for what, _ in reported(service) if what.startswith(UNREPAIRED)]) == 1


async def test_a_route_that_came_while_the_service_was_dead_is_reported(
    client: Client, service: Service, vpn: str
) -> None:
    async with guest(client, "a", "10.88.5.7"):
        service.kill()
        run("ip", "route", "add", "10.88.5.0/24", "dev", vpn)
        await service.restart()
        await until(lambda: len(reported(service)) == 1)


def test_the_kernel_drops_messages_of_routes_elsewhere(vpn: str, tmp_path: Path) -> None:
    """A router of the Internet changes thousands of routes a second."""
    inside, inside6 = IPv4Network("10.88.0.0/16"), IPv6Network("2001:db8:1::/64")
    with closing(RouteWatch()) as watch:
        watch.watch([inside, inside6])

        def heard() -> int:
            count = 0
            try:
                while True:
                    count += len(list(watch.receive()))
            except BlockingIOError:
                return count

        begun = time.monotonic()
        batch = "".join(f"route add 10.{n}.{m}.0/24 dev {vpn}\n" for n in (87, 89) for m in range(250))
        batch += "".join(f"route add 2001:db8:2:{n}::/64 dev {vpn}\n" for n in range(2, 250))
        (tmp_path / "routes").write_text(batch)
        run("ip", "-batch", str(tmp_path / "routes"))
        print(f"{batch.count(chr(10))} routes in {time.monotonic() - begun:.2f} s")
        assert heard() == 0
        run("ip", "route", "add", "10.88.250.0/24", "dev", vpn)
        run("ip", "-6", "route", "add", "2001:db8:1:0:1::/80", "dev", vpn)
        assert heard() == 2
        run("ip", "route", "add", "10.0.0.0/8", "dev", vpn)
        run("ip", "rule", "add", "to", "10.88.0.0/16", "lookup", "52")
        assert heard() == 1
        watch.watch([*inside.subnets(new_prefix=24), *inside6.subnets(new_prefix=72)])
        run("ip", "route", "add", "10.88.251.0/24", "dev", vpn)
        assert heard() == 1, "with more networks than a filter has room for"
        watch.watch([])
        run("ip", "route", "delete", "10.88.250.0/24", "dev", vpn)
        assert heard() == 0
