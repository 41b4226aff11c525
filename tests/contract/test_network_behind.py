"""Guests that route: packets of the addresses behind them, and for these, through a kernel."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, nullcontext
from ipaddress import IPv4Address, IPv6Address

import pytest
from tests.contract.family import until_pinged
from tests.contract.guest import UDP, Guest, _udp
from tests.contract.guest6 import Guest6, datagram
from tests.contract.netns import Outside, run
from tests.contract.netservice import Client, Service, host_state, nic, until

from solo5_systemd.base.errors import InvalidRequestError, Solo5Error, TakenError
from solo5_systemd.base.names import TaskName
from solo5_systemd.network.conntrack import _GET, _NFGENMSG, _TUPLE_ORIG, _source
from solo5_systemd.network.model import Lease, Limits
from solo5_systemd.network.netlink import NETLINK_NETFILTER, NFGENMSG, NLM_DUMP, NetlinkSocket
from solo5_systemd.settings.addresses import routes
from solo5_systemd.settings.egress import egress

BEHIND, INSIDE, UNROUTED = "192.168.2.0/24", IPv4Address("192.168.2.7"), IPv4Address("192.168.3.7")
PERMITTED = 'routes = ["192.168.0.0/16", "10.0.0.0/8", "192.0.2.0/24", "2001:db8::/32"]\n'


def default(options: str = "") -> str:
    return f"[network.default]\n{PERMITTED}{options}[network.back]\n"


async def have(client: Client, task: str, *ranges: str, network: str = "default") -> Lease:
    requested = nic("service", network, limits=Limits(routes=routes(ranges)))
    return (await client.have(task, nics=(requested,))).leases[0]


def spoofed(guest: Guest) -> int:
    listed = json.loads(run("nft", "-j", "list", "set", "bridge", "solo5", "dropped_spoofed"))["nftables"]
    elements = [each["elem"] for item in listed for each in item.get("set", {}).get("elem", ())]
    return sum(each["counter"]["packets"] for each in elements if each["val"] == guest.tap)


@asynccontextmanager
async def listener(outside: Outside) -> AsyncIterator[socket.socket]:
    with outside.entered():
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with closing(made):
        made.bind((outside.address, 9999))
        made.setblocking(False)
        yield made


async def sent_from(guest: Guest, source: IPv4Address, outside: Outside) -> None:
    mac = await guest.resolve(guest.gateway)
    body = _udp(4000, 9999, b"from behind")
    guest.send(guest.ipv4(mac, IPv4Address(outside.address), UDP, body, source=source))


async def test_what_is_behind_a_guest_reaches_the_outside_and_nothing_else_does(
    service: Service, outside: Outside
) -> None:
    (service.settings / "solo5.toml").write_text(default())
    await service.restart()
    before = host_state()
    async with service.client() as client:
        async with Guest(await have(client, "vpn", BEHIND)) as guest, listener(outside) as heard:
            await until_pinged(guest)
            await sent_from(guest, UNROUTED, outside)
            await until(lambda: spoofed(guest) == 1)
            await sent_from(guest, INSIDE, outside)
            async with asyncio.timeout(5):
                data, (sender, _) = await asyncio.get_running_loop().sock_recvfrom(heard, 100)
            assert (data, sender) == (b"from behind", outside.host), "translated as the network's own"
            # And back, from the host: routed to the guest.
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as host:
                host.sendto(b"to behind", (str(INSIDE), 5000))
                assert (await guest.heard_udp(b"to behind"))[0] == guest.gateway
        await client.drop("vpn")
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
            (service.settings / "solo5.toml").write_text("[network.back]\n")
            await service.restart()
            await sent_from(guest, INSIDE, outside)
            await until(lambda: spoofed(guest) == 1)
        requested = nic("service", limits=Limits(routes=routes([BEHIND]), egress=egress(["none"])))
        with pytest.raises(InvalidRequestError, match="is not permitted"):
            await client.have("other", nics=(requested,))


async def test_what_is_behind_a_guest_by_ipv6(service: Service) -> None:
    (service.settings / "solo5.toml").write_text(default("ipv6 = true\n"))
    await service.restart()
    before = host_state()
    async with service.client() as client:
        async with Guest6(await have(client, "vpn", "2001:db8:2::/64")) as guest:
            await guest.pinged6(guest.gateway6, b"up")
            hop = await guest.resolve(guest.gateway6)
            for count, source in ((1, IPv6Address("2001:db8:3::7")), (1, IPv6Address("2001:db8:2::7"))):
                body = datagram(source, guest.gateway6, 4000, 9999, b"from behind")
                guest.send(guest.ipv6(hop, guest.gateway6, UDP, body, source=source))
                await guest.pinged6(guest.gateway6, b"after it")
                assert spoofed(guest) == count, source
            with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as host:
                host.sendto(b"to behind", ("2001:db8:2::7", 5000))
                await guest.heard(lambda frame: frame.endswith(b"to behind"))
        await client.drop("vpn")
    assert host_state() == before
