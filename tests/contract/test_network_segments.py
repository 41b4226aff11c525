"""Networks with more guests than one bridge has ports: further bridges, of one tap each here."""

import json
from contextlib import closing
from ipaddress import IPv4Address

import pytest
from tests.contract.guest import BROADCAST, ICMP, UDP, Guest
from tests.contract.netns import Outside, link, run
from tests.contract.netservice import Service, host_state, tcp, udp, until
from tests.contract.sockets import arrived, ask_tcp, ask_udp, bound, next_at

from solo5_systemd.network.ipam import segment_link, segments
from solo5_systemd.network.model import Lease

FIRST, SECOND, THIRD, FOURTH = "solo5-default", *segments("solo5-default")[:3]
ROOM = "from solo5_systemd.network import ipam\nipam.TAPS_PER_BRIDGE = {}"
"""There is room for so many taps on each bridge."""

ONE_TAP = ROOM.format(1)


def bridges() -> set[str]:
    """Return the names of all bridges."""
    return {each["ifname"] for each in json.loads(run("ip", "-j", "link", "show", "type", "bridge"))}


def address(lease: Lease) -> IPv4Address:
    assert lease.ipv4 is not None
    return lease.ipv4.ip


async def pinged(one: Guest, other: Lease) -> bool:
    """Return whether a guest has an echo reply of another."""
    try:
        mac = await one.resolve(address(other))
    except TimeoutError:
        return False
    one.send(one.ipv4(mac, address(other), ICMP, b"\x08\0\xf7\xff\0\0\0\0"))
    await one.heard(lambda frame: frame[26:30] == address(other).packed and frame[34:35] == b"\0")
    return True


@pytest.mark.parametrize(
    ("taps", "bridges_used"), [(1, [FIRST, SECOND, THIRD, FOURTH]), (2, [FIRST, FIRST, SECOND, SECOND])]
)
async def test_guests_of_all_bridges_are_one_network(
    service: Service, outside: Outside, bridge_nf: None, taps: int, bridges_used: list[str]
) -> None:
    ports = range(5301, 5305)
    async with service.running(change=ROOM.format(taps)) as client:
        leases = [await client.lease(f"task-{port}", udp(port), tcp(port)) for port in ports]
        assert [lease.bridge for lease in leases] == bridges_used
        async with Guest(leases[0]) as a, Guest(leases[1]), Guest(leases[2]) as c, Guest(leases[3]):
            for one, other in ((a, 1), (a, 2), (c, 0), (c, 3)):
                assert await pinged(one, leases[other])
            for port in ports:
                assert await ask_udp(outside.host, port) == b"HELLO"
                assert await ask_tcp("127.0.0.1", port) == b"HELLO"
                for guest in (a, c):
                    guest.frames.clear()
                    await guest.send_udp(guest.gateway, port, b"hello")
                    assert await guest.heard_udp(b"HELLO") == (guest.gateway, port)
        for port in ports:
            await client.drop(f"task-{port}")
        assert not bridges()
        assert not run("ip", "-o", "link", "show", "type", "veth").count("s5"), "no link between bridges is left"


async def test_isolated_guests_do_not_reach_each_other_over_bridges(service: Service) -> None:
    async with service.running("[network.default]\nisolated = true\n", change=ONE_TAP) as client:
        leases = [await client.lease(name) for name in ("a", "b", "c")]
        async with Guest(leases[0]) as a, Guest(leases[1]) as b, Guest(leases[2]) as c:
            for guest in (a, b, c):
                await guest.resolve(guest.gateway)  # its port is up
            for one, other in ((a, b), (b, c), (b, a)):
                one.send(one.arp(1, BROADCAST, other.ip))
                one.send(one.udp(other.mac, other.ip, 7777, b"closed"))
            for guest in (a, b, c):  # behind what the others have sent
                guest.frames.clear()
                await guest.resolve(guest.gateway)
            for guest in (a, b, c):
                heard = [frame for frame in guest.frames if frame[6:12] in (a.mac, b.mac, c.mac) or b"closed" in frame]
                assert heard == []


async def test_a_guest_of_a_segment_cannot_forge_its_address(service: Service) -> None:
    async with service.running(change=ONE_TAP) as client:
        first, second = await client.lease("a"), await client.lease("b")
        async with Guest(first) as a, Guest(second) as b:
            victim = await b.resolve(address(first))
            b.send(b.ipv4(victim, address(first), UDP, b"\0\x09\0\x09\0\x0e\0\0forged", source=b.gateway))
            b.send(b.arp(2, victim, address(first), ip=b.gateway))
            assert await pinged(b, first)
            assert not [frame for frame in a.frames if b"forged" in frame or frame[28:32] == b.gateway.packed]


async def test_a_segment_is_no_way_to_the_host_or_beyond_it(service: Service, outside: Outside) -> None:
    """Its MAC answers for no address; frames to it would pass neither the connection limit nor the masquerading."""
    with outside.entered():
        listener = bound(outside.address, 9)
    with closing(listener), closing(bound("0.0.0.0", 9)) as host:
        async with service.running(change=ONE_TAP) as client:
            await client.lease("a")
            async with Guest(await client.lease("b")) as b:
                segment = bytes.fromhex(link(SECOND)["address"].replace(":", ""))
                body = b"\0\x09\0\x09\0\x0e\0\0attack"
                for mac, to in ((segment, outside.address), (segment, outside.host), (BROADCAST, "255.255.255.255")):
                    b.send(b.ipv4(mac, IPv4Address(to), UDP, body))
                assert await b.resolve(b.gateway) == bytes.fromhex(link(FIRST)["address"].replace(":", ""))
                assert len({frame[6:12] for frame in b.frames if frame[28:32] == b.gateway.packed}) == 1
                await b.send_udp(IPv4Address(outside.address), 9, b"proper")
                assert (await next_at(listener))[0] == b"proper"
                assert arrived(listener) == arrived(host) == []


async def test_a_restart_and_a_repair_keep_the_bridges(service: Service) -> None:
    async with service.running(change=ONE_TAP) as client:
        await client.lease("a")
        second = await client.lease("b", udp(5301))
        before = host_state()
        service.kill()
        await service.restart(change=ONE_TAP)
        assert host_state() == before
        async with Guest(second):
            for harm in (segment_link(SECOND)[0], SECOND):
                run("ip", "link", "delete", harm)
                await until(lambda: SECOND in bridges() and link(second.tap).get("master") == SECOND)
                await until(lambda: f"bridge {SECOND} of network default was incomplete" in service.log.read_text())
                assert await ask_udp("127.0.0.1", 5301) == b"HELLO"
        # Its place on the first bridge is free: a new guest has it.
        await client.drop("a")
        assert (await client.lease("c")).bridge == FIRST
    assert not bridges()


@pytest.mark.parametrize("kind", ["veth", "bridge"])
async def test_a_link_of_another_program_is_not_taken(service: Service, kind: str) -> None:
    run("ip", "link", "add", SECOND, "type", kind)
    async with service.running(change=ONE_TAP) as client:
        await client.lease("a")
        with pytest.raises(Exception, match=f"link {SECOND} exists and is not a bridge of solo5-networkd"):
            await client.lease("b")
        assert str((await client.networks())[0].leases) == "2", "reserved, not attached"
    run("ip", "link", "delete", SECOND)
