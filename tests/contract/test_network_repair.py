"""Repairs after changes by other programs or a damaged file, and the signal Repaired."""

import asyncio
import platform
import re
import socket
import struct
import subprocess
import time
from contextlib import aclosing, closing
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from tests.contract.guest import UDP, Guest
from tests.contract.netns import link, run
from tests.contract.netservice import UNTOLD, Client, Service, host_state, nic, tcp, udp, until
from tests.contract.test_network_paths import ask_tcp, ask_udp
from tests.contract.test_network_policy import FORWARD
from tests.support.nft_listing import settled

from solo5_systemd.network.kernel_events import LinkWatch
from solo5_systemd.network.model import Lease


async def test_a_flushed_ruleset_is_rebuilt(service: Service) -> None:
    """As on a kernel or nftables without table owners."""
    async with service.running(None, "--shared-tables") as client:
        lease = await client.lease("a", udp(5353))
        before = host_state()
        for harm in (
            ("flush", "ruleset"),
            ("delete", "table", "bridge", "solo5"),
            ("flush", "chain", "bridge", "solo5", "prerouting"),
            ("flush", "map", "ip", "solo5", "published"),
            ("add", "rule", "ip", "solo5", "output", "drop"),
        ):
            begun = time.monotonic()
            run("nft", *harm)
            _until_both_are_there()
            print(f"nft {' '.join(harm)}: both tables are there after {(time.monotonic() - begun) * 1000:.0f} ms")
            await until(lambda: host_state() == before)
        async with Guest(lease):
            assert await ask_udp("127.0.0.1", 5353) == b"HELLO"


def _until_both_are_there() -> None:
    while not {"table ip solo5", "table bridge solo5"} <= {*run("nft", "list", "tables").splitlines()}:
        pass


async def test_a_change_of_other_tables_is_no_reason_for_a_repair(service: Service) -> None:
    """Also with clients and connections of guests, which the kernel has recorded in sets."""
    async with (
        service.running(None, "--shared-tables") as client,
        Guest(await client.lease("a", udp(5353))) as guest,
    ):
        assert await ask_udp("127.0.0.1", 5353) == b"HELLO"
        await guest.send_udp(guest.gateway, 5353, b"hello")
        await guest.heard_udp(b"HELLO")
        run("nft", "add", "table", "ip", "other")
        await client.lease("b")
        run("nft", "delete", "table", "ip", "other")
        await client.drop("b")
    assert "repaired" not in service.log.read_text()


def has_table_owners() -> bool:
    """Return whether kernel and nftables can make tables with `flags owner, persist`: Linux 6.9 and nftables 1.1.0."""
    kernel, nft = platform.release(), run("nft", "--version")
    versions = [tuple(map(int, re.findall(r"\d+", each)[:2])) for each in (kernel, nft)]
    return versions[0] >= (6, 9) and versions[1] >= (1, 1)


async def test_a_flush_by_another_program_does_not_touch_the_tables(service: Service) -> None:
    """At no moment can a guest reach the loopback or forge its address; without owners, tables are repaired."""
    async with service.running() as client:
        first, second = await client.lease("a"), await client.lease("b")
        before = settled(run("nft", "--stateless", "-a", "list", "ruleset"))
        assert ("progname" in before) is has_table_owners(), "nft shows the program that owns a table"
        if has_table_owners():
            await _flushed_in_vain(first, second)
            assert settled(run("nft", "--stateless", "-a", "list", "ruleset")) == before
            assert "repaired" not in service.log.read_text()
        else:
            state = host_state()
            run("nft", "flush", "ruleset")
            await until(lambda: host_state() == state)


async def _flushed_in_vain(first: Lease, second: Lease) -> None:
    """Flush the ruleset while a guest sends what the rules drop."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as listener:
        listener.bind(("127.0.0.1", 9))
        listener.setblocking(False)
        async with Guest(first) as a, Guest(second) as b:
            gateway, victim = await a.resolve(a.gateway), await a.resolve(b.ip)
            body = struct.pack("!HHHH", 9, 9, 8 + 6, 0)
            attacks = (
                a.ipv4(gateway, IPv4Address("127.0.0.1"), UDP, body + b"attack"),
                a.ipv4(victim, b.ip, UDP, body + b"forged", source=a.gateway),
            )
            for _ in range(30):
                run("nft", "flush", "ruleset")
                for attack in attacks:
                    a.send(attack)
            a.send(a.ipv4(victim, b.ip, UDP, body + b"proper"))
            await b.heard(lambda frame: frame[42:].startswith(b"proper"))
            assert not [frame for frame in b.frames if frame[42:].startswith(b"forged")]
            with pytest.raises(BlockingIOError):
                listener.recv(100)
    for harm in (("delete", "table", "ip", "solo5"), ("flush", "chain", "bridge", "solo5", "prerouting")):
        with pytest.raises(subprocess.CalledProcessError):
            run("nft", *harm)


async def test_deleted_links_are_rebuilt(service: Service) -> None:
    async with service.running() as client:
        lease = await client.lease("a", udp(5353))
        before = host_state()
        for harm in (("del", lease.bridge), ("del", lease.tap), ("set", lease.tap, "nomaster")):
            run("ip", "link", *harm)
            await until(lambda: host_state() == before and link(lease.tap).get("master") == lease.bridge)
        async with Guest(lease):
            assert await ask_udp("127.0.0.1", 5353) == b"HELLO"


@pytest.mark.parametrize(
    "harm",
    [
        "ip link set {tap} down",
        "ip link set {bridge} down",
        "ip address flush dev {bridge}",
        "sysctl -q -w net.ipv4.ip_forward=1 net.ipv4.ip_forward=0",
    ],
)
async def test_what_is_restored_is_signalled_to_its_tasks_and_the_rest_is_not_touched(
    service: Service, harm: str
) -> None:
    async with service.running() as client, aclosing(client.repairs()) as repairs:
        told = asyncio.ensure_future(anext(repairs))
        lease = await client.lease("a", udp(5353))
        other = (await client.have("b", nics=(nic("service", "default"),))).leases[0]
        async with Guest(lease):  # a tap that no tender has is made anew
            taps = [(lease.tap, ""), (lease.tap, "a"), (other.tap, ""), (other.tap, "b")]
            numbers = [link(*tap)["ifindex"] for tap in taps]
            before, tables = host_state(), run("nft", "-a", "list", "tables")
            begun = time.monotonic()
            run("sh", "-ec", harm.format(tap=lease.tap, bridge=lease.bridge))
            repair = await told
            print(f"{harm}: signalled after {(time.monotonic() - begun) * 1000:.0f} ms")
            assert list(repair.tasks) == (["a"] if "{tap}" in harm else ["a", "b"])
            assert (host_state(), run("nft", "-a", "list", "tables")) == (before, tables)
            assert [link(*tap)["ifindex"] for tap in taps] == numbers
            assert await ask_udp("127.0.0.1", 5353) == b"HELLO"


async def test_a_port_at_127_0_0_1_is_reachable_again_after_a_flipped_sysctl(service: Service) -> None:
    """The kernel sends no message about route_localnet: it is found at the next check of units, after 20 s at most."""
    async with service.running(None, *UNTOLD) as client:
        lease = await client.lease("a", tcp(8080, host_ip="127.0.0.1"))
        async with Guest(lease):
            assert await ask_tcp("127.0.0.1", 8080) == b"HELLO"
            flag = FORWARD.parent / f"conf/{lease.bridge}/route_localnet"
            flag.write_text("0")
            await until(lambda: flag.read_text() == "1\n")
            assert await ask_tcp("127.0.0.1", 8080) == b"HELLO"


async def test_an_attach_is_no_message_to_the_watch_and_a_release_few(service: Service) -> None:
    """A link, its address and its sysctls change some twenty times in between; the kernel drops the messages."""
    await service.restart()
    with closing(LinkWatch()) as watch:
        async with service.client() as client:
            first = await client.lease("a", udp(5353))
            second = await client.lease("b")
            assert watch.changed() == frozenset()
            await client.drop("b")
            assert watch.changed() == frozenset({second.tap})
            run("ip", "link", "set", first.tap, "down")
            assert first.tap in (watch.changed() or ())
            await client.drop("a")


async def test_what_is_changed_while_the_service_is_down_is_restored_by_its_start(service: Service) -> None:
    (service.settings / "own.toml").write_text("[network.default]\nipv6 = true\n")
    await service.restart()
    async with service.client() as client:
        await client.lease("a", udp(5353))
    flags = (FORWARD.parent / "conf/lo/forwarding", Path("/proc/sys/net/ipv6/conf/all/forwarding"))
    service.kill()
    FORWARD.write_text("1\n")
    for flag in (FORWARD, *flags):
        flag.write_text("0\n")
    await service.restart()
    assert [flag.read_text() for flag in flags] == ["1\n", "1\n"]
    async with service.client() as client:
        assert sorted(each.what for each in await client.recent_repairs()) == [
            "net.ipv4.conf.*.forwarding was not 1: it is set again",
            "net.ipv6.conf.all.forwarding was not 1: it is set again",
        ]
        await client.drop("a")


async def test_a_damaged_lease_file_is_restored(service: Service) -> None:
    """From the task's request; without one, it is removed."""
    await service.restart()
    async with service.client() as client:
        wanted = await client.have("a", udp(5353), tcp(80, host_ip="127.0.0.1"))
    before = host_state()
    service.kill()
    for file in ("tasks/a.json", "tasks/b.json"):
        (service.state / file).write_text('{"version": 1, "leases": [["')
    async with service.running() as client:
        (found,) = await client.reservations()
        assert (found.leases, set(found.ports)) == (wanted.leases, set(wanted.ports))
        assert host_state() == before
        assert "b.json cannot be read" in service.log.read_text()


async def test_each_repair_is_signalled_with_its_tasks_also_after_a_kill(service: Service) -> None:
    async with service.running(None, "--shared-tables") as client, aclosing(client.repairs()) as repairs:
        told = asyncio.ensure_future(anext(repairs))
        first, _ = await client.lease("a"), await client.have("b", nics=(nic("service"), nic("management")))
        run("nft", "flush", "ruleset")
        repair = await told
        assert sorted(repair.tasks) == ["a", "b"]
        assert "nftables" in repair.what
        service.kill()
        await service.restart("--shared-tables")
        run("ip", "link", "del", first.tap)
        repair = await anext(repairs)
        assert (list(repair.tasks), first.tap in repair.what) == (["a"], True)


async def test_a_signal_of_another_sender_is_no_repair(service: Service) -> None:
    await service.restart()
    async with service.connected() as connection, aclosing(Client(connection).repairs()) as repairs:
        client = Client(connection)
        told = asyncio.ensure_future(anext(repairs))
        lease = await client.lease("a")
        bus = await connection.connect()
        for where in ((f"--dest={bus.unique_name}",), ()):
            send = ("dbus-send", f"--bus={service.bus.address}", "--type=signal", *where)
            run(*send, "/org/solo5/Network1", "org.solo5.Network1.Repaired", "array:string:a", "string:forged")
        run("ip", "link", "del", lease.tap)
        assert (await told).what != "forged"
        await client.drop("a")
