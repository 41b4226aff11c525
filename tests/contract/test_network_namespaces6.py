"""IPv6 of guests in a network namespace of other programs, whose interface has an IPv6 address."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from ipaddress import IPv6Address, IPv6Network

import pytest
from tests.contract.guest import TCP, UDP
from tests.contract.guest6 import (
    ADVERT,
    ALL_NODES,
    ICMPV6,
    NOWHERE,
    REDIRECT,
    ROUTER_ADVERT,
    Guest6,
    datagram,
    kind_of,
    multicast,
)
from tests.contract.netns import Outside, run
from tests.contract.netservice import Client, Service, host_state, nic, tcp, udp, until
from tests.contract.test_network_ipv6 import BRIDGE_NF6, ask6, bound6, sniffer, sysctls6
from tests.contract.test_network_paths import ask_tcp, ask_udp
from tests.contract.test_network_policy import arrived

from solo5_systemd.base.errors import HostError, InvalidRequestError, TakenError
from solo5_systemd.base.names import TaskName
from solo5_systemd.network.guest_limits import Limits
from solo5_systemd.network.model import NicRequest, PortRequest
from solo5_systemd.settings.egress import egress

NIC = (nic("service", "namespace"),)
HOST6, GROUP6 = "2001:db8:f::1", "2001:db8:f::2"


def state() -> tuple[object, ...]:
    """Return all state of this network namespace that the service may change."""
    nf = BRIDGE_NF6.read_text() if BRIDGE_NF6.exists() else ""
    routes = run("ip", "-6", "route", "show", "table", "local").splitlines()
    return *host_state(), sysctls6(), nf, [route for route in routes if route.startswith("local ::1")]


@pytest.fixture
def dual(outside: Outside) -> Outside:
    """The namespace of a group with an address of each family; its gateway is the host."""
    run("ip", "address", "add", f"{HOST6}/64", "dev", f"{outside.link}-in", "nodad")
    outside.ip("link", "set", "lo", "up")
    outside.ip("route", "add", "default", "via", outside.host)
    outside.ip("address", "add", f"{GROUP6}/64", "dev", f"{outside.link}-out", "nodad")
    outside.ip("-6", "route", "add", "default", "via", HOST6)
    return outside


@pytest.fixture(params=["0", "1"], ids=["bridged packets", "bridged packets to ip6tables"])
def group(request: pytest.FixtureRequest, dual: Outside) -> Iterator[Outside]:
    """The same, with and without br_netfilter, if the kernel has it; afterwards it is as before."""
    with dual.entered():
        if BRIDGE_NF6.exists():
            BRIDGE_NF6.write_text(request.param)
        before = state()
    yield dual
    with dual.entered():
        assert state() == before, "nothing of the service is left"


@asynccontextmanager
async def guest(
    client: Client, group: Outside, task: str, *ports: PortRequest, nics: tuple[NicRequest, ...] = NIC
) -> AsyncIterator[Guest6]:
    [lease] = (await client.reserve(TaskName(task), nics, ports, namespace=group.path)).leases
    await client.attach(TaskName(task))
    async with Guest6(lease) as opened:
        await opened.resolve6(opened.gateway6)
        yield opened
    await client.drop(task)


def inside(group: Outside, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    with group.entered():
        return socket.socket(socket.AF_INET6, kind)


def sources(web: Guest6, protocol: int) -> list[IPv6Address]:
    """Return the source of each packet of IPv6 that the guest has received, once for those of one flow."""
    found = (frame for frame in web.frames if frame[12:14] == b"\x86\xdd" and frame[20] == protocol)
    return list(dict.fromkeys(IPv6Address(frame[22:38]) for frame in found))


async def test_a_guest_has_the_ports_of_its_namespace(service: Service, group: Outside) -> None:
    """At its addresses, and at ::1; by IPv4 as without IPv6."""
    await service.restart()
    before = host_state()
    async with service.client() as client, guest(client, group, "web", tcp(8080), udp(5353)) as web:
        assert host_state() == before, "the host has none of it"
        expected = (None, HOST6), (group, GROUP6), (group, "::1")
        for place, address in expected:
            to = GROUP6 if place is None else address
            stream = socket.socket(socket.AF_INET6) if place is None else inside(group)
            assert await ask_tcp(to, 8080, stream) == b"HELLO"
            datagrams = None if place is None else inside(group, socket.SOCK_DGRAM)
            assert await ask6(to, 5353, sock=datagrams) == b"HELLO"
        seen = [IPv6Address(HOST6), IPv6Address(GROUP6), web.gateway6]
        assert sources(web, TCP) == sources(web, UDP) == seen
        assert await ask_tcp(group.address, 8080) == b"HELLO"
        with group.entered():
            assert await ask_udp("127.0.0.1", 5353) == b"HELLO"


async def test_programs_beside_a_guest_are_at_its_gateway(service: Service, group: Outside) -> None:
    await service.restart()
    with group.entered():
        listeners = [bound6("::1", 9191), bound6("::", 9192), bound6(GROUP6, 9193)]
        stream = socket.create_server(("::1", 9194), family=socket.AF_INET6)
    async with service.client() as client, guest(client, group, "web") as web:
        for listener, to in zip(listeners, (web.gateway6, web.gateway6, IPv6Address(GROUP6)), strict=True):
            with closing(listener):
                listener.setblocking(False)
                port = listener.getsockname()[1]
                await web.send_udp6(to, port, b"upstream")
                async with asyncio.timeout(10):
                    data, source = await asyncio.get_running_loop().sock_recvfrom(listener, 100)
                assert (data, source[0]) == (b"upstream", "::1" if to == web.gateway6 else str(web.ip6))
                listener.sendto(b"REPLY", source)
                assert await web.heard_udp6(b"REPLY") == (to, port)
                web.frames.clear()
        with closing(stream):
            hop = await web.resolve6(web.gateway6)
            web.send(web.tcp6(hop, web.gateway6, (40001, 9194), (7, 0), 2))
            answer = await web.heard(lambda f: f[20] == TCP and f[12:14] == b"\x86\xdd")
            assert (IPv6Address(answer[22:38]), answer[67]) == (web.gateway6, 0x12), "SYN and ACK"


async def test_beyond_the_namespace_a_guest_has_its_address(service: Service, group: Outside) -> None:
    await service.restart()
    with closing(bound6("::", 9)) as listener:
        listener.setblocking(False)
        async with service.client() as client, guest(client, group, "web") as web:
            await web.send_udp6(IPv6Address(HOST6), 9, b"out")
            async with asyncio.timeout(10):
                data, source = await asyncio.get_running_loop().sock_recvfrom(listener, 100)
            assert (data, source[0]) == (b"out", GROUP6)


async def test_guests_of_one_namespace_reach_each_other(service: Service, group: Outside) -> None:
    await service.restart()
    async with service.client() as client, guest(client, group, "a") as a, guest(client, group, "b", tcp(80)) as b:
        assert await a.resolve6(b.ip6) == b.mac
        a.send(a.udp6(b.mac, b.ip6, 7, b"hello"))
        assert await a.heard_udp6(b"HELLO") == (b.ip6, 7)


async def test_what_is_lost_is_restored(service: Service, group: Outside) -> None:
    """By a restart of the service, and by what the kernel reports of the namespace: the lost address."""
    await service.restart()
    async with service.client() as client, guest(client, group, "web", tcp(8080)) as web:
        for restart in (True, False):
            with group.entered():
                run("ip", "-6", "route", "delete", "local", "::1", "dev", "solo5-namespace", "table", "local")
                if BRIDGE_NF6.exists():
                    BRIDGE_NF6.write_text("1")
                run("ip", "-6", "address", "delete", f"{web.gateway6}/64", "dev", "solo5-namespace")
            if restart:
                service.kill()
                await service.restart()
            await until(lambda: is_looped(group), 15)  # a check would be due after 20 s
            await web.pinged6(web.gateway6, b"restored")
            assert await ask_tcp("::1", 8080, inside(group)) == b"HELLO"


def is_looped(group: Outside) -> bool:
    """Return whether replies to ::1 are delivered."""
    with group.entered():
        nf = BRIDGE_NF6.read_text() if BRIDGE_NF6.exists() else "0\n"
        return nf == "0\n" and "local ::1 dev solo5-namespace" in run("ip", "-6", "route", "show", "table", "local")


async def test_forged_packets_reach_neither_neighbour_nor_namespace(service: Service, group: Outside) -> None:
    await service.restart()
    async with service.client() as client, guest(client, group, "a") as a, guest(client, group, "b") as b:
        other, loop = IPv6Address(int(a.ip6) ^ 1), IPv6Address("::1")
        hop = await a.resolve6(a.gateway6)

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
        with group.entered():
            listeners = [bound6(GROUP6, 9), bound6("::1", 9)]
            bridge, uplink = sniffer("solo5-namespace"), sniffer(f"{group.link}-out")
        with closing(bound6("::", 9)) as far:
            for frame in forged.values():
                a.send(frame)
            await a.send_udp6(IPv6Address(HOST6), 9, b"honest")  # behind the others, in their order
            far.setblocking(False)
            async with asyncio.timeout(10):
                data, _ = await asyncio.get_running_loop().sock_recvfrom(far, 100)
            assert data == b"honest"
            await a.pinged6(a.gateway6, b"last")
            forged.pop("to ::1")  # the kernel drops it behind the sniffer
            everything = [frame[6:] for frame in (*arrived(bridge), *b.frames)]
            assert [what for what, frame in forged.items() if frame[6:] in everything] == []
            assert not any(b"FORGED" in frame for frame in arrived(uplink))
        for each in listeners:
            each.setblocking(False)
            assert arrived(each) == []
        for each in (*listeners, bridge, uplink):
            each.close()
        with group.entered():
            assert "proto ra" not in run("ip", "-6", "route", "show")


async def test_its_egress_list_holds(service: Service, group: Outside) -> None:
    await service.restart()
    listed = (replace(NIC[0], limits=Limits(egress=egress([f"[{HOST6}]:7/udp"]))),)
    with closing(bound6("::", 7)) as open_, closing(bound6("::", 9)) as closed:
        async with service.client() as client, guest(client, group, "web", nics=listed) as web:
            for port in (9, 7):
                await web.send_udp6(IPv6Address(HOST6), port, b"out")
            open_.setblocking(False)
            async with asyncio.timeout(10):
                assert await asyncio.get_running_loop().sock_recv(open_, 100) == b"out"
            closed.setblocking(False)
            assert arrived(closed) == []


async def test_a_port_at_the_loopback_alone_is_published_there(service: Service, group: Outside) -> None:
    await service.restart()
    async with service.client() as client, guest(client, group, "web", tcp(8080, host_ip="::1")):
        assert await ask_tcp("::1", 8080, inside(group)) == b"HELLO"
        with pytest.raises(ConnectionRefusedError):
            await ask_tcp(GROUP6, 8080, socket.socket(socket.AF_INET6))
        with group.entered(), pytest.raises(ConnectionRefusedError):
            await ask_tcp("127.0.0.1", 8080)
    async with service.client() as client:
        with pytest.raises(InvalidRequestError, match="no reply of a guest to ::1"):
            await client.lease("other", tcp(8080, host_ip="::1"))


async def test_a_port_that_a_program_has_at_the_loopback_is_taken(service: Service, group: Outside) -> None:
    await service.restart()
    with group.entered(), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as listener:
        listener.bind(("::1", 5353))
        async with service.client() as client:
            with pytest.raises(TakenError, match="port .*5353/udp is taken by another process"):
                await client.reserve(TaskName("web"), NIC, (udp(5353, host_ip="::1"),), namespace=group.path)


async def test_the_prefix_is_no_one_of_the_hosts(service: Service, group: Outside) -> None:
    """So that a guest reaches the host's guests; and the operator's, where that is set."""
    (service.settings / "solo5.toml").write_text("[network.default]\nipv6 = true\n")
    await service.restart()
    async with service.client() as client:
        host = await client.lease("other")
        async with guest(client, group, "web") as web:
            assert host.ipv6 is not None
            assert web.ip6 not in host.ipv6.network
            run("ip", "-6", "route", "add", str(IPv6Network((web.ip6, 64), strict=False)), "dev", f"{group.link}-in")
        async with guest(client, group, "again") as again:
            assert IPv6Network((again.ip6, 64), strict=False) != IPv6Network((web.ip6, 64), strict=False)
        await client.drop("other")


async def test_the_operator_sets_the_prefix(service: Service, dual: Outside) -> None:
    options = 'ipv6 = "fd00:77::/64"\ngateway6 = "fd00:77::5"'
    (service.settings / "solo5.toml").write_text(f"[network.namespace]\n{options}\n")
    await service.restart()
    async with service.client() as client:
        async with guest(client, dual, "web") as web:
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
        (service.settings / "solo5.toml").write_text(f"[network.namespace]\n{option}\n")
    with dual.entered():
        before = sysctls6()
    await service.restart()
    async with service.client() as client:
        [lease] = (await client.reserve(TaskName("web"), NIC, (tcp(8080),), namespace=dual.path)).leases
        await client.attach(TaskName("web"))
        assert (lease.ipv6, lease.gateway6) == (None, None)
        with dual.entered():
            assert "table ip6" not in run("nft", "list", "tables")
            assert sysctls6() | before == sysctls6()
            assert "::1 dev solo5-namespace" not in run("ip", "-6", "route", "show", "table", "local")
        await client.drop("web")


async def test_a_namespace_with_ipv6_alone_is_enough(service: Service, dual: Outside) -> None:
    """Its guest has IPv4 on the pair as well, for programs beside it."""
    dual.ip("route", "delete", "default")
    dual.ip("address", "delete", f"{dual.address}/24", "dev", f"{dual.link}-out")
    dual.ip("link", "set", f"{dual.link}-out", "mtu", "1400")
    await service.restart()
    async with service.client() as client, guest(client, dual, "web", tcp(8080)):
        assert await ask_tcp(GROUP6, 8080, socket.socket(socket.AF_INET6)) == b"HELLO"
        with dual.entered():
            assert await ask_tcp("127.0.0.1", 8080) == b"HELLO"
            assert " mtu 1400 " in run("ip", "link", "show", "solo5-namespace")


async def test_a_detection_of_its_own_address_passes(service: Service, group: Outside) -> None:
    await service.restart()
    async with service.client() as client, guest(client, group, "a") as a, guest(client, group, "b") as b:
        a.send(a.solicit(a.ip6, source=NOWHERE))
        await b.heard(lambda f: kind_of(f) == 135 and f[62:78] == a.ip6.packed)
        b.frames.clear()
        a.send(a.solicit(b.ip6, source=NOWHERE))  # of another's: nothing comes back
        a.send(a.udp6(b.mac, b.ip6, 7, b"LAST"))
        await b.heard(lambda f: f[62:] == b"LAST")
        assert not any(kind_of(f) in (135, ADVERT) and f[6:12] == a.mac and f[20] == ICMPV6 for f in b.frames)
