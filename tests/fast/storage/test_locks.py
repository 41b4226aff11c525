"""Disk locks: one task at a time; the descriptor of one task cannot affect another."""

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.fakes.kernel import failing

from solo5_systemd.base.errors import HostError, TakenError
from solo5_systemd.base.names import DeviceName
from solo5_systemd.storage import locks
from solo5_systemd.storage.locks import holders, lock, remove_stale
from solo5_systemd.storage.model import Disk


def disk(name: str, *identity: int) -> Disk:
    major, inode = identity
    return Disk(disk=DeviceName(name), path=f"/srv/{name}", identity=(major, inode))


@contextmanager
def locked(directory: Path, *disks: Disk) -> Iterator[int]:
    descriptor = lock(disks)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def test_a_disk_is_one_tasks_at_a_time(locks: Path) -> None:
    with locked(locks, disk("a", 1, 2)), locked(locks, disk("b", 1, 3), disk("c", 2, 2)):
        with pytest.raises(TakenError, match="disk d: '/srv/d' is in use by another task"):
            lock([disk("d", 1, 2)])
        with pytest.raises(TakenError, match="disk c"):
            lock([disk("e", 7, 7), disk("c", 2, 2)])
        with locked(locks, disk("e", 7, 7)):  # a refused lock kept nothing
            pass
    with locked(locks, disk("a", 1, 2), disk("c", 2, 2)):
        pass


RACE = """
import sys
from pathlib import Path
from solo5_systemd.storage import locks
from solo5_systemd.storage.locks import lock
from solo5_systemd.storage.model import Disk
from solo5_systemd.base.errors import TakenError
locks.LOCKS = Path(sys.argv[1])
sys.stdin.readline()
try:
    lock([Disk(disk="a", path="/a", identity=(1, 2))])
    print("mine", flush=True)
except TakenError:
    print("taken", flush=True)
sys.stdin.readline()
"""


def test_of_many_processes_one_gets_the_disk(locks: Path) -> None:
    racers = [
        subprocess.Popen([sys.executable, "-c", RACE, str(locks)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(6)
    ]
    try:
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write(b"go\n")
            racer.stdin.flush()
        answers = [racer.stdout.readline() for racer in racers if racer.stdout]
    finally:
        for racer in racers:
            racer.communicate(b"\n")
    assert sorted(answers) == [b"mine\n", *[b"taken\n"] * 5]


def test_directory_that_cannot_be_used_is_the_hosts_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").touch()
    monkeypatch.setattr(locks, "LOCKS", tmp_path / "run/disks")
    with pytest.raises(HostError, match="disks cannot be locked in .*/run/disks: Not a directory"):
        lock([disk("a", 1, 2)])
    with pytest.raises(HostError, match="the locks of disks in .*/run/disks cannot be read: Not a directory"):
        holders()


def test_a_file_system_without_locks_is_the_hosts_fault(locks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcntl.flock", failing(errno.ENOLCK))
    before = {fd.name for fd in Path("/proc/self/fd").iterdir()}
    with pytest.raises(HostError, match="disks cannot be locked in .*: No locks available"):
        lock([disk("a", 1, 2)])
    assert {fd.name for fd in Path("/proc/self/fd").iterdir()} == before


def test_what_a_tender_is_handed_cannot_be_written_and_is_no_other_tasks_file(locks: Path) -> None:
    with locked(locks, disk("a", 1, 2), disk("b", 1, 3)) as mine, locked(locks, disk("c", 1, 4)) as theirs:
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
    with locked(locks, disk("a", 1, 2)), locked(locks, disk("b", 1, 3)):
        pass
    with locked(locks, disk("b", 1, 3)):
        remove_stale()
        assert [name.name for name in locks.iterdir()] == ["1-3"]
        with pytest.raises(TakenError):
            lock([disk("b", 1, 3)])
    remove_stale()
    assert list(locks.iterdir()) == []
