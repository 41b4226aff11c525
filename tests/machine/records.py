"""Disks with the records of `sequence` and `ledger` (tests/support/guests), and file systems with reflinks for them."""

import os
import shutil
import stat
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.machine.conftest import DISKS, ok

FACTOR, WORDS = 0x9E3779B97F4A7C15, 64
RECORD = struct.Struct(f"<{WORDS}Q")
COPIES = Path("/var/lib/solo5/copies")
_XFS, _BOTH = Path("/var/tmp/xfs.img"), Path("/srv/xfs")
_LOOPS = {"loop-control": (stat.S_IFCHR, 10, 237)} | {f"loop{i}": (stat.S_IFBLK, 7, i) for i in range(16)}


def newest(path: Path) -> int:
    """Check that a disk has the records up to one number without a gap, and return the number; 0: none."""
    numbers: list[int] = []
    for position, words in enumerate(RECORD.iter_unpack(path.read_bytes())):
        number = words[0]
        whole = [(number * FACTOR + i) % 2**64 for i in range(1, WORDS)] if number else [0] * (WORDS - 1)
        assert list(words[1:]) == whole, f"sector {position} of {path} is torn"
        numbers.append(number)
    last, count = max(numbers), len(numbers)
    # Sector s has the last record whose number is s, modulo the count.
    expected = [max(0, last - (last - position) % count) for position in range(count)]
    assert numbers == expected, f"a hole below record {last} of {path}"
    return last


def records(last: int, sectors: int) -> bytes:
    """Return the content of a disk that has the records up to a number."""
    numbers = [max(0, last - (last - position) % sectors) for position in range(sectors)]
    return b"".join(RECORD.pack(n, *((n * FACTOR + i) % 2**64 if n else 0 for i in range(1, WORDS))) for n in numbers)


def can_share_blocks() -> bool:
    """Return whether the machine was booted with `--packages xfsprogs`."""
    return shutil.which("mkfs.xfs") is not None


@contextmanager
def reflinks(directory: Path, size: str = "400M") -> Iterator[None]:
    """Mount XFS on a directory for the block."""
    mount(directory, size)
    try:
        yield
    finally:
        unmount(directory)


@contextmanager
def reflinks_of_copies() -> Iterator[None]:
    """Have named disks and their private copies on one XFS for the block."""
    with reflinks(_BOTH, "2G"), ExitStack() as stack:
        for place in (DISKS, COPIES):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            (_BOTH / place.name).mkdir(mode=0o700)
            ok("mount", "--bind", str(_BOTH / place.name), str(place))
            stack.callback(ok, "umount", str(place))
        yield


@contextmanager
def no_reflinks(directory: Path) -> Iterator[None]:
    """Mount a file system without them for the block, whatever that of the machine is."""
    ok("mount", "-t", "tmpfs", "-o", "mode=0700", "tmpfs", str(directory))
    try:
        yield
    finally:
        ok("umount", str(directory))


def mount(directory: Path, size: str = "400M") -> None:
    """Mount XFS. In a container, the loop device is one of the host's, which is freed with the mount."""
    _make_loops()
    ok("truncate", f"--size={size}", str(_XFS))
    ok("mkfs.xfs", "-q", str(_XFS))
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    ok("mount", "-o", "loop", str(_XFS), str(directory))
    directory.chmod(0o700)


def _make_loops() -> None:
    for name, (kind, major, minor) in _LOOPS.items():
        if not (device := Path("/dev", name)).exists():
            os.mknod(device, kind | 0o600, os.makedev(major, minor))


@contextmanager
def attached(file: Path) -> Iterator[str]:
    """Attach a file to a loop device that tasks may have, for the block: in a container, to one of the host's."""
    _make_loops()
    device = ok("losetup", "--find", "--show", str(file)).strip()
    with Path(device).open("rb"):
        ok("losetup", "--detach", device)  # with its last user: also when this process is killed
        ok("chown", "solo5:", device)
        yield device


def unmount(directory: Path) -> None:
    """Undo `mount`."""
    ok("umount", str(directory))
    _XFS.unlink()
