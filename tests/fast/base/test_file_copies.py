"""Copies keep content and holes."""

import errno
import fcntl
import hashlib
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

import pytest
from tests.support.fakes.kernel import failing

from solo5_systemd.base import file_copies

SIZE = 8 << 20


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    with path.open("wb") as file:
        file.truncate(SIZE)
        file.seek(3 << 20)
        file.write(b"middle" * 1000)
    return path


@contextmanager
def opened(source: Path, target: Path) -> Iterator[tuple[int, int]]:
    with source.open("rb") as one, target.open("w+b") as other:
        yield one.fileno(), other.fileno()


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("hashed", [True, False])
def test_data_is_copied_and_holes_are_kept(source: Path, tmp_path: Path, hashed: bool) -> None:
    seen: list[int] = []
    with opened(source, tmp_path / "target") as (one, other):
        assert file_copies.copy_data(one, other, SIZE, seen.append, hashed=hashed) == (digest(source) if hashed else "")
    assert (tmp_path / "target").read_bytes() == source.read_bytes()
    assert (tmp_path / "target").stat().st_blocks * 512 < 1 << 20
    assert (sorted(seen), seen[-1]) == (seen, SIZE)


def test_what_is_sent_has_its_holes_as_zeros(source: Path) -> None:
    with source.open("rb") as file, subprocess.Popen("sha256sum", stdin=PIPE, stdout=PIPE) as sums:
        assert sums.stdin is not None
        sent = file_copies.copy_data(file.fileno(), sums.stdin.fileno(), SIZE)
        assert sent == digest(source) == sums.communicate()[0].decode().split()[0]


def test_zeros_of_a_pipe_become_holes(source: Path, tmp_path: Path) -> None:
    with opened(source, tmp_path / "target") as (one, other):
        assert file_copies.receive_data(one, other) == (SIZE, digest(source))
    assert (tmp_path / "target").read_bytes() == source.read_bytes()
    assert (tmp_path / "target").stat().st_blocks * 512 <= 1 << 20


def test_a_file_that_ends_within_a_chunk(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"x" * 1000)
    with opened(tmp_path / "source", tmp_path / "target") as (one, other):
        assert file_copies.receive_data(one, other) == (1000, digest(tmp_path / "source"))


def test_a_file_system_that_knows_no_holes_has_none_and_its_other_errors_are_raised(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with source.open("rb") as file:
        monkeypatch.setattr(os, "lseek", failing(errno.EINVAL))
        assert list(file_copies.data_of(file.fileno(), SIZE)) == [(0, SIZE)]
        monkeypatch.setattr(os, "lseek", failing(errno.EIO))
        with pytest.raises(OSError, match="Input/output error"):
            list(file_copies.data_of(file.fileno(), SIZE))


def test_a_file_that_becomes_shorter_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"x" * 1000)
    short = pytest.raises(OSError, match="it has become shorter meanwhile")
    with opened(tmp_path / "source", Path(os.devnull)) as (one, other), short:
        file_copies.copy_data(one, other, 2000)


def test_blocks_are_shared_or_not(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(source, tmp_path / "target") as (one, other):
        monkeypatch.setattr(fcntl, "ioctl", failing(errno.EOPNOTSUPP))
        assert not file_copies.share(one, other)
        monkeypatch.setattr(fcntl, "ioctl", failing(errno.ENOSPC))
        with pytest.raises(OSError, match="No space"):
            file_copies.share(one, other)
        monkeypatch.setattr(fcntl, "ioctl", lambda *_: 0)
        assert file_copies.share(one, other)


def test_whether_blocks_can_be_shared_is_found_out_with_one_of_them(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole reflink takes long, and writers wait for it."""
    lengths: list[int] = []

    def ioctl(_target: int, _request: int, parameters: bytes) -> int:
        lengths.append(struct.unpack("=qQQQ", parameters)[2])
        return 0

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    with opened(source, tmp_path / "target") as (one, other):
        block = os.fstatvfs(other).f_bsize
        for size in (block, 10 * block):
            os.truncate(source, size)
            assert file_copies.can_share(one, other)
    assert lengths == [0, block], "the end of a file need not be that of a block"
