"""Router advertisements, by dnsmasq: guests give themselves the leased address, and no other one, nor one of others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from ipaddress import IPv6Address, IPv6Network

import pytest
from tests.contract.dhcp import Pid1WithServers, leased
from tests.contract.guest import (
    ALL_NODES,
    NOWHERE,
    ROUTER_ADVERT,
    ROUTER_SOLICIT,
    UDP,
    Guest,
    datagram,
    kind_of,
    multicast,
)
from tests.contract.kernel_guest import KernelGuest
from tests.contract.netns import received
from tests.contract.netservice import Client, Service, until
from tests.contract.sockets import arrived, wire

from solo5_systemd.network.derived_addresses import slaac_address

PREFIX = IPv6Network("2001:db8:1::/64")
DNS = 'dns = ["9.9.9.9", "2001:db8::53", "fd00::53"]\n'
RA = f'[network.default]\nipv6 = "2001:db8:1::/64"\nmtu = 1400\nra = true\n{DNS}'
ROUTERS = IPv6Address("ff02::2")
SERVER = "solo5-dhcp@default.service"


@pytest.fixture
async def client(service: Service, pid1: Pid1WithServers) -> AsyncIterator[Client]:
    async with service.running(RA) as client:
        yield client


def solicitation(guest: Guest, source: IPv6Address = NOWHERE) -> bytes:
    """Return a router solicitation; without an address, as MirageOS sends it."""
    option = b"" if source == NOWHERE else b"\1\1" + guest.mac
    return guest.icmp6(multicast(ROUTERS), ROUTERS, ROUTER_SOLICIT, bytes(4) + option, source=source)


async def advertised(guest: Guest, source: IPv6Address = NOWHERE) -> bytes:
    """Return the advertisement that a guest solicits, once its bridge port is up."""
    await guest.pinged6(guest.gateway6, b"up")
    guest.frames.clear()
    guest.send(solicitation(guest, source))
    return await guest.heard(lambda frame: kind_of(frame) == ROUTER_ADVERT)


def options(frame: bytes) -> dict[int, list[bytes]]:
    """Return the options of a router advertisement, by type."""
    found: dict[int, list[bytes]] = {}
    at = 54 + 16
    while at < len(frame):
        end = at + 8 * frame[at + 1]
        found.setdefault(frame[at], []).append(frame[at + 2 : end])
        at = end
    return found


async def test_an_advertisement_has_all_that_a_guest_needs_and_no_more(client: Client, pid1: Pid1WithServers) -> None:
    lease = await client.lease("a")
    assert lease.address6 == slaac_address(PREFIX, lease.mac)
    async with Guest(lease) as guest:
        for source in (NOWHERE, guest.link_local):
            frame = await advertised(guest, source)
            flags, lifetime = frame[59], int.from_bytes(frame[60:62])
            assert (flags & 0xC0, lifetime) == (0, 9000), "no DHCPv6; a default route"
            assert IPv6Address(frame[22:38]).is_link_local
            found = options(frame)
            [prefix] = found[3]
            assert (prefix[0], prefix[1] & 0xC0) == (64, 0xC0), "on the link, and autonomous"
            assert prefix[14:30] == PREFIX.network_address.packed
            # MirageOS takes no prefix for ever.
            lifetimes = {int.from_bytes(prefix[at : at + 4]) for at in (2, 6)}
            assert lifetimes == {10 * 365 * 86400}
            assert [int.from_bytes(each[-4:]) for each in found[5]] == [1400]
            [servers] = found[25]
            assert servers[6:] == IPv6Address("2001:db8::53").packed + IPv6Address("fd00::53").packed
            assert found[1] == [frame[6:12]], "the router's MAC address"
            assert found.keys() <= {1, 3, 5, 25}
    await client.drop("a")
    assert pid1.asked == ["RestartUnit", "StopUnit"]


async def test_a_kernel_gets_the_leased_address_route_and_mtu(client: Client) -> None:
    lease = await client.lease("a")
    assert lease.gateway6 is not None
    async with KernelGuest(lease) as guest:
        await until(lambda: guest.addresses() != [], 20)
        assert [each["local"] for each in guest.addresses()] == [str(lease.address6)]
        await guest.until_pinged(lease.gateway6)
        [router] = guest.routers()
        assert router["protocol"] == "ra"
        assert guest.run("cat", "/proc/sys/net/ipv6/conf/eth0/mtu").strip() == "1400"
        assert "fe80::" in router["gateway"]


async def test_a_temporary_address_is_dropped_and_counted(client: Client) -> None:
    """Privacy addresses (RFC 8981): the guest prefers one, and reaches nothing with it."""
    lease = await client.lease("a")
    assert lease.gateway6 is not None
    async with KernelGuest(lease, privacy=True) as guest:
        await until(lambda: len(guest.addresses()) == 2, 20)
        await guest.until_pinged(lease.gateway6, "-I", str(lease.address6))
        [temporary] = [each["local"] for each in guest.addresses() if each["local"] != str(lease.address6)]
        before = (await client.networks())[0].dropped.of_guest(lease.addresses, lease.tap)["spoofed"]
        assert not await guest.pings(lease.gateway6, "-I", temporary)
        assert (await client.networks())[0].dropped.of_guest(lease.addresses, lease.tap)["spoofed"] > before


async def test_a_kernel_with_another_mac_gets_nothing(client: Client) -> None:
    """Its frames stay in the task's namespace."""
    lease = await client.lease("a")
    async with KernelGuest(lease, "02:00:00:00:00:99") as guest:
        assert lease.gateway6 is not None
        async with asyncio.timeout(20):
            while received(lease.tap, "a") < 2:  # its solicitations, and to find out that its addresses are free
                assert not await guest.pings(lease.gateway6)
        assert not await guest.pings(lease.gateway6)
        assert received(lease.tap) == 0


async def test_a_neighbour_is_no_router_and_sees_no_solicited_reply(client: Client) -> None:
    first, second = await client.lease("a"), await client.lease("b")
    async with Guest(first) as a, Guest(second) as b:
        await advertised(b)
        body = bytes([64, 0]) + (9000).to_bytes(2) + bytes(8)
        body += b"\3\4\x40\xc0" + (3600).to_bytes(4) * 2 + bytes(4) + IPv6Address("2001:db8:66::").packed
        forged = [
            b.icmp6(multicast(ALL_NODES), ALL_NODES, ROUTER_ADVERT, body, source=source)
            for source in (b.link_local, b.ip6, IPv6Address(int(a.link_local) ^ 1))
        ]
        # In a Hop-by-Hop header, and as the host itself.
        forged.append(b.ipv6(multicast(ALL_NODES), ALL_NODES, 0, bytes([58, 0, 1, 4, 0, 0, 0, 0]) + forged[0][54:]))
        await advertised(a)
        a.frames.clear()
        with closing(wire(first.bridge)) as host:
            for frame in forged:
                b.send(frame)
            await b.pinged6(b.gateway6, b"last")
            await a.pinged6(a.gateway6, b"last")
            seen = [frame for frame in (*arrived(host), *a.frames) if b"\x20\x01\x0d\xb8\0\x66" in frame]
        assert seen == []
        dropped = (await client.networks())[0].dropped.of_guest(second.addresses, second.tap)
        assert dropped["unsafe"] >= 3
        # From its link-local address a guest has a reply of its own.
        b.frames.clear()
        await advertised(a, a.link_local)
        await b.pinged6(b.gateway6, b"after")
        assert [frame for frame in b.frames if kind_of(frame) == ROUTER_ADVERT and frame[:6] == a.mac] == []


async def test_a_guest_that_solicits_without_end_is_limited_and_others_are_served(client: Client) -> None:
    first, second = await client.lease("a"), await client.lease("b")
    async with Guest(first) as a, Guest(second) as b:
        await advertised(b)
        await advertised(a)
        b.frames.clear()
        for _ in range(2000):
            a.send(solicitation(a))
        b.send(solicitation(b, b.link_local))
        await b.heard(lambda frame: kind_of(frame) == ROUTER_ADVERT and frame[:6] == b.mac)
        await b.pinged6(b.gateway6, b"last")
        assert len([frame for frame in b.frames if kind_of(frame) == ROUTER_ADVERT]) <= 50


async def test_only_guests_of_that_network_have_advertisements(service: Service, pid1: Pid1WithServers) -> None:
    async with service.running(RA + "[network.other]\nipv6 = true\n") as client:
        first = await client.lease("a")
        plain = await client.lease("b", network="other")
        async with Guest(first) as a, Guest(plain) as b:
            await b.pinged6(b.gateway6, b"up")
            await advertised(a)
            b.send(solicitation(b))
            b.send(solicitation(b, b.link_local))
            await advertised(a)
            await b.pinged6(b.gateway6, b"last")
            assert [frame for frame in b.frames if kind_of(frame) == ROUTER_ADVERT] == []
        assert pid1.running() == [SERVER]


async def test_no_message_of_dhcp_reaches_a_server_without_dhcp(client: Client) -> None:
    async with Guest(await client.lease("a")) as guest:
        await advertised(guest)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await leased(guest)
        solicit = datagram(
            guest.link_local, IPv6Address("ff02::1:2"), 546, 547, b"\1\0\0\1\0\1\0\x0a\0\3\0\1" + guest.mac
        )
        servers = IPv6Address("ff02::1:2")
        guest.send(guest.ipv6(multicast(servers), servers, UDP, solicit, source=guest.link_local))
        await advertised(guest)
        assert [frame for frame in guest.frames if frame[12:14] == b"\x86\xdd" and frame[20] == UDP] == []


async def test_with_dhcp_one_server_does_both(service: Service, pid1: Pid1WithServers) -> None:
    async with service.running(RA + "dhcp = true\n") as client:
        lease = await client.lease("a")
        async with Guest(lease) as guest:
            await advertised(guest)
            assert (await leased(guest)).address == lease.address
        assert pid1.running() == [SERVER]
        async with KernelGuest(lease) as kernel:
            await until(lambda: kernel.addresses() != [], 20)
            assert [each["local"] for each in kernel.addresses()] == [str(lease.address6)]


async def test_a_lease_is_the_same_after_each_restart(client: Client, service: Service, pid1: Pid1WithServers) -> None:
    lease = await client.lease("a")
    await client.drop("a")
    assert await client.lease("a") == lease
    service.kill()
    await service.restart()
    [held] = await client.reservations()
    assert held.leases == (lease,)
    async with Guest(lease) as guest:
        await advertised(guest)
        pid1.die()
        await advertised(guest)


async def test_ra_that_is_switched_on_applies_after_the_last_task(service: Service, pid1: Pid1WithServers) -> None:
    """A guest with another address would have two, of which one is dropped."""
    async with service.running(RA.replace("ra = true", "")) as client:
        lease = await client.lease("a")
        assert lease.address6 != slaac_address(PREFIX, lease.mac)
        service.configure(RA)
        service.end()
        await service.restart()
        assert (pid1.running(), (await client.networks())[0].ra) == ([], False)
        async with Guest(lease) as guest, Guest(await client.lease("b")):
            await guest.pinged6(guest.gateway6, b"up")
        for task in "ab":
            await client.drop(task)
        lease = await client.lease("a")
        assert lease.address6 == slaac_address(PREFIX, lease.mac)
        assert pid1.running() == [SERVER]
