"""Links, rules, ports, sysctls and filters of other programs, which the service must not change or wait for."""

import asyncio
import contextlib
import json
import shlex
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address
from pathlib import Path

import pytest
from tests.contract.guest import Guest
from tests.contract.netns import CLIENT6, HOST6, Outside, run
from tests.contract.netservice import Client, Service, host_state, nic, udp, until
from tests.contract.sockets import ask_udp
from tests.contract.test_network_egress import echoes
from tests.contract.test_network_ipv6 import far_socket, prefix

from solo5_systemd.base.errors import TakenError
from solo5_systemd.base.names import TaskName
from solo5_systemd.host.probe import read_kernel
from solo5_systemd.network.model import Lease
from solo5_systemd.settings.solo5_toml import parse_settings

FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
CONF = Path("/proc/sys/net/ipv4/conf")


async def test_an_address_stays_held_though_rules_and_service_are_gone(service: Service, client: Client) -> None:
    held = await client.lease("a")
    service.kill()
    run("nft", "flush", "ruleset")
    await service.restart()
    with pytest.raises(TakenError, match="is taken by task a"):
        await client.reserve(TaskName("b"), (nic("service", ip=str(held.address)),), ())
    assert (await client.lease("b")).ipv4 != held.ipv4


async def test_taps_of_others_are_neither_counted_nor_removed(service: Service) -> None:
    for name in ("tap1", "miragetap1"):
        run("ip", "tuntap", "add", name, "mode", "tap")
    async with service.running() as client:
        await client.lease("a")
        await client.have("b", nics=(nic("service"), nic("management")))
        service.kill()
        await service.restart()
    for name in ("tap1", "miragetap1"):
        run("ip", "tuntap", "del", name, "mode", "tap")


async def test_rules_that_others_change_at_the_same_moment_are_no_hindrance(client: Client, tmp_path: Path) -> None:
    with _busy("nft add table ip other; nft delete table ip other", tmp_path / "stop"):
        names = [f"t{number}" for number in range(20)]
        await asyncio.gather(*(client.lease(name, udp(5300 + n)) for n, name in enumerate(names)))
        await asyncio.gather(*(client.drop(name) for name in names))


async def test_rules_of_others_are_left_as_they_are(service: Service) -> None:
    run("nft", "add table ip nat; add chain ip nat POSTROUTING { type nat hook postrouting priority 100; }")
    before = host_state()
    async with service.running() as client:
        await client.lease("a", udp(5353))
        assert "table ip nat" in run("nft", "list", "ruleset")
    service.end()
    assert host_state() == before
    run("nft", "delete", "table", "ip", "nat")


async def test_no_program_is_looked_for_in_the_path(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as poor:
        poor.setenv("PATH", "/nonexistent")
        service.start()
    await service.ready()
    async with service.client() as client:
        async with Guest(await client.lease("a", udp(5353))):
            assert await ask_udp("127.0.0.1", 5353) == b"HELLO"
        await client.drop("a")


@pytest.mark.parametrize("before", ["0", "1"])
async def test_forwarding_is_on_while_it_is_needed_and_then_as_it_was(service: Service, before: str) -> None:
    """That of links: ip_forward is for other programs, which find it as it was, as is accept_redirects beside it."""
    run("ip", "link", "add", "kept", "type", "veth", "peer", "name", "other")
    FORWARD.write_text(before)
    (CONF / "all/accept_redirects").write_text("0")
    (CONF / "kept/forwarding").write_text("1")
    (CONF / "other/forwarding").write_text("0")
    settings = _ipv4_settings()
    async with service.running() as client:
        await client.lease("a")
        assert (FORWARD.read_text(), (CONF / "other/forwarding").read_text()) == (f"{before}\n", f"{1 - int(before)}\n")
        run("ip", "link", "add", "later", "type", "bridge")
        assert (CONF / "later/forwarding").read_text() == "1\n"
        run("ip", "link", "delete", "later")
        service.kill()
        await service.restart()
        await client.drop("a")
        assert FORWARD.read_text() == f"{before}\n"
        assert _ipv4_settings() == settings
    run("ip", "link", "del", "kept")
    FORWARD.write_text("0")


async def test_a_program_for_which_the_host_forwards_is_followed(service: Service) -> None:
    """Whoever sets ip_forward has packets between other links pass, until someone clears it; connections are kept."""

    def drops() -> bool:
        return "drop" in run("nft", "list", "chain", "ip", "solo5", "foreign")

    async with service.running() as client:
        await client.lease("a")
        tables = run("nft", "-a", "list", "tables")
        assert drops()
        FORWARD.write_text("1")
        await until(lambda: not drops())
        FORWARD.write_text("0")
        await until(drops)
        await until(lambda: (CONF / "lo/forwarding").read_text() == "1\n")
        FORWARD.write_text("1")
        await until(lambda: not drops())
        assert run("nft", "-a", "list", "tables") == tables
    assert (FORWARD.read_text(), (CONF / "lo/forwarding").read_text()) == ("1\n", "1\n"), "it is in use"
    FORWARD.write_text("0")


def _ipv4_settings() -> dict[str, str]:
    files = [*CONF.glob("*/forwarding"), *CONF.glob("*/accept_redirects")]
    return {str(file): file.read_text() for file in files}


@pytest.mark.parametrize(("ipv4", "broadcast"), [("10.77.0.0/16", "10.77.255.255"), ("10.77.0.0/28", "10.77.0.15")])
async def test_a_bridge_broadcasts_to_the_last_address_of_its_range(
    service: Service, ipv4: str, broadcast: str
) -> None:
    async with service.running(f'[network.default]\nipv4 = "{ipv4}"\n') as client:
        lease = await client.lease("a")
        [bridge] = json.loads(run("ip", "-j", "address", "show", "dev", lease.bridge))
        assert [address["broadcast"] for address in bridge["addr_info"]] == [broadcast]


@contextmanager
def _busy(script: str, stop: Path) -> Iterator[None]:
    """Run a shell script again and again in this network namespace; after the block, until it is done once more."""
    with subprocess.Popen(["sh", "-ec", f"while [ ! -e {stop} ]; do {script}; done"]) as shell:
        try:
            yield
            assert shell.poll() is None
        finally:
            stop.touch()
    assert shell.returncode == 0


# -- filters of other programs: what `solo5ctl doctor` has of them is what packets meet, and its commands open it ----


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
            async with Guest(lease) as guest:
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
    nat = "{ chain own { type nat hook postrouting priority 100; oifname veth-in masquerade; }; }"
    async with service.running("[network.default]\nipv6 = true\n") as client:
        await client.lease("a")
        try:
            for table, four, six in (("ip6 own", [], ["ip6 own"]), ("inet own", ["inet own"], ["ip6 own", "inet own"])):
                run("nft", f"table {table} {nat}")
                facts = read_kernel(SETTINGS)
                assert (facts.forwarding_tables, facts.forwarding_tables6) == (four, six)
        finally:
            for family in ("ip6", "inet"):
                run("nft", f"add table {family} own; delete table {family} own")


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

    async with Guest(lease) as guest:
        return await _succeeds(reached) and await _succeeds(lambda: ask_udp(HOST6, 5353, sock=far_socket(wan)))


async def _succeeds(way: Callable[[], Awaitable[object]]) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(2):
            await way()
            return True
    return False
