"""Guests in a network namespace of other programs, as of a Nomad group in bridge mode."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

import pytest
from tests.contract.guest import (
    ACK,
    ADVERT,
    ALL_NODES,
    ICMPV6,
    NOWHERE,
    REDIRECT,
    ROUTER_ADVERT,
    SYN,
    TCP,
    UDP,
    Address,
    Guest,
    datagram,
    kind_of,
    multicast,
)
from tests.contract.netns import BRIDGE_NF6, CLIENT6, HOST6, Outside, link, run
from tests.contract.netservice import Client, Service, host_state, nic, tcp, udp, until
from tests.contract.sockets import arrived, ask_tcp, ask_udp, bound, next_at, wire
from tests.contract.test_network_ipv6 import sysctls6
from tests.contract.test_network_policy import FORWARD

from solo5_systemd.base.descriptors import FD_SETSIZE
from solo5_systemd.base.errors import HostError, InvalidRequestError, TakenError
from solo5_systemd.base.names import DeviceName, TaskName
from solo5_systemd.network.drops import of_nics
from solo5_systemd.network.model import Limits, NicRequest, PortRequest, Reservation
from solo5_systemd.network.use import dropped_by_namespace
from solo5_systemd.networkd.namespaces import NAMESPACES_MAX
from solo5_systemd.settings.egress import egress

NIC = (nic("service", "namespace"),)
GROUP6 = CLIENT6


def state() -> tuple[object, ...]:
    """Return all state of this network namespace that the service may change."""
    nf = BRIDGE_NF6.read_text() if BRIDGE_NF6.exists() else ""
    routes = run("ip", "-6", "route", "show", "table", "local").splitlines()
    return *host_state(), sysctls6(), nf, [route for route in routes if route.startswith("local ::1")]


@contextmanager
def unchanged(group: Outside, bridge_nf: str = "0") -> Iterator[Outside]:
    """A group, with or without br_netfilter, if the kernel has it; afterwards it is as before."""
    with group.entered():
        if BRIDGE_NF6.exists():
            BRIDGE_NF6.write_text(bridge_nf)
        before = state()
    yield group
    with group.entered():
        assert state() == before, "nothing of the service is left"


def routed(outside: Outside) -> Outside:
    outside.ip("link", "set", "lo", "up")
    outside.ip("route", "add", "default", "via", outside.host)
    return outside


def with_ipv6(outside: Outside) -> Outside:
    run("ip", "address", "add", f"{HOST6}/64", "dev", f"{outside.link}-in", "nodad")
    outside.ip("address", "add", f"{GROUP6}/64", "dev", f"{outside.link}-out", "nodad")
    outside.ip("-6", "route", "add", "default", "via", HOST6)
    return outside


@pytest.fixture
def group(outside: Outside) -> Iterator[Outside]:
    """The namespace of a group, whose address is 192.0.2.2; its gateway 192.0.2.1 is the host."""
    with unchanged(routed(outside)) as group:
        yield group


@pytest.fixture
def dual(outside: Outside) -> Outside:
    """The same with an address of each family."""
    return with_ipv6(routed(outside))


BRIDGED = ["bridged packets", "bridged packets to ip6tables"]
BOTH = pytest.mark.parametrize("group6", ["0", "1"], ids=BRIDGED, indirect=True)


@pytest.fixture
def group6(request: pytest.FixtureRequest, dual: Outside) -> Iterator[Outside]:
    """The same, with br_netfilter, or as a parameter has it."""
    with unchanged(dual, getattr(request, "param", "1")) as group:
        yield group


@dataclass(frozen=True)
class Place:
    """A group for the tests of both families, and the addresses of one: of the host, the group and the loopback."""

    group: Outside
    host: str
    address: str
    loopback: str
    every: str

    def own(self, guest: Guest) -> Address:
        return guest.own(ip_address(self.host))

    def router(self, guest: Guest) -> Address:
        return guest.router(ip_address(self.host))


@pytest.fixture(params=[None, "0", "1"], ids=["IPv4", *(f"IPv6, {each}" for each in BRIDGED)])
def place(request: pytest.FixtureRequest, outside: Outside) -> Iterator[Place]:
    group = routed(outside) if request.param is None else with_ipv6(routed(outside))
    with unchanged(group, request.param or "0"):
        if request.param is None:
            yield Place(group, group.host, group.address, "127.0.0.1", "0.0.0.0")
        else:
            yield Place(group, HOST6, GROUP6, "::1", "::")


@asynccontextmanager
async def opened(
    client: Client, group: Outside, task: str, *ports: PortRequest, nics: tuple[NicRequest, ...] = NIC
) -> AsyncIterator[Guest]:
    [lease] = (await client.reserve(TaskName(task), nics, ports, namespace=group.path)).leases
    await client.attach(TaskName(task))
    async with Guest(lease) as guest:
        await guest.resolve(guest.gateway if lease.ipv6 is None else guest.gateway6)
        yield guest
    await client.drop(task)


async def reserved(client: Client, group: Outside, task: str, *ports: PortRequest) -> Reservation:
    return await client.reserve(TaskName(task), NIC, ports, namespace=group.path)


async def test_a_guest_has_the_ports_of_its_namespace(service: Service, place: Place) -> None:
    """At its addresses and the loopback of each family; from there, its clients of IPv6 have its gateway's address."""
    before = host_state()
    async with service.running() as client, opened(client, place.group, "web", tcp(8080), udp(5353)) as web:
        assert host_state() == before, "the host has none of it"
        for to in dict.fromkeys((place.group.address, place.address)):
            assert await ask_tcp(to, 8080) == b"HELLO"
            assert await ask_udp(to, 5353) == b"HELLO"
        with place.group.entered():
            for to in dict.fromkeys(("127.0.0.1", place.group.address, place.address, place.loopback)):
                assert await ask_tcp(to, 8080) == b"HELLO"
                assert await ask_udp(to, 5353) == b"HELLO"
        seen = [IPv6Address(HOST6), IPv6Address(GROUP6), web.gateway6] if place.address == GROUP6 else []
        assert sources(web, TCP) == sources(web, UDP) == seen


async def test_the_traffic_of_its_nic_is_counted(service: Service, group: Outside) -> None:
    async with service.running() as client:
        async with opened(client, group, "web") as web:
            await web.send_udp(IPv4Address(group.host), 9, b"out")
            [counted] = (await client.traffic())[TaskName("web")].values()
            assert counted.sent.packets > 0
            assert counted.received.packets > 0
        assert TaskName("web") not in await client.traffic()


async def test_packets_that_its_filter_drops_are_counted_for_its_nic(service: Service, group: Outside) -> None:
    (service.settings / "own.toml").write_text(
        f'[network.namespace]\negress = ["{group.host}:9/udp"]\n[network.default]\nrate = ["sent-packets=10000"]\n'
    )
    async with service.running() as client:
        on_host = await client.lease("host")
        async with opened(client, group, "web") as web:
            for port in (9, 10, 11):
                await web.send_udp(IPv4Address(group.host), port, b"out")

            async def counted() -> Mapping[str, int]:
                counts = dropped_by_namespace(await client.networks())
                found = (await client.endpoints())[TaskName("web")]
                return of_nics(found.nics, counts[group.path])[DeviceName("service")]

            async with asyncio.timeout(10):
                while (await counted())["egress"] < 2:  # noqa: ASYNC110 - the packets are on their way
                    await asyncio.sleep(0.05)
            networks = {(each.namespace, str(each.name)): each for each in await client.networks()}
            assert networks.keys() == {("", "default"), ("", "namespace"), (group.path, "namespace")}
            assert networks["", "default"].leases == networks[group.path, "namespace"].leases == 1
            assert str(networks[group.path, "namespace"].policy.rate) == "sent-packets=10000"
        assert {each.namespace for each in await client.networks()} == {""}
        assert on_host.network == "default"


async def test_a_restarted_service_knows_its_namespaces(service: Service, group: Outside) -> None:
    async with service.running() as client:
        [lease] = (await reserved(client, group, "web", tcp(8080))).leases
        await client.attach(TaskName("web"))
        with group.entered():
            opened = Guest(lease)
        async with opened:
            service.kill()
            await service.restart()
            assert await ask_tcp(group.address, 8080) == b"HELLO"
            with group.entered():
                run("nft", "flush", "ruleset")
        await client.collect(dry_run=False)
        assert await client.reservation(TaskName("web")) is not None


async def test_guests_are_not_released_if_their_namespace_cannot_be_restored(service: Service, group: Outside) -> None:
    """Another program's link has the name of their bridge, until it is deleted."""
    async with service.running() as client:
        [lease] = (await reserved(client, group, "web", tcp(8080))).leases
        await client.attach(TaskName("web"))
        service.kill()
        for words in (f"delete {lease.bridge}", f"add {lease.bridge} type veth peer name theirs"):
            group.ip("link", *words.split())
        await service.restart()
        await client.collect(dry_run=False)
        assert await client.reservation(TaskName("web")) is not None
        group.ip("link", "delete", lease.bridge)
        await client.collect(dry_run=False)
        async with Guest(lease):
            with group.entered():
                assert await ask_tcp("127.0.0.1", 8080) == b"HELLO"
    assert f"network namespace {group.path} cannot be restored" in service.log.read_text()


async def test_a_released_task_is_attached_in_its_namespace_again(group: Outside, client: Client) -> None:
    [lease] = (await reserved(client, group, "web", tcp(8080))).leases
    await client.attach(TaskName("web"))
    await client.drop("web")
    await client.attach(TaskName("web"))
    with group.entered():
        assert link(lease.tap)
        async with Guest(lease):
            assert await ask_tcp("127.0.0.1", 8080) == b"HELLO"
    assert not link(lease.tap)


async def test_a_port_of_a_sidecar_is_taken(service: Service, group: Outside) -> None:
    with group.entered():
        listener = bound("0.0.0.0", 5353)
    async with service.running() as client:
        with closing(listener), pytest.raises(TakenError, match="port 5353/udp is taken by another process"):
            await reserved(client, group, "web", udp(5353))
        async with opened(client, group, "web", udp(5353)):
            with pytest.raises(TakenError, match="port 5353/udp is taken by task web"):
                await reserved(client, group, "other", udp(5353))


async def test_what_is_no_namespace_is_refused(client: Client) -> None:
    for path in ("/run/netns/none", "/proc/self/ns/mnt", "/etc/passwd", "/etc", "/dev/null", "relative"):
        with pytest.raises(HostError, match="is no network namespace"):
            await client.reserve(TaskName("web"), NIC, (), namespace=path)
        assert await client.reservation(TaskName("web")) is None


async def test_a_namespace_that_is_gone_leaves_nothing(service: Service, client: Client) -> None:
    group = Outside("gone", "198.51.100.1", "198.51.100.2")
    await reserved(client, group, "web", tcp(8080))
    await client.attach(TaskName("web"))
    service.kill()
    group.close()
    await service.restart()
    await client.drop("web")
    assert await client.reservation(TaskName("web")) is None


async def test_a_namespace_that_is_made_again_is_not_the_one_of_earlier_tasks(client: Client) -> None:
    path, made = "/run/netns/shop", (("ip", "netns", "add", "shop"), ("ip", "-n", "shop", "link", "set", "lo", "up"))
    for words in made:
        run(*words)
    await client.reserve(TaskName("web"), NIC, (), namespace=path)
    await client.attach(TaskName("web"))
    for words in (("ip", "netns", "delete", "shop"), *made):
        run(*words)
    for again in (client.attach(TaskName("web")), client.reserve(TaskName("other"), NIC, (), namespace=path)):
        with pytest.raises(HostError, match=f"^network namespace {path} was made again, or removed: expected the one"):
            await again
    await client.drop("web")
    await client.attach(TaskName("web"))
    assert "s5-" in run("ip", "-n", "shop", "-brief", "link")
    await client.drop("web")
    run("ip", "netns", "delete", "shop")


async def test_namespaces_leave_room_for_the_sockets_of_libnftables(service: Service, group: Outside) -> None:
    """It aborts the process at a descriptor from FD_SETSIZE on: the service would, again and again after its start."""
    one = "from solo5_systemd.networkd import namespaces; namespaces.NAMESPACES_MAX = 1"
    async with service.running(change=one) as client:
        before = service.low_descriptors()
        await reserved(client, group, "web")
        assert (service.low_descriptors() - before) * (NAMESPACES_MAX + 20) < FD_SETSIZE
        with pytest.raises(HostError, match="^1 network namespaces of other programs have guests: expected no further"):
            await client.reserve(TaskName("other"), NIC, (), namespace="/proc/self/ns/net")
        await reserved(client, group, "other")


async def test_what_guests_have_in_a_namespace_is_not_what_the_host_has(group: Outside, client: Client) -> None:
    """Ports and taps of two namespaces are independent; ranges are not, so that guests reach the host's guests."""
    async with opened(client, group, "web", tcp(8080)) as web:
        lease = await client.lease("other", tcp(8080))
        async with Guest(lease):
            assert lease.ipv4 is not None
            assert web.ip not in lease.ipv4.network
            assert await ask_tcp("127.0.0.1", 8080) == b"HELLO"
            await web.send_udp(IPv4Address(group.host), 8081, b"x")


async def test_what_other_programs_change_in_it_is_restored_at_once(service: Service, group: Outside) -> None:
    """Before the regular check, which is due after 20 s."""
    async with service.running(None, "--shared-tables") as client, opened(client, group, "web", tcp(8080)) as web:
        changes: list[tuple[str, Callable[[], bool], str]] = [
            ("ip link set solo5-namespace down", lambda: is_up("solo5-namespace"), "bridge solo5-namespace"),
            (f"ip link set {web.tap} nomaster", lambda: link(web.tap).get("master") == "solo5-namespace", web.tap),
            ("ip address flush dev solo5-namespace", lambda: str(web.gateway) in shown(), "bridge solo5-namespace"),
            ("ip link delete solo5-namespace", lambda: is_up("solo5-namespace"), "bridge solo5-namespace"),
            (
                "sysctl -q -w net.ipv4.ip_forward=1 net.ipv4.ip_forward=0",
                lambda: (FORWARD.parent / "conf/lo/forwarding").read_text() == "1\n",
                "net.ipv4.conf.*.forwarding",
            ),
            ("nft flush ruleset", lambda: "solo5" in run("nft", "list", "tables"), "nftables"),
        ]
        for command, is_restored, what in changes:
            known = len(await client.recent_repairs())
            with group.entered():
                run(*command.split())
            await until(group.entered()(is_restored), 15)
            assert await ask_tcp(group.address, 8080) == b"HELLO", command
            async with asyncio.timeout(30):  # recorded a moment after it is restored, the last one first
                while not any(what in each.what for each in (await client.recent_repairs())[: -known or None]):
                    pass


def is_up(name: str) -> bool:
    return "UP" in link(name).get("flags", ())


def shown() -> str:
    return run("ip", "-o", "address", "show", "dev", "solo5-namespace")


async def test_sidecars_of_a_guest_are_at_its_gateway(service: Service, place: Place) -> None:
    with place.group.entered():
        listeners = [bound(place.loopback, 9191), bound(place.every, 9192), bound(place.address, 9193)]
        stream = socket.create_server((place.loopback, 9194), family=listeners[0].family)
    async with service.running() as client, opened(client, place.group, "web") as web:
        gateway = place.router(web)
        for listener, to in zip(listeners, (gateway, gateway, ip_address(place.address)), strict=True):
            with closing(listener):
                port = listener.getsockname()[1]
                await web.send_udp(to, port, b"upstream")
                data, source = await next_at(listener)
                assert (data, source[0]) == (b"upstream", place.loopback if to == gateway else str(place.own(web)))
                listener.sendto(b"REPLY", source)
                assert await web.heard_udp(b"REPLY") == (to, port)
                web.frames.clear()
        with closing(stream):
            web.send(web.tcp(await web.resolve(gateway), gateway, (40001, 9194), (7, 0), SYN))
            head = 54 if gateway.version == 6 else 34
            answer = await web.heard(lambda f: f[20 if head == 54 else 23] == TCP and f[12:14] != b"\x08\x06")
            assert (answer[head - 32 : head - 16] if head == 54 else answer[26:30]) == gateway.packed
            assert answer[head + 13] == SYN | ACK


async def test_beyond_the_namespace_a_guest_has_its_address(service: Service, place: Place) -> None:
    with closing(bound(place.every, 9)) as listener:
        async with service.running() as client, opened(client, place.group, "web") as web:
            await web.send_udp(ip_address(place.host), 9, b"out")
            data, (source, _) = await next_at(listener)
            assert (data, source) == (b"out", place.address)


async def test_guests_of_one_namespace_reach_each_other(place: Place, client: Client) -> None:
    async with (
        opened(client, place.group, "a") as a,
        opened(client, place.group, "b", tcp(80)) as b,
    ):
        assert await a.resolve(place.own(b)) == b.mac
        a.send(a.udp(b.mac, place.own(b), 7, b"hello"))
        assert await a.heard_udp(b"HELLO") == (place.own(b), 7)


def inside(group6: Outside, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    with group6.entered():
        return socket.socket(socket.AF_INET6, kind)


def sources(web: Guest, protocol: int) -> list[IPv6Address]:
    """Return the source of each packet of IPv6 that the guest has received, once for those of one flow."""
    found = (frame for frame in web.frames if frame[12:14] == b"\x86\xdd" and frame[20] == protocol)
    return list(dict.fromkeys(IPv6Address(frame[22:38]) for frame in found))


async def test_what_is_lost_of_ipv6_is_restored(service: Service, group6: Outside, client: Client) -> None:
    """By a restart of the service, and by what the kernel reports of the namespace: the lost address."""
    async with opened(client, group6, "web", tcp(8080)) as web:
        for restart in (True, False):
            with group6.entered():
                run("ip", "-6", "route", "delete", "local", "::1", "dev", "solo5-namespace", "table", "local")
                if BRIDGE_NF6.exists():
                    BRIDGE_NF6.write_text("1")
                run("ip", "-6", "address", "delete", f"{web.gateway6}/64", "dev", "solo5-namespace")
            if restart:
                service.kill()
                await service.restart()
            await until(lambda: is_looped(group6), 15)  # a check would be due after 20 s
            await web.pinged6(web.gateway6, b"restored")
            assert await ask_tcp("::1", 8080, inside(group6)) == b"HELLO"


def is_looped(group6: Outside) -> bool:
    """Return whether replies to ::1 are delivered."""
    with group6.entered():
        nf = BRIDGE_NF6.read_text() if BRIDGE_NF6.exists() else "0\n"
        return nf == "0\n" and "local ::1 dev solo5-namespace" in run("ip", "-6", "route", "show", "table", "local")


@BOTH
async def test_forged_packets_of_ipv6_reach_neither_neighbour_nor_namespace(group6: Outside, client: Client) -> None:
    async with opened(client, group6, "a") as a, opened(client, group6, "b") as b:
        other, loop = IPv6Address(int(a.ip6) ^ 1), IPv6Address("::1")
        hop = await a.resolve(a.gateway6)

        def sent(to: IPv6Address, mac: bytes, source: IPv6Address, word: bytes) -> bytes:
            return a.ipv6(mac, to, UDP, datagram(source, to, 1, 9, word), source=source)

        forged = {
            "another address": sent(IPv6Address(HOST6), hop, other, b"FORGED 1"),
            "the group's address": sent(IPv6Address(HOST6), hop, IPv6Address(GROUP6), b"FORGED 2"),
            "another guest's address": sent(IPv6Address(HOST6), hop, b.ip6, b"FORGED 3"),
            "from ::1": sent(IPv6Address(GROUP6), hop, loop, b"FORGED 4"),
            "to ::1": sent(loop, hop, a.ip6, b"FORGED 5"),
            "advertisement of the gateway": a.advertise(a.gateway6),
            "advertisement of another guest": a.advertise(b.ip6),
            "advertisement of ::1": a.advertise(loop),
            "solicitation for another": a.solicit(b.ip6, source=other),
            "router advertisement": a.icmp6(
                multicast(ALL_NODES), ALL_NODES, ROUTER_ADVERT, bytes(12), source=a.link_local
            ),
            "redirect": a.icmp6(hop, IPv6Address(GROUP6), REDIRECT, bytes(36), source=a.link_local),
        }
        with group6.entered():
            listeners = [bound(GROUP6, 9), bound("::1", 9)]
            bridge, uplink = wire("solo5-namespace"), wire(f"{group6.link}-out")
        with closing(bound("::", 9)) as far:
            for frame in forged.values():
                a.send(frame)
            await a.send_udp(IPv6Address(HOST6), 9, b"honest")  # behind the others, in their order
            data, _ = await next_at(far)
            assert data == b"honest"
            await a.pinged6(a.gateway6, b"last")
            forged.pop("to ::1")  # the kernel drops it behind the sniffer
            everything = [frame[6:] for frame in (*arrived(bridge), *b.frames)]
            assert [what for what, frame in forged.items() if frame[6:] in everything] == []
            assert not any(b"FORGED" in frame for frame in arrived(uplink))
        for each in listeners:
            assert arrived(each) == []
        for each in (*listeners, bridge, uplink):
            each.close()
        with group6.entered():
            assert "proto ra" not in run("ip", "-6", "route", "show")


async def test_its_egress_list_holds_by_ipv6(service: Service, group6: Outside) -> None:
    listed = (replace(NIC[0], limits=Limits(egress=egress([f"[{HOST6}]:7/udp"]))),)
    with closing(bound("::", 7)) as open_, closing(bound("::", 9)) as closed:
        async with service.running() as client, opened(client, group6, "web", nics=listed) as web:
            for port in (9, 7):
                await web.send_udp(IPv6Address(HOST6), port, b"out")
            assert (await next_at(open_))[0] == b"out"
            assert arrived(closed) == []


async def test_a_port_at_the_loopback_of_ipv6_alone_is_published_there(service: Service, group6: Outside) -> None:
    async with service.running() as client:
        async with opened(client, group6, "web", tcp(8080, host_ip="::1")):
            assert await ask_tcp("::1", 8080, inside(group6)) == b"HELLO"
            with pytest.raises(ConnectionRefusedError):
                await ask_tcp(GROUP6, 8080, socket.socket(socket.AF_INET6))
            with group6.entered(), pytest.raises(ConnectionRefusedError):
                await ask_tcp("127.0.0.1", 8080)
        with pytest.raises(InvalidRequestError, match="no reply of a guest leaves from ::1"):
            await client.lease("other", tcp(8080, host_ip="::1"))


async def test_a_port_that_a_program_has_at_the_loopback_of_ipv6_is_taken(service: Service, group6: Outside) -> None:
    with group6.entered(), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as listener:
        listener.bind(("::1", 5353))
        async with service.running() as client:
            with pytest.raises(TakenError, match="port .*5353/udp is taken by another process"):
                await client.reserve(TaskName("web"), NIC, (udp(5353, host_ip="::1"),), namespace=group6.path)


async def test_the_prefix_is_none_of_the_hosts(service: Service, group6: Outside) -> None:
    """So that a guest reaches the host's guests; and the operator's, where that is set."""
    async with service.running("[network.default]\nipv6 = true\n") as client:
        host = await client.lease("other")
        async with opened(client, group6, "web") as web:
            assert host.ipv6 is not None
            assert web.ip6 not in host.ipv6.network
            run("ip", "-6", "route", "add", str(IPv6Network((web.ip6, 64), strict=False)), "dev", f"{group6.link}-in")
        async with opened(client, group6, "again") as again:
            assert IPv6Network((again.ip6, 64), strict=False) != IPv6Network((web.ip6, 64), strict=False)


async def test_the_operator_sets_the_prefix(service: Service, dual: Outside) -> None:
    options = 'ipv6 = "fd00:77::/64"\ngateway6 = "fd00:77::5"'
    async with service.running(f"[network.namespace]\n{options}\n") as client:
        async with opened(client, dual, "web") as web:
            assert (web.ip6 in IPv6Network("fd00:77::/64"), web.gateway6) == (True, IPv6Address("fd00:77::5"))
        run("ip", "-6", "route", "add", "fd00:77::/64", "dev", f"{dual.link}-in")
        with pytest.raises(HostError, match=r"network namespace cannot use fd00:77::/64: it overlaps"):
            await client.reserve(TaskName("web"), NIC, (), namespace=dual.path)


@pytest.mark.parametrize("case", ["no address", "no uplink", "denied", "small"])
async def test_without_ipv6_nothing_of_it_is_there(service: Service, dual: Outside, case: str) -> None:
    if case == "no address":
        dual.ip("address", "delete", f"{GROUP6}/64", "dev", f"{dual.link}-out")
    elif case == "no uplink":
        dual.ip("route", "delete", "default")
        dual.ip("-6", "route", "delete", "default")
    else:
        option = {"denied": "ipv6 = false", "small": "mtu = 1000"}[case]
        service.configure(f"[network.namespace]\n{option}\n")
    with dual.entered():
        before = sysctls6()
    async with service.running() as client:
        [lease] = (await client.reserve(TaskName("web"), NIC, (tcp(8080),), namespace=dual.path)).leases
        await client.attach(TaskName("web"))
        assert (lease.ipv6, lease.gateway6) == (None, None)
        with dual.entered():
            assert "table ip6" not in run("nft", "list", "tables")
            assert sysctls6() | before == sysctls6()
            assert "::1 dev solo5-namespace" not in run("ip", "-6", "route", "show", "table", "local")


async def test_a_namespace_with_ipv6_alone_is_enough(service: Service, dual: Outside) -> None:
    """Its guest has IPv4 on the pair as well, for programs beside it."""
    dual.ip("route", "delete", "default")
    dual.ip("address", "delete", f"{dual.address}/24", "dev", f"{dual.link}-out")
    dual.ip("link", "set", f"{dual.link}-out", "mtu", "1400")
    async with service.running() as client, opened(client, dual, "web", tcp(8080)):
        assert await ask_tcp(GROUP6, 8080, socket.socket(socket.AF_INET6)) == b"HELLO"
        with dual.entered():
            assert await ask_tcp("127.0.0.1", 8080) == b"HELLO"
            assert " mtu 1400 " in run("ip", "link", "show", "solo5-namespace")


async def test_a_detection_of_its_own_address_passes(group6: Outside, client: Client) -> None:
    async with opened(client, group6, "a") as a, opened(client, group6, "b") as b:
        a.send(a.solicit(a.ip6, source=NOWHERE))
        await b.heard(lambda f: kind_of(f) == 135 and f[62:78] == a.ip6.packed)
        b.frames.clear()
        a.send(a.solicit(b.ip6, source=NOWHERE))  # of another's: nothing comes back
        a.send(a.udp(b.mac, b.ip6, 7, b"LAST"))
        await b.heard(lambda f: f[62:] == b"LAST")
        assert not any(kind_of(f) in (135, ADVERT) and f[6:12] == a.mac and f[20] == ICMPV6 for f in b.frames)
