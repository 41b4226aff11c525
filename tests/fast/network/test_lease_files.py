"""The request of a task, the mark of a start, and ports that were moved."""

import json
import logging
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fast.network.test_network_model import RECORD
from tests.support.fakes.tasks import LEASE
from tests.support.interpreter import python

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import TaskName
from solo5_systemd.network.lease_files import LeaseStore, remove_request, start_mark
from solo5_systemd.network.model import LeaseRecord, LeaseState, Reservation
from solo5_systemd.networkd.leases import Leases

WEB = TaskName("web")
KILLED = """
import os, signal, sys
from pathlib import Path
from solo5_systemd.network import lease_files
lease_files.STATE = Path(sys.argv[1])
with lease_files.start_mark("web"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def record(state: LeaseState = LeaseState.RESERVED, expires: int = 60) -> LeaseRecord:
    held = Reservation(task=WEB, leases=(LEASE,))
    return LeaseRecord(reservation=held, state=state, expires=expires)


@pytest.fixture
def store(state: Path) -> LeaseStore:
    store = LeaseStore()
    store.save_lease_record(record())
    store.keep_request(WEB)
    return store


def test_a_request_remains_as_it_was_after_the_record_has_changed_and_is_gone(store: LeaseStore) -> None:
    store.save_lease_record(record(LeaseState.ATTACHED, 99))
    assert store.request(WEB) == record()
    store.remove_lease_record(WEB)
    assert (store.request(WEB), list(store.lease_records())) == (record(), [])
    store.save_lease_record(record(expires=99))
    store.keep_request(WEB)
    assert store.request(WEB) == record(expires=99), "a later request"


def test_a_damaged_record_is_that_of_the_request_as_attached_and_is_removed_without_one(
    store: LeaseStore, tmp_path: Path
) -> None:
    for name in ("web", "other"):
        (tmp_path / f"tasks/{name}.json").unlink(missing_ok=True)
        (tmp_path / f"tasks/{name}.json").write_text("{")
    for _ in range(2):
        assert list(store.lease_records()) == [record(LeaseState.ATTACHED)]
        assert [path.name for path in (tmp_path / "tasks").iterdir()] == ["web.json"]


def test_a_request_is_its_owners_and_of_one_task(store: LeaseStore, tmp_path: Path) -> None:
    requests = tmp_path / "requests"
    assert [path.stat().st_mode & 0o777 for path in (requests, requests / "web.json")] == [0o700, 0o600]
    os.link(tmp_path / "requests/web.json", tmp_path / "requests/other.json")
    assert store.request(TaskName("other")) is None
    assert store.request(TaskName("never")) is None


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b"{" * 9999, b'{"task": "../x"}'])
def test_a_damaged_request_is_none_with_a_line_in_the_log(
    store: LeaseStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    (tmp_path / "requests/web.json").write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert store.request(WEB) is None
    assert "requests/web.json cannot be read" in caplog.text


def test_a_request_that_cannot_be_kept_or_removed_is_an_error(state: Path) -> None:
    store = LeaseStore()
    with pytest.raises(HostError, match=r"requests/web\.json cannot be made: No such file"):
        store.keep_request(WEB)
    shutil.rmtree(state / "requests", ignore_errors=True)
    (state / "requests").write_text("in the way")
    with pytest.raises(HostError, match="the request of task web cannot be removed"):
        remove_request(WEB)


def test_the_mark_exists_during_the_start_only(store: LeaseStore, tmp_path: Path) -> None:
    mark = tmp_path / "requests/web.start"
    with start_mark(WEB):
        assert json.loads(mark.read_text())["reservation"]["task"] == "web", (
            "access(2) follows it, as ConditionPathExists= does"
        )
    assert not mark.is_symlink()
    with pytest.raises(HostError), start_mark(WEB):
        raise HostError("the start failed.")
    assert not mark.is_symlink()


def test_the_mark_of_a_killed_process_leads_nowhere_and_is_replaced(store: LeaseStore, tmp_path: Path) -> None:
    mark = tmp_path / "requests/web.start"
    done = python(KILLED, str(tmp_path), check=False)
    assert done.returncode == -signal.SIGKILL
    assert (mark.is_symlink(), mark.exists()) == (True, False)
    with Path(os.devnull).open() as other:  # a descriptor with that number of a process with that PID
        mark.unlink()
        mark.symlink_to(f"/proc/{os.getpid()}/fd/{other.fileno()}/web.json")
        assert not mark.exists()
    with start_mark(WEB):
        assert mark.exists()


def test_without_a_request_or_its_directory_there_is_no_mark_and_no_error(store: LeaseStore, tmp_path: Path) -> None:
    remove_request(WEB)
    with start_mark(WEB):
        assert not (tmp_path / "requests/web.start").exists()
    (tmp_path / "requests").rmdir()
    with start_mark(WEB):
        assert list(tmp_path.rglob("*.start")) == []
    remove_request(WEB)


def test_another_namespace_has_its_own_records_and_networks(store: LeaseStore, tmp_path: Path) -> None:
    other = LeaseStore("/run/netns/group")
    mine = replace(record(), reservation=Reservation(task=TaskName("b"), leases=(LEASE,)), namespace="/run/netns/group")
    other.save_lease_record(mine)
    other.save_sysctls({"ipv4/ip_forward": "0"})
    assert (list(store.lease_records()), list(other.lease_records())) == ([record()], [mine])
    assert (tuple(store.others()), store.sysctls()) == ((mine,), {})
    store.remove_namespaces(["/run/netns/group"])
    assert other.sysctls()
    store.remove_namespaces([])
    assert not list((tmp_path / "namespaces").iterdir())
    other.save_sysctls({"ipv4/ip_forward": "0"})
    other.remove_namespace()
    store.remove_namespace()
    assert (other.sysctls(), list(store.lease_records())) == ({}, [record()])


# -- records of ports that were moved: what a service finds that was killed between two files ------------------------


PORTS = RECORD.reservation.ports
OLD = replace(RECORD, reservation=replace(RECORD.reservation, task=TaskName("old")))
NEW = replace(RECORD, reservation=replace(RECORD.reservation, task=TaskName("new"), ports=()))


@pytest.fixture
def leases(state: Path) -> Leases:
    made = Leases(LeaseStore())
    made.save(OLD)
    made.save(NEW)
    return made


def test_a_port_of_two_records_belongs_to_the_later_move(leases: Leases) -> None:
    assert PORTS
    without, having = leases.move_ports(OLD, NEW)
    assert (without.reservation.ports, having.reservation.ports, having.lender) == ((), PORTS, "old")
    leases.save(OLD)  # as if its second file had not been written
    leases.resolve_moves()
    held = {each.reservation.task: each.reservation.ports for each in leases.records}
    assert held == {"old": (), "new": PORTS}
    with_ports, back = leases.get(TaskName("new")), leases.get(TaskName("old"))
    assert with_ports
    assert back
    returned, again = leases.move_ports(with_ports, back)
    assert (returned.lender, again.lender, again.reservation.ports) == ("", "", PORTS)
    leases.save(with_ports)
    leases.resolve_moves()
    assert {each.reservation.task: each.reservation.ports for each in leases.records} == {"old": PORTS, "new": ()}
