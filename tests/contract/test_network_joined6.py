"""IPv6 on a joined bridge: leased addresses of the LAN's prefix, or any address of a guest with its own MAC."""

import contextlib
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from ipaddress import IPv6Address, IPv6Interface

import pytest
from tests.contract.guest import UDP
from tests.contract.guest6 import (
    ADVERT,
    ALL_NODES,
    FRAGMENT,
    ICMPV6,
    NOWHERE,
    REDIRECT,
    ROUTER_ADVERT,
    ROUTER_SOLICIT,
    Guest6,
    datagram,
    multicast,
)
from tests.contract.netns import run
from tests.contract.netservice import Service, nic
from tests.contract.test_network_guards6 import MLD_QUERY, MLD_REPORT
from tests.contract.test_network_ipv6 import ask6
from tests.contract.test_network_joined import LAN, POOL, Lan, changes, frames, join, lan, leased, state, stays
from tests.contract.test_network_policy import FORWARD

from solo5_systemd.base.errors import InvalidRequestError, TakenError
from solo5_systemd.network.model import Lease, NicRequest

__all__ = ["lan"]

ROUTER, PEER6 = IPv6Address("fe80::2"), IPv6Address("2001:db8:5::2")
PREFIX = f'{LAN}ipv6 = "2001:db8:5::/64"\ngateway6 = "{ROUTER}"\n'
POOL6 = f'{PREFIX}pool6 = "2001:db8:5::200-2001:db8:5::201"\n'
STRANGER = bytes.fromhex("020000000099")


@pytest.fixture
def machine(lan: Lan) -> Lan:
    """The LAN, whose machine has two addresses of IPv6."""
    for address in (f"{PEER6}/64", f"{ROUTER}/64"):
        lan.machine.ip("address", "add", address, "dev", "lan-out", "nodad")
    return lan


@contextlib.contextmanager
def wire(machine: Lan) -> Iterator[socket.socket]:
    """A socket that receives every frame that reaches the machine."""
    with machine.machine.entered():
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    made.setblocking(False)
    with closing(made):
        yield made


async def test_a_guest_has_an_address_of_the_lan_and_changes_nothing_on_the_host(
    service: Service, machine: Lan
) -> None:
    before = state()
    await join(service, POOL6)
    async with service.client() as client:
        lease = await leased(client)
        assert str(lease.ipv6) in ("2001:db8:5::200/64", "2001:db8:5::201/64")
        assert (lease.gateway6, lease.ipv4) == (ROUTER, None)
        async with Guest6(lease) as guest:
            await guest.pinged6(PEER6, b"to the LAN")
            with machine.machine.entered():
                asking = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
            assert await ask6(str(guest.ip6), 7, sock=asking) == b"HELLO"
        assert changes(before) == {}, "no forwarding, and no address at the bridge"
        assert "table ip6" not in run("nft", "list", "tables")
        assert len({(await leased(client, task)).ipv6 for task in ("a", "b")}) == 2
        with pytest.raises(TakenError, match=r"all of 2001:db8:5::200-2001:db8:5::201 are taken"):
            await leased(client, "c")
        for task in ("a", "b"):
            await client.drop(task)


async def test_requested_addresses_are_of_the_prefix_and_of_the_pool(service: Service, machine: Lan) -> None:
    def wanted(address: str) -> tuple[NicRequest]:
        return (replace(nic("service", "lan"), ipv6=IPv6Address(address)),)

    await join(service, PREFIX)
    async with service.client() as client:
        chosen = await leased(client)
        assert chosen.address6 is not None
        assert chosen.address6 in IPv6Interface("2001:db8:5::/64").network
        found = await client.have("b", nics=wanted("2001:db8:5::77"))
        assert str(found.leases[0].ipv6) == "2001:db8:5::77/64"
        with pytest.raises(InvalidRequestError, match=r"expected one in 2001:db8:5::/64, other than the first"):
            await client.have("c", nics=wanted("2001:db8:6::77"))
        for task in ("a", "b"):
            await client.drop(task)
    for settings, refusal in (
        (POOL6, r"outside network lan: expected one in 2001:db8:5::200-2001:db8:5::201\."),
        (f"{LAN}ipv6 = true\n", r"which leases no IPv6 address.*Set the LAN's prefix as network\.lan\.ipv6"),
    ):
        (service.settings / "solo5.toml").write_text(settings)
        async with service.client() as client:
            with pytest.raises(InvalidRequestError, match=f"(?s){refusal}"):
                await client.have("c", nics=wanted("2001:db8:5::77"))


@pytest.mark.parametrize("known", [True, False], ids=["leased", "any address"])
async def test_attacks_of_a_guest_do_not_leave_its_tap(service: Service, machine: Lan, known: bool) -> None:
    await join(service, POOL6 if known else f"{LAN}ipv6 = true\n")
    async with service.client() as client:
        lease = await leased(client)
        await _attack(lease if known else _addressed(lease), machine, known=known)
        await client.drop("a")


def _addressed(lease: Lease) -> Lease:
    assert (lease.ipv6, lease.gateway6) == (None, None)
    return replace(lease, ipv6=IPv6Interface("2001:db8:5::200/64"), gateway6=ROUTER)


async def _attack(lease: Lease, machine: Lan, *, known: bool) -> None:
    """Send each frame, and then what is proper: what has not arrived at the machine by then was dropped."""
    other = IPv6Address("2001:db8:5::3")
    async with Guest6(lease) as guest:
        there = await guest.resolve6(guest.gateway6)

        def said(to: IPv6Address, word: bytes, *, source: IPv6Address | None = None) -> bytes:
            return guest.ipv6(there, to, UDP, datagram(source or guest.ip6, to, 9, 7, word), source=source)

        def announced(kind: int, body: bytes, *, source: IPv6Address | None = None) -> bytes:
            return guest.icmp6(multicast(ALL_NODES), ALL_NODES, kind, body, source=source)

        own = said(PEER6, b"proper")
        proper = {
            "link-local address": said(ROUTER, b"a neighbour", source=guest.link_local),
            "solicitation": guest.solicit(PEER6),
            "advertisement": guest.advertise(guest.ip6),
            "duplicates of its own": guest.solicit(guest.ip6, source=NOWHERE),
            "looks for a router": announced(ROUTER_SOLICIT, bytes(4), source=NOWHERE),
            "joins a group": announced(MLD_REPORT, bytes(4), source=NOWHERE),
        }
        by_address = {
            "another address": said(PEER6, b"forged", source=other),
            "the router's address": said(PEER6, b"forged router", source=ROUTER),
            "solicitation of another": guest.solicit(PEER6, source=other),
            "advertisement of another": guest.advertise(other),
            "advertisement of the router": guest.advertise(ROUTER, source=ROUTER),
            "duplicates of another": guest.solicit(other, source=NOWHERE),
        }
        attacks = {
            "as a stranger": own[:6] + STRANGER + own[12:],
            "solicitation with another MAC": guest.solicit(PEER6, mac=STRANGER),
            "advertisement with another MAC": guest.advertise(guest.ip6, mac=STRANGER),
            "the machine's, with another MAC": guest.advertise(PEER6, mac=STRANGER, source=PEER6),
            "advertisement with two options": announced(
                ADVERT, b"\x60\0\0\0" + guest.ip6.packed + b"\2\1" + guest.mac + b"\2\1" + STRANGER
            ),
            "router": announced(ROUTER_ADVERT, bytes(12), source=guest.link_local),
            "redirect": announced(REDIRECT, bytes(4) + other.packed + PEER6.packed, source=guest.link_local),
            "query of groups": announced(MLD_QUERY, bytes(20), source=guest.link_local),
            "DHCPv6": guest.ipv6(there, PEER6, UDP, datagram(guest.ip6, PEER6, 547, 546, b"REPLY")),
            "fragment": guest.ipv6(there, PEER6, FRAGMENT, bytes([ICMPV6, 0, 0, 1, 0, 0, 0, 7]) + bytes(8)),
            **(by_address if known else {}),
        }
        passing = proper if known else proper | by_address
        with wire(machine) as heard:
            for frame in (*attacks.values(), *passing.values(), own):
                guest.send(frame)
            got: list[bytes] = []
            await guest.pinged6(PEER6, b"after all of them")
            got += frames(heard)
        assert {name for name, frame in attacks.items() if frame in got} == set()
        assert {name for name, frame in passing.items() if frame in got} == passing.keys()
        assert own in got


async def test_fragments_pass_where_the_network_permits_them(service: Service, machine: Lan) -> None:
    await join(service, f"{POOL6}fragments = true\n")
    async with service.client() as client:
        async with Guest6(await leased(client)) as guest:
            there = await guest.resolve6(guest.gateway6)
            part = guest.ipv6(there, PEER6, FRAGMENT, bytes([ICMPV6, 0, 0, 1, 0, 0, 0, 7]) + bytes(8))
            with wire(machine) as heard:
                guest.send(part)
                await guest.pinged6(PEER6, b"after it")
                assert part in frames(heard)
        await client.drop("a")


@pytest.mark.parametrize("settings", [POOL6, f"{LAN}ipv6 = true\n"], ids=["leased", "any address"])
async def test_a_restart_and_damaged_files_leave_guests_and_bridge_as_they_are(
    service: Service, machine: Lan, settings: str
) -> None:
    await join(service, settings)
    async with service.client() as client:
        wanted = await client.have("a", nics=(nic("service", "lan"),))
    before = state()
    await stays(service, wanted)
    lease = wanted.leases[0]
    async with Guest6(lease if lease.ipv6 else _addressed(lease)) as guest:
        await guest.pinged6(PEER6, b"still")
    async with service.client() as client:
        await client.drop("a")
    assert changes(before) == {}


async def test_beside_a_network_of_the_service_with_ipv6(service: Service, machine: Lan) -> None:
    """What that network needs of the host begins and ends with it, and a guest on the LAN has both families."""
    before = state()
    await join(service, f"{POOL}{POOL6.removeprefix(LAN)}[network.default]\nipv6 = true\n")
    async with service.client() as client:
        lease = await leased(client)
        assert lease.ipv4 is not None
        async with Guest6(lease) as guest:
            own = await client.lease("b")
            assert own.address6 not in IPv6Interface("2001:db8:5::/64").network
            assert "table ip6" in run("nft", "list", "tables")
            await guest.pinged6(PEER6, b"beside")
            await client.drop("b")
            assert (FORWARD.read_text(), changes(before)) == ("0\n", {})
            assert "table ip6" not in run("nft", "list", "tables")
            await guest.pinged6(PEER6, b"alone")
        await client.drop("a")
