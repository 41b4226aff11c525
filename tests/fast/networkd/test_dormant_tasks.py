"""Tasks that wait without a process: their FIFOs, and what is kept of them for the time after a boot.

tests/contract/test_network_activation.py shows the same with the kernel's packets.
"""

import fcntl
import json
import os
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface, IPv6Interface
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.fast.network.test_nft_rules import RESERVATION, network
from tests.fast.networkd.test_sleep import Bridges, Tables

from solo5_systemd.base.names import DeviceName, NetworkName, TaskName
from solo5_systemd.network import lease_files, nft_elements
from solo5_systemd.network.lease_files import LeaseStore, of_document, to_document
from solo5_systemd.network.model import (
    Lease,
    LeaseRecord,
    LeaseState,
    MacAddress,
    PortRequest,
    Protocol,
    Reservation,
)
from solo5_systemd.network.neighbours import Neighbours
from solo5_systemd.networkd import dormant_tasks
from solo5_systemd.networkd.dormant_tasks import Waiting
from solo5_systemd.networkd.leases import Leases

A = RESERVATION.task
(LEASE,) = RESERVATION.leases
HELD = replace(RESERVATION, idle_s=60, idle_stops=True)
RECORD = LeaseRecord(reservation=HELD, state=LeaseState.ATTACHED, expires=12, asleep=34, wakes=5, slept=6)


class Service:
    """The tasks that wait, with directories of their own."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fifos = directory / "fifos"
        self.fifos.mkdir()
        self.tables, self.held = Tables(), list[str]()
        self.leases = Leases(cast(Any, SimpleNamespace(save_lease_record=lambda record: None)))
        self.leases.save(RECORD)
        for each in ("hold", "refuse"):
            monkeypatch.setattr(Neighbours, each, lambda _, bridge, lease: lease.nic in self.held)
        monkeypatch.setattr(dormant_tasks, "FIFOS", self.fifos)
        bridges = Bridges(self.tables, self.leases)
        self.tables.elements = {*bridges.elements_of([RECORD])}
        self.waiting = Waiting(cast(Any, bridges))


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    return Service(tmp_path, monkeypatch)


@pytest.fixture
def fifo(service: Service) -> Iterator[int]:
    """The FIFO of the task's socket unit, as PID 1 has it."""
    os.mkfifo(service.fifos / A)
    descriptor = os.open(service.fifos / A, os.O_RDONLY | os.O_NONBLOCK)
    yield descriptor
    os.close(descriptor)


def test_a_task_waits_while_its_socket_unit_is_active(service: Service, fifo: int) -> None:
    waiting = service.waiting
    assert [*waiting.names()] == [A]
    assert waiting.may_wait(A)
    assert waiting.start(A)
    assert os.read(fifo, 100) == b"\n"
    size = fcntl.fcntl(fifo, fcntl.F_SETPIPE_SZ, 4096)
    for _ in range(size + 1):  # beyond what it has room for
        assert waiting.start(A)


def test_a_task_that_is_not_to_be_ended_does_not_wait(service: Service, fifo: int) -> None:
    service.leases.save(replace(RECORD, reservation=RESERVATION))
    assert not service.waiting.may_wait(A)
    assert not service.waiting.may_wait(TaskName("unknown"))


def test_a_fifo_that_nothing_reads_starts_nothing(service: Service) -> None:
    os.mkfifo(service.fifos / A)
    assert not service.waiting.start(A)
    assert not service.waiting.may_wait(A)
    service.waiting.remove_fifo(A)
    service.waiting.remove_fifo(A)
    assert not service.waiting.has_fifo(A)


def test_what_is_no_fifo_starts_nothing_and_stays_as_it_is(service: Service, fifo: int, tmp_path: Path) -> None:
    (service.fifos / "file").write_text("as it was")
    (service.fifos / "directory").mkdir()
    (service.fifos / "link").symlink_to(service.fifos / A)
    (service.fifos / "broken").symlink_to(tmp_path / "none")
    assert [*service.waiting.names()] == [A]
    for name in ("file", "directory", "link", "broken", "none"):
        assert not service.waiting.has_fifo(TaskName(name))
        assert not service.waiting.start(TaskName(name))
    assert (service.fifos / "file").read_text() == "as it was"
    assert os.read(fifo, 100) == b""


def test_a_task_whose_socket_unit_is_not_active_does_not_wait(service: Service) -> None:
    waiting = service.waiting
    assert (waiting.may_wait(A), waiting.start(A), [*waiting.names()]) == (False, False, [])
    service.fifos.rmdir()
    assert (waiting.may_wait(A), waiting.start(A), [*waiting.names()]) == (False, False, [])


def test_a_task_that_begins_to_wait_keeps_what_lets_its_packets_pass(service: Service) -> None:
    service.waiting.begin(RECORD)
    record = service.leases.get(A)
    assert record is not None
    assert (record.state, service.waiting.is_waiting(A)) == (LeaseState.WAITING, True)
    assert record.asleep > 34, "since now"
    assert service.tables.elements == {*nft_elements.record_elements(record, [network()])}
    service.held.append(LEASE.nic)
    assert any(service.waiting.packets(A, Neighbours.hold))


# -- the lease records in memory: the same values as in their files, and not much for each of many tasks -------------


TASKS = 300

MOST_BYTES = 2000
"""What Python takes for one of these records, with its entries in tables: 1,600, or 2,200 if nothing is shared."""


def record(number: int) -> LeaseRecord:
    """Return the record of a task that waits, with a NIC of both families and a port, as read from its file."""
    task, nic = TaskName(f"web{number}"), DeviceName("service")
    lease = Lease(
        nic=nic,
        network=NetworkName("default"),
        bridge="solo5br0",
        tap=f"s5{number:013}",
        ipv4=IPv4Interface((IPv4Address("10.77.0.0") + number, 16)),
        gateway4=IPv4Address("10.77.0.1"),
        mac=MacAddress(f"02:00:00:00:{number >> 8:02x}:{number & 255:02x}"),
        mtu=1500,
        ipv6=IPv6Interface(f"fd00::{number:x}/64"),
    )
    port = PortRequest(nic=nic, host_port=1024 + number, port=80, protocol=Protocol.TCP)
    made = LeaseRecord(
        reservation=Reservation(task=task, leases=(lease,), ports=(port,), idle_s=600, idle_stops=True),
        state=LeaseState.WAITING,
        expires=number,
        asleep=10**15 + number,
    )
    return of_document(LeaseRecord, json.loads(json.dumps(to_document(made))))


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
        for mine, other in ((lease.ipv4, expected.ipv4), (lease.ipv6, expected.ipv6)):
            assert mine is not None
            assert other is not None
            assert (str(mine), mine.ip, mine.network, mine.netmask) == (
                str(other),
                other.ip,
                other.network,
                other.netmask,
            )


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
