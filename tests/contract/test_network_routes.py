"""Routes of guests, and of other programs: those that take the packets for guests are reported with the remedy."""

import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, nullcontext
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path

import pytest
from tests.contract.family import until_pinged
from tests.contract.guest import UDP, Guest, _udp, datagram
from tests.contract.netns import Outside, counted, run
from tests.contract.netservice import Client, Service, host_state, nic, until
from tests.contract.sockets import ask_udp, bound, next_at
from tests.contract.test_network_ipv6 import refused

from solo5_systemd.base.errors import InvalidRequestError, Solo5Error, TakenError
from solo5_systemd.base.names import NetworkName, TaskName
from solo5_systemd.network.conntrack import _GET, _NFGENMSG, _TUPLE_ORIG, _source
from solo5_systemd.network.endpoints import UNREPAIRED
from solo5_systemd.network.lease_files import read_lease_records, read_networks, read_repairs
from solo5_systemd.network.links import Links
from solo5_systemd.network.model import Lease, Limits
from solo5_systemd.network.netlink import NETLINK_NETFILTER, NFGENMSG, NLM_DUMP, NetlinkSocket
from solo5_systemd.network.routes import overtaken
from solo5_systemd.settings.addresses import routes
from solo5_systemd.settings.egress import egress
from solo5_systemd.settings.network_policy import Network

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
        (["ip -6 route add INSIDE dev vpn"], "route INSIDE of link vpn"),
    ],
    ids=["more specific", "blackhole", "table with precedence", "IPv6"],
)
async def test_a_route_that_takes_packets_is_reported_with_its_remedy(
    client: Client, service: Service, commands: list[str], route: str
) -> None:
    async with guest(client, "a", "10.88.5.7") as lease:
        address = str(lease.address6 if "-6" in commands[0] else lease.address)
        inside = str(IPv6Network(f"{lease.address6}/120", strict=False))
        route = route.replace("INSIDE", inside)
        assert await ask_udp(address, 7) == b"HELLO"
        for command in commands:
            run(*command.replace("INSIDE", inside).split())
        await client.attach(TaskName("a"))
        [what] = reported(service)
        assert what.startswith(f"{UNREPAIRED}{route} takes the packets for {address} of network default. ")
        assert found(service) == [f"{address}: {route}"]
        with pytest.raises((TimeoutError, OSError)):
            await refused(address, 7)
        give_back(what)
        assert await ask_udp(address, 7) == b"HELLO"
        assert found(service) == []


async def test_only_the_guests_whose_packets_are_taken_are_named(client: Client, vpn: str) -> None:
    async with guest(client, "a", "10.88.5.7"):
        run("ip", "route", "add", "10.88.5.0/24", "dev", vpn)
        async with guest(client, "b", "10.88.6.7"), guest(client, "c", "10.88.5.9"):
            assert [[*each.tasks] for each in read_repairs()] == [["c"]]


async def test_a_wider_or_an_adjacent_route_is_no_reason_for_a_report(
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
            "ranges": (lambda: [*links.routes.ranges(())], 5 * MANY),
            "addresses": (lambda: links.routes.addresses((4, 6)), 2 * MANY),
        }
        cost = {what: calls(read) / items for what, (read, items) in reads.items()}
        assert max(cost.values()) <= CALLS_MAX, cost
    run("ip", "link", "delete", BRIDGE)


# -- guests that route: packets of the addresses behind them, and for these, through a kernel ------------------------


BEHIND, INSIDE, UNROUTED = "192.168.2.0/24", IPv4Address("192.168.2.7"), IPv4Address("192.168.3.7")
PERMITTED = 'routes = ["192.168.0.0/16", "10.0.0.0/8", "192.0.2.0/24", "2001:db8::/32"]\n'


def default(options: str = "") -> str:
    return f"[network.default]\n{PERMITTED}{options}[network.back]\n"


async def have(client: Client, task: str, *ranges: str, network: str = "default") -> Lease:
    requested = nic("service", network, limits=Limits(routes=routes(ranges)))
    return (await client.have(task, nics=(requested,))).leases[0]


async def sent_from(guest: Guest, source: IPv4Address, outside: Outside) -> None:
    mac = await guest.resolve(guest.gateway)
    body = _udp(4000, 9999, b"from behind")
    guest.send(guest.ipv4(mac, IPv4Address(outside.address), UDP, body, source=source))


async def test_what_is_behind_a_guest_reaches_the_outside_and_nothing_else_does(
    service: Service, outside: Outside
) -> None:
    before = host_state()
    with outside.entered():
        heard = bound(outside.address, 9999)
    async with service.running(default()) as client, Guest(await have(client, "vpn", BEHIND)) as guest:
        await until_pinged(guest)
        await sent_from(guest, UNROUTED, outside)
        await until(lambda: counted("bridge", "dropped_spoofed").get(guest.tap, 0) == 1)
        await sent_from(guest, INSIDE, outside)
        data, (sender, _) = await next_at(heard)
        assert (data, sender) == (b"from behind", outside.host), "translated as the network's own"
        # And back, from the host: routed to the guest.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as host:
            host.sendto(b"to behind", (str(INSIDE), 5000))
            assert (await guest.heard_udp(b"to behind"))[0] == guest.gateway
    heard.close()
    assert host_state() == before


def flows_from(source: IPv4Address) -> int:
    """Return the number of entries in the connection tracking table whose first packet had this source."""
    with closing(NetlinkSocket(NETLINK_NETFILTER)) as netfilter:
        bodies = list(netfilter.request(_GET, NLM_DUMP, _NFGENMSG[source.version]))
    return sum(_source(body[NFGENMSG.size :], _TUPLE_ORIG, source.version) == source.packed for _, body in bodies)


@pytest.mark.parametrize("namespace_of_others", [False, True], ids=["on the host", "in a group"])
async def test_a_release_deletes_the_flows_of_what_is_behind_a_guest(
    service: Service, outside: Outside, namespace_of_others: bool
) -> None:
    network, path = ("namespace", outside.path) if namespace_of_others else ("default", "")
    away = IPv4Address(outside.host if namespace_of_others else outside.address)
    async with service.running(default()) as client:
        leases = {}
        for task, ranges in (("neighbour", []), ("vpn", [BEHIND])):  # the first one keeps the tables
            wanted = nic("service", network, limits=Limits(routes=routes(ranges)))
            [leases[task]] = (await client.reserve(TaskName(task), (wanted,), (), namespace=path)).leases
            await client.attach(TaskName(task))
        with outside.entered() if namespace_of_others else nullcontext():
            async with Guest(leases["vpn"]) as guest:
                mac = await guest.resolve(guest.gateway)
                guest.send(guest.ipv4(mac, away, UDP, _udp(4000, 9999, b"from behind"), source=INSIDE))
                await until(lambda: flows_from(INSIDE) == 1)
            await client.drop("vpn")
            assert flows_from(INSIDE) == 0


async def test_guests_of_its_network_reach_it_and_those_of_another_do_not(service: Service) -> None:
    async with (
        service.running(default()) as client,
        Guest(await have(client, "vpn", BEHIND)) as vpn,
        Guest(await have(client, "web")) as web,
        Guest(await have(client, "far", network="back")) as far,
    ):
        for each in (vpn, web, far):
            await until_pinged(each)
        await far.send_udp(INSIDE, 5000, b"from far")
        await web.send_udp(INSIDE, 5000, b"from web")
        assert (await vpn.heard_udp(b"from web"))[0] == web.ip
        assert not [frame for frame in vpn.frames if b"from far" in frame]


@pytest.mark.parametrize(
    "harm", [f"ip route del {BEHIND}", "ip link set solo5-default down", "ip link del solo5-default"]
)
async def test_its_routes_survive_other_programs_and_restarts_of_the_service(service: Service, harm: str) -> None:
    async with service.running(default()) as client:
        lease = await have(client, "vpn", BEHIND, "192.168.9.1/32")
        async with Guest(lease):
            before = host_state()
            assert f"{BEHIND} via {lease.address} dev {lease.bridge}" in run("ip", "route", "show", BEHIND)
            service.kill()
            run(*harm.split())
            await service.restart()
            await until(lambda: host_state() == before)
            (service.state / "tasks/vpn.json").write_text("{")  # the record is rebuilt from the kernel's state
            service.kill()
            await service.restart()
            assert [lease.limits for lease in (await client.reservations())[0].leases] == [
                Limits(routes=routes(["192.168.2.0/24", "192.168.9.1/32"]))
            ]
        await client.drop("vpn")
        await client.attach(TaskName("vpn"))  # as by systemd
        assert run("ip", "route", "show", BEHIND) != ""


async def test_a_range_of_others_is_refused(service: Service, outside: Outside) -> None:
    refusals: list[tuple[str, type[Solo5Error], str]] = [
        ("172.16.0.0/24", InvalidRequestError, "is not permitted in network default"),
        ("10.153.0.0/25", TakenError, "of network default: expected a range that nothing else has"),
        ("192.0.2.0/28", TakenError, "of this host's routes or addresses"),
        ("192.168.2.128/25", TakenError, "192.168.2.0/24 of task vpn"),
    ]
    async with service.running(default()) as client:
        await have(client, "vpn", BEHIND)
        before = host_state()
        for wanted, error, sentence in refusals:
            with pytest.raises(error) as raised:
                await have(client, "other", wanted)
            assert sentence in str(raised.value)
            assert host_state() == before


async def test_what_the_operator_takes_back_is_closed_for_a_running_guest(service: Service, outside: Outside) -> None:
    async with service.running(default()) as client:
        async with Guest(await have(client, "vpn", BEHIND)) as guest:
            await until_pinged(guest)
            service.kill()
            service.configure("[network.back]\n")
            await service.restart()
            await sent_from(guest, INSIDE, outside)
            await until(lambda: counted("bridge", "dropped_spoofed").get(guest.tap, 0) == 1)
        requested = nic("service", limits=Limits(routes=routes([BEHIND]), egress=egress(["none"])))
        with pytest.raises(InvalidRequestError, match="is not permitted"):
            await client.have("other", nics=(requested,))


async def test_what_is_behind_a_guest_by_ipv6(service: Service) -> None:
    before = host_state()
    async with (
        service.running(default("ipv6 = true\n")) as client,
        Guest(await have(client, "vpn", "2001:db8:2::/64")) as guest,
    ):
        await guest.pinged6(guest.gateway6, b"up")
        hop = await guest.resolve(guest.gateway6)
        for count, source in ((1, IPv6Address("2001:db8:3::7")), (1, IPv6Address("2001:db8:2::7"))):
            body = datagram(source, guest.gateway6, 4000, 9999, b"from behind")
            guest.send(guest.ipv6(hop, guest.gateway6, UDP, body, source=source))
            await guest.pinged6(guest.gateway6, b"after it")
            assert counted("bridge", "dropped_spoofed").get(guest.tap, 0) == count, source
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as host:
            host.sendto(b"to behind", ("2001:db8:2::7", 5000))
            await guest.heard(lambda frame: frame.endswith(b"to behind"))
    assert host_state() == before
