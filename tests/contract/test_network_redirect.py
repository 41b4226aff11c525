"""Guests that have the interface of the network namespace in which they run, with its address and MAC."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from ipaddress import IPv4Address, IPv6Address

import pytest
from tests.contract.family import until_pinged
from tests.contract.guest import BROADCAST, UDP, Guest
from tests.contract.guest6 import (
    ADVERT,
    ALL_NODES,
    ICMPV6,
    NOWHERE,
    REDIRECT,
    ROUTER_ADVERT,
    ROUTER_SOLICIT,
    Guest6,
    datagram,
    multicast,
)
from tests.contract.netns import Outside, link, run
from tests.contract.netservice import Client, Service, host_state, nic, tcp, udp, until
from tests.contract.test_network_ipv6 import sniffer
from tests.contract.test_network_paths import ask_tcp, ask_udp
from tests.contract.test_network_policy import arrived, bound

from solo5_systemd.base.errors import HostError, InvalidRequestError, TakenError
from solo5_systemd.base.names import TaskName
from solo5_systemd.network.model import PortRequest
from solo5_systemd.network.repair_log import read_repairs

NIC = (nic("service", "redirect"),)
IGMP = 2
TAGS = (0x8100, 0x88A8, 0x9100)  # 802.1Q, 802.1ad and what came before that
PERMITTED = "[network.namespace]\nredirect = true\n"


@pytest.fixture
def group(outside: Outside, service: Service) -> Iterator[Outside]:
    """The namespace of a group, whose address is 192.0.2.2; its gateway 192.0.2.1 is the host."""
    (service.settings / "redirect.toml").write_text(PERMITTED)
    outside.ip("link", "set", "lo", "up")
    outside.ip("route", "add", "default", "via", outside.host)
    with outside.entered():
        before = host_state()
    yield outside
    with outside.entered():
        assert host_state() == before, "nothing of the service is left"


@asynccontextmanager
async def guest(client: Client, group: Outside, *ports: PortRequest, task: str = "web") -> AsyncIterator[Guest]:
    reservation = await client.reserve(TaskName(task), NIC, ports, namespace=group.path)
    await client.attach(TaskName(task))
    async with Guest(reservation.leases[0]) as opened:
        await opened.resolve(opened.gateway)  # the kernel sends to a tap a moment after it is opened
        yield opened
    await client.drop(task)
    await client.forget(TaskName(task))


async def test_a_guest_has_the_interface_itself(service: Service, group: Outside) -> None:
    with group.entered():
        mac = link("veth-out")["address"]
    await service.restart()
    before = host_state()
    async with service.client() as client, guest(client, group, tcp(80, 80)) as web:
        assert host_state() == before, "the host has none of it"
        assert (str(web.ip), str(web.gateway), web.mac.hex(":")) == (group.address, group.host, mac)
        assert await ask_tcp(group.address, 80) == b"HELLO"
        assert await ask_udp(group.address, 5353) == b"HELLO", "every port is the guest's"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
            listener.bind((group.host, 0))
            listener.setblocking(False)
            await web.send_udp(IPv4Address(group.host), listener.getsockname()[1], b"out")
            data, (source, _) = await asyncio.get_running_loop().sock_recvfrom(listener, 100)
            assert (data, source) == (b"out", group.address)
        [counted] = (await client.traffic())[TaskName("web")].values()
        assert counted.sent.packets > 0


async def test_frames_of_another_source_do_not_leave_its_tap(service: Service, group: Outside) -> None:
    await service.restart()
    other = IPv4Address("192.0.2.99")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind((group.host, 0))
        listener.setblocking(False)
        port = listener.getsockname()[1]
        async with service.client() as client, guest(client, group) as web:
            host = await web.resolve(web.gateway)
            header = (40000).to_bytes(2) + port.to_bytes(2) + (8 + 6).to_bytes(2) + b"\0\0"
            forged = web.ipv4(host, web.gateway, 17, header + b"forged", source=other)
            web.send(forged)
            web.send(web.frame(host, 0x0800, forged[14:], source=b"\2\0\0\0\0\7"))
            web.send(web.arp(1, BROADCAST, web.gateway, ip=other))
            web.send(web.arp(1, BROADCAST, web.gateway, mac=b"\2\0\0\0\0\7"))
            await web.send_udp(web.gateway, port, b"honest")  # behind the others, in their order
            assert await asyncio.get_running_loop().sock_recv(listener, 100) == b"honest"
            assert str(other) not in run("ip", "neigh")
            assert "02:00:00:00:00:07" not in run("ip", "neigh")


async def test_a_guest_sends_no_tagged_frames_and_is_no_server_and_no_querier_of_its_link(
    service: Service, group: Outside
) -> None:
    await service.restart()
    every, groups = IPv4Address("255.255.255.255"), IPv4Address("224.0.0.1")
    async with service.client() as client, guest(client, group) as web:
        host = await web.resolve(web.gateway)

        def udp_to(mac: bytes, to: IPv4Address, ports: tuple[int, int]) -> bytes:
            return web.ipv4(mac, to, UDP, struct.pack("!HHHH", *ports, 8 + 40, 0) + bytes(40))

        right, request = udp_to(host, web.gateway, (4000, 9)), web.arp(1, BROADCAST, web.gateway)
        forged = {
            **{f"tagged {kind:x}": right[:12] + struct.pack("!HH", kind, 5) + right[12:] for kind in TAGS},
            "tagged for priority": right[:12] + b"\x81\0\xe0\0" + right[12:],
            "tagged twice": right[:12] + b"\x88\xa8\0\5\x81\0\0\6" + right[12:],
            "ARP in a VLAN": request[:12] + b"\x81\0\0\5" + request[12:],
            "DHCP reply": udp_to(BROADCAST, every, (67, 68)),
            "DHCP reply to one": udp_to(host, web.gateway, (67, 68)),
            "query for groups": web.ipv4(b"\1\0\x5e\0\0\1", groups, IGMP, b"\x11\x64\xee\x9b".ljust(46, b"\0")),
        }
        proper = {
            "datagram": right,
            "DHCP request": udp_to(BROADCAST, every, (68, 67)),
            "member of a group": web.ipv4(b"\1\0\x5e\0\0\x16", groups, IGMP, b"\x22\0\xf9\x02".ljust(46, b"\0")),
        }
        with sniffer(f"{group.link}-in") as wire:
            for frame in (*forged.values(), *proper.values()):
                web.send(frame)
            await until_pinged(web)
            seen = arrived(wire)
        assert [what for what, frame in forged.items() if frame in seen] == []
        assert [what for what, frame in proper.items() if frame not in seen] == []


HOST6, GROUP6, OTHER6 = "2001:db8:f::1", "2001:db8:f::2", IPv6Address("2001:db8:f::99")


@pytest.fixture
def dual(group: Outside) -> Outside:
    """The same with an address of IPv6 as well."""
    run("ip", "address", "add", f"{HOST6}/64", "dev", f"{group.link}-in", "nodad")
    group.ip("address", "add", f"{GROUP6}/64", "dev", f"{group.link}-out", "nodad")
    group.ip("-6", "route", "add", "default", "via", HOST6)
    return group


@asynccontextmanager
async def guest6(client: Client, group: Outside, *ports: PortRequest) -> AsyncIterator[Guest6]:
    reservation = await client.reserve(TaskName("web"), NIC, ports, namespace=group.path)
    await client.attach(TaskName("web"))
    async with Guest6(reservation.leases[0]) as opened:
        await opened.resolve(opened.gateway6)
        yield opened
    await client.drop("web")
    await client.forget(TaskName("web"))


async def test_a_guest_has_the_ipv6_address_of_the_interface(service: Service, dual: Outside) -> None:
    async with service.running() as client, guest6(client, dual, tcp(80, 80)) as web:
        assert (str(web.ip6), str(web.gateway6), str(web.ip)) == (GROUP6, HOST6, dual.address)
        assert await ask_tcp(GROUP6, 80, socket.socket(socket.AF_INET6)) == b"HELLO"
        assert await ask_udp(GROUP6, 5353) == b"HELLO", "every port is the guest's"
        assert await ask_udp(dual.address, 5353) == b"HELLO"
        with bound(HOST6, 9) as listener:
            listener.setblocking(False)
            await web.send_udp(IPv6Address(HOST6), 9, b"out")
            data, source = await asyncio.get_running_loop().sock_recvfrom(listener, 100)
            assert (data, source[0]) == (b"out", GROUP6)
        service.kill()
        await service.restart()
        assert await ask_udp(GROUP6, 5353) == b"HELLO"


async def test_frames_of_another_ipv6_source_do_not_leave_its_tap(service: Service, dual: Outside) -> None:
    await service.restart()
    stranger, host = bytes.fromhex("020000000099"), IPv6Address(HOST6)
    async with service.client() as client, guest6(client, dual) as web:
        hop = await web.resolve(web.gateway6)
        right = web.udp(hop, host, 9, b"PROPER")
        nodes, routers = multicast(ALL_NODES), IPv6Address("ff02::2")
        behind = bytes([ICMPV6, 0, 1, 4, 0, 0, 0, 0]) + web.advertise(OTHER6)[54:]
        two = b"\x60\0\0\0" + web.ip6.packed + b"\1\1" + web.mac + b"\2\1" + stranger
        forged = {
            "MAC": right[:6] + stranger + right[12:],
            "address": web.ipv6(hop, host, UDP, right[54:], source=OTHER6),
            "link-local address": web.ipv6(hop, host, UDP, right[54:], source=IPv6Address("fe80::99")),
            "no address": web.ipv6(hop, host, UDP, right[54:], source=NOWHERE),
            "in a VLAN": right[:12] + b"\x81\0\0\5" + right[12:],
            "advertisement of another's": web.advertise(OTHER6),
            "advertisement of the gateway's": web.advertise(host),
            "advertisement of another's to one": web.advertise(OTHER6, to=host, to_mac=hop),
            "advertisement with another MAC": web.advertise(web.ip6, mac=stranger),
            "advertisement behind a header": web.ipv6(nodes, ALL_NODES, 60, behind),
            "advertisement with two options": web.icmp6(nodes, ALL_NODES, ADVERT, two),
            "solicitation with another MAC": web.solicit(host, mac=stranger),
            "solicitation of another address": web.solicit(host, source=OTHER6),
            "detection of another's address": web.solicit(host, source=NOWHERE),
            "router advertisement": web.icmp6(nodes, ALL_NODES, ROUTER_ADVERT, bytes(12), source=web.link_local),
            "redirect": web.icmp6(nodes, ALL_NODES, REDIRECT, bytes(36), source=web.link_local),
            "query for groups": web.icmp6(nodes, ALL_NODES, 130, bytes(20), source=web.link_local),
            "DHCPv6 reply": web.ipv6(hop, host, UDP, datagram(web.ip6, host, 547, 546, b"reply")),
        }
        proper = {
            "solicitation": web.solicit(host),
            "from the link": web.solicit(host, source=web.link_local),
            "own address": web.advertise(web.ip6),
            "own link-local address": web.advertise(web.link_local, source=web.link_local),
            "detection": web.solicit(web.ip6, source=NOWHERE),
            "router solicitation": web.icmp6(
                multicast(routers), routers, ROUTER_SOLICIT, bytes(4), source=web.link_local
            ),
            "group": web.icmp6(nodes, ALL_NODES, 143, bytes(4), source=NOWHERE),
            "datagram": right,
        }
        with sniffer(f"{dual.link}-in") as wire:
            for frame in (*forged.values(), *proper.values()):
                web.send(frame)
            await web.pinged6(web.gateway6, b"last")
            seen = arrived(wire)
        assert [what for what, frame in forged.items() if frame in seen] == []
        assert [what for what, frame in proper.items() if frame not in seen] == []
        assert "proto ra" not in run("ip", "-6", "route", "show")


async def test_an_interface_with_ipv6_alone_is_a_guests(service: Service, dual: Outside) -> None:
    dual.ip("route", "del", "default")
    dual.ip("address", "del", f"{dual.address}/24", "dev", f"{dual.link}-out")
    async with service.running() as client, guest6(client, dual):
        assert await ask_udp(GROUP6, 5353) == b"HELLO"
    dual.ip("address", "add", f"{dual.address}/24", "dev", f"{dual.link}-out")
    dual.ip("route", "add", "default", "via", dual.host)


async def test_it_survives_the_service_and_is_attached_again(service: Service, group: Outside) -> None:
    async with service.running() as client:
        async with guest(client, group, tcp(80, 80)):
            service.kill()
            await service.restart()
            assert await ask_tcp(group.address, 80) == b"HELLO"
            await client.attach(TaskName("web"))
            assert await ask_tcp(group.address, 80) == b"HELLO"
        reservation = await client.reserve(TaskName("web"), NIC, (), namespace=group.path)
        await client.attach(TaskName("web"))
        await client.drop("web")
        await client.attach(TaskName("web"))  # by its request, as a start by systemd does
        async with Guest(reservation.leases[0]) as web:
            await web.resolve(web.gateway)
            assert await ask_udp(group.address, 5353) == b"HELLO"


@contextmanager
def renamed(group: Outside) -> Iterator[None]:
    """Give the interface another name: rules that name the former one cannot be made, and from Linux 6.16 on, those
    that are there have no effect until it has that name again."""

    def rename(old: str, new: str) -> None:
        group.ip("link", "set", old, "down")
        group.ip("link", "set", old, "name", new)
        group.ip("link", "set", new, "up")
        group.ip("route", "add", "default", "via", group.host)

    rename("veth-out", "other")
    try:
        yield
    finally:
        rename("other", "veth-out")


async def test_a_running_guest_keeps_what_it_has_if_it_cannot_be_attached_again(
    service: Service, group: Outside
) -> None:
    async with service.running() as client, guest(client, group):
        with renamed(group), pytest.raises(HostError, match="nftables refused a change"):
            await client.attach(TaskName("web"))
        assert await client.reservation(TaskName("web")) is not None
        assert await ask_udp(group.address, 5353) == b"HELLO"


async def test_a_running_guest_is_not_released_if_it_cannot_be_recovered(service: Service, group: Outside) -> None:
    """Its rules are made at the next check at which that is possible."""
    async with service.running() as client, guest(client, group):
        with renamed(group):
            service.kill()
            await service.restart()
            await client.collect(dry_run=False)
            assert await client.reservation(TaskName("web")) is not None
            with group.entered():
                run("nft", "delete", "table", "netdev", "solo5")
        await client.collect(dry_run=False)
        assert await ask_udp(group.address, 5353) == b"HELLO"
    assert f"network namespace {group.path} cannot be restored" in service.log.read_text()


@pytest.mark.parametrize("again", [False, True], ids=["first", "after a release"])
async def test_an_attach_that_fails_leaves_nothing(service: Service, group: Outside, again: bool) -> None:
    async with service.running() as client:
        await client.reserve(TaskName("web"), NIC, (), namespace=group.path)
        if again:
            await client.attach(TaskName("web"))
            await client.drop("web")
        with group.entered():
            before = host_state()
        with renamed(group), pytest.raises((HostError, TakenError), match="nftables refused a change|has changed"):
            await client.attach(TaskName("web"))
        with group.entered():
            assert host_state() == before
        assert (await client.reservation(TaskName("web")) is None) is again


async def test_rules_that_another_program_changes_are_restored(service: Service, group: Outside) -> None:
    async with service.running() as client, guest(client, group):
        with group.entered():
            run("nft", "flush", "chain", "netdev", "solo5", "received")
        service.kill()
        await service.restart()
        assert await ask_udp(group.address, 5353) == b"HELLO"


async def test_a_tap_that_another_program_sets_down_is_restored(service: Service, group: Outside) -> None:
    async with service.running() as client, guest(client, group) as web:
        group.ip("link", "set", web.tap, "down")
        await until(lambda: "UP" in group.ip("-o", "link", "show", web.tap).split(">")[0], 15)  # of 20 s
        assert await ask_udp(group.address, 5353) == b"HELLO"
        what = f"tap {web.tap} was missing or down"
        await until(lambda: any(what in each.what for each in read_repairs(service.state)))


async def test_it_is_alone_in_its_namespace(service: Service, group: Outside) -> None:
    async with service.running() as client:
        async with guest(client, group):
            for nics in (NIC, (nic("service", "namespace"),)):
                with pytest.raises(TakenError, match=r"has task web.*alone in it"):
                    await client.reserve(TaskName("other"), nics, (), namespace=group.path)
        await client.reserve(TaskName("first"), (nic("service", "namespace"),), (), namespace=group.path)
        with pytest.raises(TakenError, match=r"has task first.*alone in it"):
            await client.reserve(TaskName("web"), NIC, (), namespace=group.path)


async def test_a_host_permits_it_first(service: Service, group: Outside) -> None:
    """Such a guest has no packet filter: by default no job can choose it."""
    async with service.running() as client:
        with pytest.raises(InvalidRequestError, match="port 5353 is published to port 53 on network redirect"):
            await client.reserve(TaskName("web"), NIC, (udp(5353, 53),), namespace=group.path)
        (service.settings / "redirect.toml").unlink()
        with pytest.raises(InvalidRequestError, match="which this host does not permit"):
            await client.reserve(TaskName("web"), NIC, (), namespace=group.path)
        with pytest.raises(InvalidRequestError, match="network redirect does not exist"):
            await client.reserve(TaskName("web"), NIC, ())


async def test_a_namespace_without_an_interface_is_one_sentence(service: Service, group: Outside) -> None:
    group.ip("route", "del", "default")
    async with service.running() as client:
        with pytest.raises(HostError, match="has no interface with a default route and an address"):
            await client.reserve(TaskName("web"), NIC, (), namespace=group.path)
    group.ip("route", "add", "default", "via", group.host)
