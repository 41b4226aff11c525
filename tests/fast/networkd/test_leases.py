"""The lease records in memory: the same values as in their files, and not much for each of many tasks."""

import json
import tracemalloc
from ipaddress import IPv4Address, IPv4Interface, IPv6Interface
from pathlib import Path

import pytest

from solo5_systemd.base.names import DeviceName, NetworkName, TaskName
from solo5_systemd.network import lease_files
from solo5_systemd.network.lease_files import LeaseStore, of_document, to_document
from solo5_systemd.network.model import Lease, LeaseRecord, LeaseState, MacAddress, PortRequest, Protocol, Reservation
from solo5_systemd.networkd.leases import Leases

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
