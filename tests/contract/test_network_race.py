"""Races: other programs that change nftables during a change of the service, and a release that fails."""

from dataclasses import replace
from ipaddress import IPv4Interface
from pathlib import Path

import pytest
from tests.contract.netns import link, run
from tests.contract.netservice import Service, host_state, udp, until
from tests.fast.network.test_nft_rules import RESERVATION, in_state

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import TaskName
from solo5_systemd.network.nft_elements import Ruleset, elements
from solo5_systemd.network.nft_objects import Element
from solo5_systemd.network.nft_tables import Tables

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


async def test_what_others_do_to_their_own_tables_leaves_ours_intact(no_tables: None) -> None:
    tables = Disturbed("add table ip other", *["delete table ip other; add table ip other"] * 2)
    tables.replace(RULESET)
    tables.replace(RULESET)
    assert tables.are_intact(lambda: elements(RULESET))
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
import subprocess, sys
from solo5_systemd.network.nft_tables import Tables
from solo5_systemd.networkd import main as program

def meddled(change):
    def meddle(self, *elements):
        for family in ("ip", "bridge"):
            subprocess.run(["nft", "delete", "table", family, "solo5"], check=True)
        change(self, *elements)
    return meddle

Tables.exchange = meddled(Tables.exchange)
sys.exit(program.main())
"""
"""The service, whose tables are deleted after each successful check."""


async def test_a_start_and_an_end_amid_a_flush_leave_the_tables_as_they_are_to_be(service: Service) -> None:
    service.start("--shared-tables", program=("-c", _FLUSHED_AMID))
    await service.ready()
    async with service.client() as client:
        await client.lease("a", udp(5301))
        before = host_state()
        await client.lease("b", udp(5302))
        assert "5302" in run("nft", "list", "table", "ip", "solo5")
        await client.drop("b")
        assert host_state() == before
        await client.drop("a")


_FAILS_ONCE = """
import sys
from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import TaskName
from solo5_systemd.network import links as netlink
from solo5_systemd.networkd import leases, main as program, maintenance, task_units

async def over(self, tasks):
    return frozenset(tasks)

def fail(links):
    netlink.delete_links = delete
    raise HostError("not now.")

delete, netlink.delete_links = netlink.delete_links, fail
leases.ATTACH_TIMEOUT_S = maintenance.UNIT_CHECK_INTERVAL_S = 1
task_units.TaskUnits.over = over
sys.exit(program.main())
"""
"""The service, with one failing deletion of links, a check of units every second, and no running units."""


async def test_a_release_that_failed_is_finished_by_a_sweep(service: Service) -> None:
    before = host_state()
    service.start(program=("-c", _FAILS_ONCE))
    await service.ready()
    async with service.client() as client:
        await client.lease("a", udp(5301))
        with pytest.raises(HostError, match=r"not now\."):
            await client.drop("a")
        assert host_state() != before
        await until(lambda: host_state() == before, 10)


_ATTACHED_LATE = """
import asyncio, sys, threading
from solo5_systemd.networkd import leases, main as program, maintenance, namespaces, service

time, over, called, looked = 100, threading.Event(), threading.Event(), threading.Event()
leases.now = maintenance.now = namespaces.now = lambda: time
maintenance.UNIT_CHECK_INTERVAL_S = 1
attach, make_tap, expired = service.Networkd._attach, program.Links.make_tap, namespaces.Namespaces.expired

async def until_called(self):
    global time
    if self._core.state.next_expiry() is not None and not called.is_set():
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
maintenance.Maintenance._report_repairs = until_called
program.Links.make_tap = make
sys.exit(program.main())
"""
"""The service with a test clock: an expired reservation is attached just before its release."""


async def test_a_reservation_that_is_attached_as_it_expires_is_kept(service: Service) -> None:
    service.start(program=("-c", _ATTACHED_LATE))
    await service.ready()
    async with service.client() as client:
        lease = await client.lease("a")
        # Calls for one task are in turn: this one is answered after all that is to be done with it.
        await client.attach(TaskName("a"))
        assert link(lease.tap)["master"] == lease.bridge
        assert [held.task for held in await client.reservations()] == ["a"]
        await client.drop("a")


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
