"""Repairs after changes by other programs or a damaged file, also during a change, and the signal Repaired."""

import asyncio
import platform
import re
import socket
import struct
import subprocess
import time
from contextlib import aclosing, closing
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path

import pytest
from tests.contract.guest import UDP, Guest
from tests.contract.netns import link, run
from tests.contract.netservice import UNTOLD, Client, Service, host_state, nic, tcp, udp, until
from tests.contract.sockets import ask_tcp, ask_udp
from tests.contract.test_network_egress import LIMITS
from tests.contract.test_network_life import _rewrite
from tests.contract.test_network_policy import FORWARD
from tests.fast.network.test_nft_rules import RESERVATION, in_state
from tests.support.nft_listing import settled

from solo5_systemd.base.errors import HostError, TakenError
from solo5_systemd.base.names import TaskName
from solo5_systemd.network.kernel_events import LinkWatch
from solo5_systemd.network.model import Lease
from solo5_systemd.network.nft_elements import Ruleset, elements
from solo5_systemd.network.nft_objects import Element
from solo5_systemd.network.nft_tables import Tables


async def test_a_flushed_ruleset_is_rebuilt(service: Service) -> None:
    """As on a kernel or nftables without table owners."""
    async with service.running("[network.default]\nipv6 = true\n", "--shared-tables") as client:
        lease = await client.lease("a", udp(5353), limits=LIMITS)
        assert lease.address6 is not None
        chain, chain6 = f"egress-{lease.address}", f"egress-{lease.address6.packed.hex()}"
        before = host_state()
        for harm in (
            "flush ruleset",
            "delete table bridge solo5",
            "delete table ip6 solo5",
            "flush chain bridge solo5 prerouting",
            "flush map ip solo5 published",
            "add rule ip solo5 output drop",
            f"flush chain ip solo5 {chain}",
            f"insert rule ip solo5 {chain} ip daddr 0.0.0.0/1 return",
            "flush map ip solo5 egress",
            "flush map bridge solo5 confined",
            f'delete element bridge solo5 sent_bytes {{ "{lease.tap}" }}',
            f"flush chain ip6 solo5 {chain6}",
            f"insert rule ip6 solo5 {chain6} ip6 daddr 8000::/1 return",
            "flush map ip6 solo5 egress",
        ):
            run("nft", harm)
            await until(lambda: host_state() == before)
        async with Guest(lease):
            assert await ask_udp("127.0.0.1", 5353) == b"HELLO"


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
    assert "repaired" not in service.log.read_text()


def has_table_owners() -> bool:
    """Return whether kernel and nftables can make tables with `flags owner, persist`: Linux 6.9 and nftables 1.1.0."""
    kernel, nft = platform.release(), run("nft", "--version")
    versions = [tuple(map(int, re.findall(r"\d+", each)[:2])) for each in (kernel, nft)]
    return versions[0] >= (6, 9) and versions[1] >= (1, 1)


async def test_a_flush_by_another_program_does_not_touch_the_tables(service: Service, client: Client) -> None:
    """At no moment can a guest reach the loopback or forge its address; without owners, tables are repaired."""
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


@pytest.mark.parametrize(
    "harm",
    [
        "ip link set {tap} down",
        "ip link set {tap} nomaster",
        "ip link set {bridge} down",
        "ip address flush dev {bridge}",
        "sysctl -q -w net.ipv4.ip_forward=1 net.ipv4.ip_forward=0",
    ],
)
async def test_what_is_restored_is_signalled_to_its_tasks_and_the_rest_is_not_touched(
    client: Client, harm: str
) -> None:
    async with aclosing(client.repairs()) as repairs:
        told = asyncio.ensure_future(anext(repairs))
        lease = await client.lease("a", udp(5353))
        other = await client.lease("b", network="default")
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
    with closing(LinkWatch()) as watch:
        async with service.running() as client:
            first = await client.lease("a", udp(5353))
            second = await client.lease("b")
            assert watch.changed() == frozenset()
            await client.drop("b")
            assert watch.changed() == frozenset({second.tap})
            run("ip", "link", "set", first.tap, "down")
            assert first.tap in (watch.changed() or ())


async def test_what_is_changed_while_the_service_is_down_is_restored_by_its_start(service: Service) -> None:
    async with service.running("[network.default]\nipv6 = true\n") as client:
        await client.lease("a", udp(5353))
        flags = (FORWARD.parent / "conf/lo/forwarding", Path("/proc/sys/net/ipv6/conf/all/forwarding"))
        service.kill()
        FORWARD.write_text("1\n")
        for flag in (FORWARD, *flags):
            flag.write_text("0\n")
        await service.restart()
        assert [flag.read_text() for flag in flags] == ["1\n", "1\n"]
        assert sorted(each.what for each in await client.recent_repairs()) == [
            "net.ipv4.conf.*.forwarding was not 1: it is set again",
            "net.ipv6.conf.all.forwarding was not 1: it is set again",
        ]


async def test_a_damaged_lease_file_is_restored(service: Service, client: Client) -> None:
    """From the task's request; without one, it is removed."""
    wanted = await client.have("a", udp(5353), tcp(80, host_ip="127.0.0.1"))
    before = host_state()
    service.kill()
    for file in ("tasks/a.json", "tasks/b.json"):
        (service.state / file).write_text('{"leases": [["')
    await service.restart()
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


# -- Races: other programs that change nftables during a change of the service, and a release that fails -------------


RULESET = Ruleset(records=[in_state(RESERVATION)])
THERE = Element(family="bridge", name="reflected", key=('"s5-b"', '"s5-b"'))


class Disturbed(Tables):
    """Tables with another program that commits a change right after each of the first commits."""

    def __init__(self, *harms: str) -> None:
        super().__init__()
        self.owned = False
        commit, left = self._nft.run, list(harms)

        def disturbed(commands: str) -> None:
            commit(commands)
            if left:
                run("nft", left.pop(0))

        self._nft.run = disturbed  # type: ignore[method-assign]


@pytest.fixture
def no_tables(namespace: None) -> None:
    assert run("nft", "list", "ruleset") == ""


async def test_tables_that_are_taken_away_before_they_were_looked_at_are_made_again(no_tables: None) -> None:
    tables = Disturbed("delete table bridge solo5", "flush ruleset")
    tables.replace(RULESET)
    assert tables.are_intact(lambda: elements(RULESET))
    assert RESERVATION.leases[0].tap in run("nft", "list", "table", "bridge", "solo5")
    tables.close()


async def test_tables_that_are_taken_away_again_and_again_are_never_taken_for_intact(no_tables: None) -> None:
    tables = Disturbed(*["delete table bridge solo5"] * 9)
    tables.replace(RULESET)
    assert not tables.are_intact(lambda: elements(RULESET))
    tables.close()


async def test_after_a_change_that_failed_all_is_in_doubt(no_tables: None) -> None:
    tables = Tables()
    tables.replace(RULESET)
    with pytest.raises(HostError, match="nftables refused a change"):
        tables.exchange([*elements(RULESET), THERE])
    assert not tables.are_intact(list)
    assert tables.are_intact(lambda: elements(RULESET))
    tables.close()


_FLUSHED_AMID = """
import subprocess
from solo5_systemd.network.nft_tables import Tables

def meddled(change):
    def meddle(self, *elements):
        for family in ("ip", "bridge"):
            subprocess.run(["nft", "delete", "table", family, "solo5"], check=True)
        change(self, *elements)
    return meddle

Tables.exchange = meddled(Tables.exchange)
"""
"""The service, whose tables are deleted after each successful check."""


async def test_a_start_and_an_end_amid_a_flush_leave_the_tables_as_they_are_to_be(service: Service) -> None:
    async with service.running(None, "--shared-tables", change=_FLUSHED_AMID) as client:
        await client.lease("a", udp(5301))
        before = host_state()
        await client.lease("b", udp(5302))
        assert "5302" in run("nft", "list", "table", "ip", "solo5")
        await client.drop("b")
        assert host_state() == before


_FAILS_ONCE = """
from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import TaskName
from solo5_systemd.network import links as netlink
from solo5_systemd.networkd import leases, maintenance, task_units

async def over(self, tasks):
    return frozenset(tasks)

def fail(links):
    if passes:
        return delete(passes.pop() and links)
    netlink.delete_links = delete
    raise HostError("not now.")

delete, netlink.delete_links, passes = netlink.delete_links, fail, [True] * {}
leases.ATTACH_TIMEOUT_S = maintenance.UNIT_CHECK_INTERVAL_S = 1
leases.RESERVATION_TIMEOUT_S = 2
task_units.TaskUnits.over = over
"""
"""The service, with a deletion of links that fails, after some others, a check each second, and no running units."""


@pytest.mark.parametrize("killed", [False, True], ids=["a service that runs", "one that was killed"])
async def test_a_bridge_whose_name_another_link_has_prevents_no_other_repair(service: Service, *, killed: bool) -> None:
    async with service.running("[network.other]\n", *UNTOLD) as client:
        await client.lease("a")
        lease = await client.lease("b", network="other")
        if killed:
            service.kill()
        run("ip", "link", "set", "solo5-default", "address", "02:00:00:00:00:01")
        run("ip", "link", "delete", "solo5-other")
        if killed:
            await service.restart(*UNTOLD)
        await until(lambda: link(lease.tap).get("master") == "solo5-other")
        with pytest.raises(TakenError, match="link solo5-default exists"):
            await client.lease("c")
        await client.attach(TaskName("b"))  # as a restart of its unit
        run("ip", "link", "delete", "solo5-default")
        await until(lambda: link("solo5-default") != {})


@pytest.mark.parametrize("why", ["a call", "an expiry", "a kill before"])
async def test_a_release_that_failed_is_finished_by_a_sweep(service: Service, why: str) -> None:
    before = host_state()
    async with service.running(change=_FAILS_ONCE.format(0)) as client:
        if why == "an expiry":
            await client.reserve(TaskName("a"), [nic("service")], [udp(5301)])
        else:
            await client.lease("a", udp(5301))
        if why == "a call":
            with pytest.raises(HostError, match=r"not now\."):
                await client.drop("a")
        if why == "a kill before":
            service.kill()
            _rewrite(service.state / "tasks/a.json", state="releasing")
            await service.restart(change=_FAILS_ONCE.format(1))  # after that of the orphaned tap
        await until(lambda: (host_state(), [*(service.state / "tasks").iterdir()]) == (before, []), 10)
        assert "not now." in service.log.read_text() or why == "a call"
        assert service.is_alive


_ATTACHED_LATE = """
import asyncio, threading
from solo5_systemd.networkd import leases, main as program, maintenance, namespaces, service, watches

time, over, called, looked = 100, threading.Event(), threading.Event(), threading.Event()
leases.now = maintenance.now = namespaces.now = lambda: time
maintenance.UNIT_CHECK_INTERVAL_S = 0  # in each turn
attach, make_tap, expired = service.Networkd._attach, program.Links.make_tap, namespaces.Namespaces.expired

async def until_called(self):
    global time
    if self.core.state.next_expiry() < float("inf") and not called.is_set():
        time += leases.RESERVATION_TIMEOUT_S + 1
        over.set()
        await asyncio.to_thread(called.wait, 60)

async def call(self, name):
    await asyncio.to_thread(over.wait, 60)
    called.set()
    return await attach(self, name)

def look(self):
    found = expired(self)
    if found:
        looked.set()
    return found

def make(self, *arguments, **options):
    looked.wait(60)
    make_tap(self, *arguments, **options)

service.Networkd._attach, namespaces.Namespaces.expired = call, look
maintenance.Maintenance._check_units, watches.Watches.report = until_called, lambda self, repair: None
program.Links.make_tap = make
"""
"""The service with a test clock: an expired reservation is attached just before its release."""


async def test_a_reservation_that_is_attached_as_it_expires_is_kept(service: Service) -> None:
    async with service.running(change=_ATTACHED_LATE) as client:
        lease = await client.lease("a")
        # Calls for one task are in turn: this one is answered after all that is to be done with it.
        await client.attach(TaskName("a"))
        assert link(lease.tap)["master"] == lease.bridge
        assert [held.task for held in await client.reservations()] == ["a"]


def test_a_large_transaction_keeps_no_memory(no_tables: None) -> None:
    """libnftables takes 11 KB for each task."""
    tables = Tables()
    tables.owned = False
    tables.replace(RULESET)
    (lease,), (port, _) = RESERVATION.leases, RESERVATION.ports
    many = [
        replace(
            RESERVATION,
            leases=(replace(lease, tap=f"s5-{number:012}", ipv4=IPv4Interface((0x0A4E0000 + number, 16))),),
            ports=(replace(port, host_port=10_000 + number),),
        )
        for number in range(1, 1001)
    ]
    ruleset = Ruleset(records=[*map(in_state, many)])
    before = _own_memory()
    tables.replace(ruleset)
    assert _own_memory() - before < 5000
    tables.close()


def _own_memory() -> int:
    """Return the anonymous memory of this process in KiB (proc_pid_status(5))."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
