"""Disk locks: one task at a time; the descriptor of one task cannot affect another."""

import errno
import fcntl
import json
import os
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.fakes.kernel import failing

from solo5_systemd.base.errors import HostError, TakenError
from solo5_systemd.base.locks import closing
from solo5_systemd.base.names import DeviceName
from solo5_systemd.storage import locks
from solo5_systemd.storage.locks import Record, holders, lock, read_record, records_of_tasks, remove_stale
from solo5_systemd.storage.model import Disk


def disk(name: str, *identity: int) -> Disk:
    major, inode = identity
    return Disk(disk=DeviceName(name), path=f"/srv/{name}", identity=(major, inode))


def test_a_disk_is_one_tasks_at_a_time(locks: Path) -> None:
    with closing(lock([disk("a", 1, 2)])), closing(lock([disk("b", 1, 3), disk("c", 2, 2)])):
        with pytest.raises(TakenError, match="disk d: '/srv/d' is in use by another task"):
            lock([disk("d", 1, 2)])
        with pytest.raises(TakenError, match="disk c"):
            lock([disk("e", 7, 7), disk("c", 2, 2)])
        with closing(lock([disk("e", 7, 7)])):  # a refused lock kept nothing
            pass
    with closing(lock([disk("a", 1, 2), disk("c", 2, 2)])):
        pass


def test_of_many_at_once_one_gets_the_disk(locks: Path) -> None:
    """A lock is that of an open file: threads race for it as processes do."""

    def attempt(_: int) -> int | None:
        try:
            return lock([disk("a", 1, 2)])
        except TakenError:
            return None

    with ThreadPoolExecutor(6) as racers:
        mine = [each for each in racers.map(attempt, range(6)) if each is not None]
    assert len(mine) == 1
    os.close(mine[0])


def test_a_record_that_is_cut_short_by_a_full_file_system_is_no_lock(locks: Path) -> None:
    _, most = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, most))
    try:
        with pytest.raises(HostError, match="disks cannot be locked in .*: File too large"):
            lock([disk("a", 1, 2)], task="web")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not records_of_tasks()


def test_directory_that_cannot_be_used_is_the_hosts_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").touch()
    monkeypatch.setattr(locks, "LOCKS", tmp_path / "run/disks")
    with pytest.raises(HostError, match="disks cannot be locked in .*/run/disks: Not a directory"):
        lock([disk("a", 1, 2)])
    with pytest.raises(HostError, match="the locks of disks in .*/run/disks cannot be read: Not a directory"):
        holders()


def test_a_file_system_without_locks_is_the_hosts_fault(locks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK))
    before = {fd.name for fd in Path("/proc/self/fd").iterdir()}
    with pytest.raises(HostError, match="disks cannot be locked in .*: No locks available"):
        lock([disk("a", 1, 2)])
    assert {fd.name for fd in Path("/proc/self/fd").iterdir()} == before


def test_what_a_tender_is_handed_cannot_be_written_and_is_no_other_tasks_file(locks: Path) -> None:
    with closing(lock([disk("a", 1, 2), disk("b", 1, 3)])) as mine, closing(lock([disk("c", 1, 4)])) as theirs:
        assert fcntl.fcntl(mine, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(mine, b"x")
        assert not os.path.samestat(os.fstat(mine), os.fstat(theirs))
        assert os.fstat(mine).st_mode & 0o777 == 0o400
        fcntl.flock(mine, fcntl.LOCK_UN)
        with pytest.raises(TakenError):
            lock([disk("c", 1, 4)])
    assert locks.stat().st_mode & 0o777 == 0o700


def test_names_of_disks_that_no_task_has_are_removed(locks: Path) -> None:
    remove_stale()
    with closing(lock([disk("a", 1, 2)])), closing(lock([disk("b", 1, 3)])):
        pass
    with closing(lock([disk("b", 1, 3)])):
        remove_stale()
        assert [name.name for name in locks.iterdir()] == ["1-3"]
        with pytest.raises(TakenError):
            lock([disk("b", 1, 3)])
    remove_stale()
    assert list(locks.iterdir()) == []


def test_the_record_of_a_later_version_is_that_of_its_task_and_a_damaged_one_is_empty(locks: Path) -> None:
    with closing(lock([disk("a", 1, 2)], task="web")):
        [name] = locks.iterdir()
        mine, content = records_of_tasks()["web"], json.loads(name.read_text())
        name.chmod(0o600)
        name.write_text(json.dumps({**content, "later": [1]}))
        assert (records_of_tasks(), holders()) == ({"web": mine}, {(1, 2): "web"})
        name.write_text(json.dumps({"task": "web"}))
        assert records_of_tasks() == {"web": Record(task="web")}
        for damaged in ("{", "[]", '{"disks": 1}', '{"task": 1}'):
            name.write_text(damaged)
            assert read_record(name) == Record()
