"""Tasks that wait without a process: their FIFOs, and what is kept of them for the time after a boot.

tests/contract/test_network_activation.py shows the same with the kernel's packets.
"""

import fcntl
import json
import os
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface, IPv6Interface
from pathlib import Path
from typing import Any

import pytest
from tests.fast.network.test_nft_rules import RESERVATION, network
from tests.fast.networkd.test_sleep import Tables, bridges_of

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.names import TaskName
from solo5_systemd.network import lease_files, nft_elements
from solo5_systemd.network.lease_files import LeaseStore
from solo5_systemd.network.model import LeaseRecord, LeaseState, MacAddress
from solo5_systemd.network.neighbours import Neighbours
from solo5_systemd.networkd import task_units
from solo5_systemd.networkd.leases import Leases
from solo5_systemd.networkd.sleepers import Sleepers
from solo5_systemd.networkd.task_units import TaskUnits
from solo5_systemd.settings import records

A = RESERVATION.task


@pytest.fixture
def fifos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(task_units, "FIFOS", tmp_path / "fifos")
    (tmp_path / "fifos").mkdir()
    return tmp_path / "fifos"


@pytest.fixture
def units(fifos: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TaskUnits]:
    monkeypatch.setattr(task_units, "UNITS", str(fifos))
    bus: Any = None
    with closing(TaskUnits(bus)) as found:
        yield found


@pytest.fixture
def fifo(fifos: Path) -> Iterator[int]:
    """The FIFO of the task's socket unit, as PID 1 has it."""
    os.mkfifo(fifos / A)
    descriptor = os.open(fifos / A, os.O_RDONLY | os.O_NONBLOCK)
    yield descriptor
    os.close(descriptor)


def test_a_task_is_started_by_its_fifo(units: TaskUnits, fifo: int) -> None:
    assert [*units.with_fifo()] == [A]
    assert units.is_read(A)
    assert units.start(A)
    assert os.read(fifo, 100) == b"\n"
    size = fcntl.fcntl(fifo, fcntl.F_SETPIPE_SZ, 4096)
    for _ in range(size + 1):  # beyond what it has room for
        assert units.start(A)


def test_a_fifo_that_nothing_reads_starts_nothing(units: TaskUnits, fifos: Path) -> None:
    os.mkfifo(fifos / A)
    assert not units.start(A)
    assert not units.is_read(A)
    units.remove_fifo(A)
    units.remove_fifo(A)
    assert not units.has_fifo(A)


def test_what_is_no_fifo_starts_nothing_and_stays_as_it_is(units: TaskUnits, fifos: Path, fifo: int) -> None:
    (fifos / "file").write_text("as it was")
    (fifos / "directory").mkdir()
    (fifos / "link").symlink_to(fifos / A)
    (fifos / "broken").symlink_to(fifos / "none")
    assert [*units.with_fifo()] == [A]
    for name in ("file", "directory", "link", "broken", "none"):
        assert not units.has_fifo(TaskName(name))
        assert not units.start(TaskName(name))
    assert (fifos / "file").read_text() == "as it was"
    assert os.read(fifo, 100) == b""


def test_without_its_directory_no_task_has_a_fifo(units: TaskUnits, fifos: Path) -> None:
    fifos.rmdir()
    assert (units.start(A), [*units.with_fifo()]) == (False, [])


def test_a_task_that_begins_to_wait_keeps_what_lets_its_packets_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    held = replace(RESERVATION, idle_s=60, idle_stops=True)
    runs = LeaseRecord(reservation=held, state=LeaseState.ATTACHED, expires=12, wakes=5, slept=6)
    tables, done = Tables(), list[Any]()
    bridges = bridges_of(tables)
    bridges.leases.save(runs)
    monkeypatch.setattr(Neighbours, "hold", lambda _, bridge, lease: done.append(lease))
    tables.elements = {*bridges.elements_of([runs])}
    Sleepers(bridges).wait(runs)
    record = bridges.leases.get(A)
    assert record is not None
    assert record.waits
    assert record.asleep, "since now"
    assert tables.elements == {*nft_elements.record_elements(record, [network()])}
    assert done == [*RESERVATION.leases]


# -- the lease records in memory: the same values as in their files, and not much for each of many tasks -------------


TASKS = 300

MOST_BYTES = 2000
"""What Python takes for one of these records, with its entries in tables: 1,600, or 2,200 if nothing is shared."""


def record(number: int) -> LeaseRecord:
    """Return the record of a task that waits, with a NIC of both families and a port, as read from its file."""
    lease = replace(
        RESERVATION.leases[0],
        tap=f"s5{number:013}",
        ipv4=IPv4Interface((IPv4Address("10.77.0.0") + number, 16)),
        mac=MacAddress(f"02:00:00:00:{number >> 8:02x}:{number & 255:02x}"),
        ipv6=IPv6Interface(f"fd00::{number:x}/64"),
    )
    port = replace(RESERVATION.ports[0], host_port=1024 + number)
    held = replace(RESERVATION, task=TaskName(f"web{number}"), leases=(lease,), ports=(port,), idle_s=600)
    made = LeaseRecord(reservation=held, state=LeaseState.WAITING, expires=number, asleep=10**15 + number)
    return records.record(LeaseRecord, Fields(json.loads(json.dumps(records.document(made)))))


@pytest.fixture
def leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Leases:
    monkeypatch.setattr(lease_files, "STATE", tmp_path)
    return Leases(LeaseStore())


def test_what_is_kept_is_what_was_saved(leases: Leases) -> None:
    for number in (1, 2):
        leases.save(record(number))
    assert leases.records == (record(1), record(2))
    for kept, saved in zip(leases.records, (record(1), record(2)), strict=True):
        [lease], [expected] = kept.reservation.leases, saved.reservation.leases
        for name in ("ipv4", "ipv6"):
            mine, other = (
                (str(each), each.ip, each.network, each.netmask)
                for each in (getattr(lease, name), getattr(expected, name))
            )
            assert mine == other


def test_a_record_takes_little_memory(leases: Leases) -> None:
    for number in range(10):
        leases.remember(record(number))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(10, 10 + TASKS):
            leases.remember(record(number))
        each = (tracemalloc.get_traced_memory()[0] - before) / TASKS
    finally:
        tracemalloc.stop()
    assert each < MOST_BYTES
    first, last = leases.records[0], leases.records[-1]
    assert first.reservation.leases[0].limits is last.reservation.leases[0].limits
