import errno
import os
import time
from contextlib import AbstractContextManager, closing
from pathlib import Path
from shutil import rmtree

import pytest
from tests.support.fakes.kernel import failing

from solo5_systemd.cgroup.meter import SETTLE_S, Meter
from solo5_systemd.cgroup.usage import Usage


@pytest.fixture
def group(tmp_path: Path) -> Path:
    (tmp_path / "cpu.stat").write_text("usage_usec 7\n")
    (tmp_path / "memory.current").write_text("4096\n")
    return tmp_path


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the meter, in seconds."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The descriptors of all calls of pread(2)."""
    found, pread = list[int](), os.pread

    def counted(fd: int, size: int, offset: int) -> bytes:
        found.append(fd)
        return pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", counted)
    return found


def meter_of(group: Path) -> AbstractContextManager[Meter]:
    return closing(Meter(str(group)))


def sample(meter: Meter) -> Usage:
    found = meter.sample()
    assert found is not None
    return found


def descriptors(group: Path) -> dict[str, str]:
    """The descriptors of the cgroup's files, deleted ones included."""
    every = {path.name: str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    return {fd: target for fd, target in every.items() if target.startswith(f"{group}/")}


def test_samples_share_what_has_not_changed(group: Path) -> None:
    with meter_of(group) as meter:
        idle, same = sample(meter), sample(meter)
        assert same.memory is idle.memory
        assert same.cpu is idle.cpu
        (group / "cpu.stat").write_text("usage_usec 8\n")
        busy = sample(meter)
        assert (busy.memory is idle.memory, busy.cpu.total) == (True, 8)
        (group / "memory.current").write_text("8192\n")
        grown = sample(meter)
        assert (grown.memory.current, grown.cpu is busy.cpu) == (8192, True)


def test_files_are_opened_once_and_closed_in_the_end(group: Path) -> None:
    with meter_of(group) as meter:
        sample(meter)
        held = descriptors(group)
        sample(meter)
        assert descriptors(group) == held
        assert len(held) == 2
    assert descriptors(group) == {}


def test_a_counter_that_was_missing_is_looked_for_once_the_guest_has_run(group: Path) -> None:
    with meter_of(group) as meter:
        assert sample(meter).memory.peak is None
        (group / "memory.peak").write_text("8192\n")
        assert sample(meter).memory.peak is None
        (group / "cpu.stat").write_text("usage_usec 8\n")
        assert sample(meter).memory.peak == 8192


def test_a_sample_of_an_idle_guest_reads_three_files(group: Path, clock: list[float], reads: list[int]) -> None:
    for name in ("memory.peak", "memory.swap.current"):
        (group / name).write_text("4096\n")
    (group / "memory.stat").write_text("anon 4096\nshmem 0\n")
    with meter_of(group) as meter:
        for passed, files in ((0, 5), (1, 5), (SETTLE_S, 3), (1, 3)):
            clock[0] += passed
            reads.clear()
            assert sample(meter).memory.rss == 4096
            assert len(reads) == files
        (group / "memory.current").write_text("8192\n")
        reads.clear()
        sample(meter)
        assert len(reads) == 5


def test_memory_stat_is_read_for_a_while_after_a_change(group: Path, clock: list[float]) -> None:
    (group / "memory.stat").write_text("anon 4096\nshmem 0\n")
    with meter_of(group) as meter:
        sample(meter)
        clock[0] += SETTLE_S - 1
        (group / "memory.stat").write_text("anon 8192\nshmem 0\n")  # the kernel updates its counters later
        assert sample(meter).memory.rss == 8192


def test_a_cgroup_of_the_same_name_is_read_at_once(group: Path) -> None:
    with meter_of(group) as meter:
        sample(meter)
        rmtree(group)
        assert meter.sample() is not None, "a removed file is still open"
        meter.close()
        assert meter.sample() is None
        group.mkdir()
        (group / "cpu.stat").write_text("usage_usec 1\n")
        (group / "memory.current").write_text("1\n")
        assert (sample(meter).cpu.total, sample(meter).memory.current) == (1, 1)


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENODEV])
def test_a_cgroup_may_vanish_while_it_is_read(group: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    with meter_of(group) as meter:
        sample(meter)
        monkeypatch.setattr(os, "pread", failing(number))
        assert meter.sample() is None
        assert descriptors(group) == {}


def test_a_unit_that_is_started_anew_is_read_from_its_new_cgroup(group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pread = os.pread

    def as_of_a_cgroup(fd: int, size: int, offset: int) -> bytes:
        if str(Path(f"/proc/self/fd/{fd}").readlink()).endswith(" (deleted)"):
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", as_of_a_cgroup)
    with meter_of(group) as meter:
        assert sample(meter).cpu.total == 7
        rmtree(group)
        group.mkdir()
        (group / "cpu.stat").write_text("usage_usec 1\n")
        assert sample(meter).cpu.total == 1


def test_another_error_is_not_taken_for_a_vanished_cgroup(group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pread", failing(errno.EIO))
    with meter_of(group) as meter, pytest.raises(OSError, match="Input/output error"):
        meter.sample()
