"""Addresses and ports of lease records, as a list of tasks shows them."""

import json
import threading
from dataclasses import replace
from ipaddress import IPv6Address, IPv6Interface
from pathlib import Path

import pytest
from tests.support.fakes.tasks import LEASE, PORTS, endpoints

from solo5_systemd.base.names import TaskName
from solo5_systemd.bus import network_reader
from solo5_systemd.bus.network_reader import STATE as ORIGINAL
from solo5_systemd.bus.network_reader import read_endpoints, read_problems
from solo5_systemd.engine.backends import QueryBackends
from solo5_systemd.network import lease_files
from solo5_systemd.network.endpoints import Endpoints
from solo5_systemd.network.lease_files import STATE
from solo5_systemd.network.model import LeaseRecord, LeaseState, Reservation
from solo5_systemd.settings.records import document

SIX = replace(LEASE, tap="s5-2", ipv6=IPv6Interface("fd00:77::5/64"), gateway6=IPv6Address("fd00:77::1"))
WEB = Reservation(task=TaskName("web.1"), leases=(LEASE, SIX), ports=PORTS)
SINCE = 1_700_000_000_000_000
BARE = Reservation(task=TaskName("bare"), leases=(LEASE,))


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of lease records."""
    monkeypatch.setattr(network_reader, "STATE", str(tmp_path))
    (tmp_path / "tasks").mkdir()
    return tmp_path / "tasks"


def content(reservation: Reservation) -> dict[str, object]:
    return document(LeaseRecord(reservation=reservation, state=LeaseState.ATTACHED, expires=0))


def test_the_endpoints_are_those_of_the_reservations(tasks: Path) -> None:
    for each in (WEB, BARE):
        (tasks / f"{each.task}.json").write_text(json.dumps(content(each)))
    (tasks / "other.json.damaged").write_text(json.dumps(content(BARE)))
    assert read_endpoints() == {each.task: endpoints(each) for each in (WEB, BARE)}


def test_a_namespace_and_sleep_are_those_of_the_record(tasks: Path) -> None:
    record = content(BARE) | {"namespace": "/run/netns/a", "asleep": SINCE, "wakes": 2, "slept": 7, "state": "waiting"}
    (tasks / "bare.json").write_text(json.dumps(record))
    found = endpoints(BARE)._replace(namespace="/run/netns/a", asleep=SINCE, wakes=2, slept=7, waits=True)
    assert read_endpoints() == {"bare": found}


def test_the_records_are_those_of_the_network_service() -> None:
    assert str(STATE) == ORIGINAL


def test_without_a_network_there_are_none(tasks: Path) -> None:
    tasks.rmdir()
    assert read_endpoints() == {}


@pytest.mark.parametrize(
    "change",
    [
        {"reservation": None}, {"reservation": {"leases": 1}}, {"reservation": {"leases": [{}]}},
        {"namespace": 1}, {"asleep": True}, {"wakes": "2"},
        {"reservation": {"leases": [{"nic": "x", "network": "x", "tap": 1}]}}, {"reservation": {"ports": [{}]}},
        {"reservation": {"ports": [{"host_port": "80", "port": 80, "protocol": "tcp"}]}},
    ],
)  # fmt: skip
def test_a_damaged_record_is_skipped(tasks: Path, change: dict[str, object]) -> None:
    (tasks / "bare.json").write_text(json.dumps(content(BARE)))
    (tasks / "web.1.json").write_text(json.dumps(content(WEB) | change))
    assert read_endpoints() == {"bare": endpoints(BARE)}


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"repairs": [{"what": 1}]}'])
def test_what_is_no_record_is_skipped(tasks: Path, content: bytes) -> None:
    (tasks / "web.json").write_bytes(content)
    (tasks / "directory.json").mkdir()
    (tasks.parent / "repairs.json").write_bytes(content)
    assert (read_endpoints(), [*read_problems()]) == ({}, [])


def test_a_task_without_a_nic_has_no_endpoints(tasks: Path) -> None:
    (tasks / "bare.json").write_text(json.dumps(content(replace(BARE, leases=()))))
    assert read_endpoints() == {"bare": Endpoints()}


async def test_the_records_of_all_tasks_do_not_hold_up_an_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    monkeypatch.setattr(lease_files, "read_lease_records", lambda: threads.append(threading.get_ident()))
    await QueryBackends().networks.records()
    assert threads != [threading.get_ident()]
