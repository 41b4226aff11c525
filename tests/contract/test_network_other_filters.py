"""Filters of other programs: what `solo5ctl doctor` has of them is what packets meet, and its commands open it."""

import asyncio
import contextlib
import shlex
from collections.abc import Awaitable, Callable
from ipaddress import IPv6Address

import pytest
from tests.contract.guest6 import Guest6
from tests.contract.netns import CLIENT6, HOST6, Outside, run
from tests.contract.netservice import Service, udp
from tests.contract.test_network_egress import echoes
from tests.contract.test_network_ipv6 import far_socket, prefix
from tests.contract.test_network_paths import ask_udp

from solo5_systemd.host.probe import read_kernel
from solo5_systemd.network.model import Lease
from solo5_systemd.settings.solo5_toml import parse_settings

SETTINGS = parse_settings({"network": {"default": {"ipv6": True}}}).networks
ROUTED = parse_settings({"network": {"default": {"ipv6": True, "routed": True}}}).networks
NEIGHBOURS = "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-advert }"
TABLES = {
    "forward of inet": "table inet own { chain own { type filter hook forward priority 5; policy drop; }; }",
    "one family accepted": (
        "table inet own { chain own { type filter hook forward priority 5; policy drop; meta nfproto ipv4 accept; }; }"
    ),
    "IPv6 accepted": (
        'table ip6 own { chain own { type filter hook forward priority 5; policy drop; iifname "solo5-*" accept; '
        'oifname "solo5-*" ct status dnat accept; ct state established,related accept; }; }'
    ),
    "input of ip6": "table ip6 own { chain own { type filter hook input priority 5; policy drop; }; }",
    "input with neighbour discovery": (
        f"table ip6 own {{ chain own {{ type filter hook input priority 5; policy drop; {NEIGHBOURS} "
        "ip6 hoplimit 255 accept; }; }"
    ),
    "input by a protocol": (
        "table inet own { chain own { type filter hook input priority 5; policy drop; meta l4proto ipv6-icmp accept; "
        "}; }"
    ),
}


PUBLISHED = 'ct status dnat accept; ct state established accept; iifname "solo5-*" accept;'
HOOK = "type filter hook forward priority 5; policy"
ROUTED_TABLES = {
    "published ports": f"table inet own {{ chain own {{ {HOOK} drop; {PUBLISHED} }}; }}",
    "all": f'table inet own {{ chain own {{ {HOOK} drop; {PUBLISHED} oifname "solo5-*" accept; }}; }}',
}


@pytest.mark.parametrize("table", ROUTED_TABLES.values(), ids=ROUTED_TABLES)
async def test_what_is_reported_of_a_routed_network_is_what_packets_for_its_guests_meet(
    service: Service, wan: Outside, table: str
) -> None:
    async with service.running("[network.default]\nipv6 = true\nrouted = true\n") as client:
        lease = await client.lease("a")
        wan.ip("route", "replace", str(prefix(lease)), "via", HOST6)

        async def is_open() -> bool:
            async with Guest6(lease) as guest:
                await guest.resolve(guest.gateway6)
                return await _succeeds(lambda: ask_udp(str(guest.ip6), 7, sock=far_socket(wan)))

        try:
            assert await is_open()
            run("nft", table)
            found = read_kernel(ROUTED).dropping_chains
            assert (found == []) is await is_open(), found
            for chain in found or ():
                for command in chain.remedy:
                    run(*shlex.split(command))
            assert read_kernel(ROUTED).dropping_chains == []
            assert await is_open()
        finally:
            for family in ("ip6", "inet"):  # added first, so that the deletion cannot fail
                run("nft", f"add table {family} own; delete table {family} own")


async def test_other_programs_for_which_the_host_forwards_ipv6_are_named(service: Service, wan: Outside) -> None:
    (service.settings / "solo5.toml").write_text("[network.default]\nipv6 = true\n")
    await service.restart()
    nat = "{ chain own { type nat hook postrouting priority 100; oifname veth-in masquerade; }; }"
    async with service.client() as client:
        await client.lease("a")
        try:
            for table, four, six in (("ip6 own", [], ["ip6 own"]), ("inet own", ["inet own"], ["ip6 own", "inet own"])):
                run("nft", f"table {table} {nat}")
                facts = read_kernel(SETTINGS)
                assert (facts.forwarding_tables, facts.forwarding_tables6) == (four, six)
        finally:
            for family in ("ip6", "inet"):
                run("nft", f"add table {family} own; delete table {family} own")
        await client.drop("a")


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
async def test_what_is_reported_is_what_packets_meet(service: Service, wan: Outside, table: str) -> None:
    async with service.running("[network.default]\nipv6 = true\n") as client, echoes(wan, 7, addresses=[CLIENT6]):
        lease = await client.lease("a", udp(5353))
        wan.ip("route", "replace", str(prefix(lease)), "via", HOST6)
        run("ip", "-6", "route", "add", "default", "via", CLIENT6)
        try:
            async with asyncio.timeout(20):
                while not await _is_open(lease, wan):
                    pass
            run("nft", table)
            run("ip", "-6", "neigh", "flush", "dev", lease.bridge)
            found = read_kernel(SETTINGS).dropping_chains
            assert (found == []) is await _is_open(lease, wan), found
            for chain in found or ():
                for command in chain.remedy:
                    run(*shlex.split(command))
            assert read_kernel(SETTINGS).dropping_chains == []
            assert await _is_open(lease, wan)
        finally:
            for family in ("ip6", "inet"):  # added first, so that the deletion cannot fail
                run("nft", f"add table {family} own; delete table {family} own")
            run("ip", "-6", "route", "delete", "default")


async def _is_open(lease: Lease, wan: Outside) -> bool:
    """Return whether a guest that has just started reaches its gateway, and the client, and is reached by it."""

    async def reached() -> None:
        await guest.resolve(guest.gateway6)
        await guest.send_udp(IPv6Address(CLIENT6), 7, b"call")
        await guest.heard_udp(b"CALL", 1)

    async with Guest6(lease) as guest:
        return await _succeeds(reached) and await _succeeds(lambda: ask_udp(HOST6, 5353, sock=far_socket(wan)))


async def _succeeds(way: Callable[[], Awaitable[object]]) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(2):
            await way()
            return True
    return False
