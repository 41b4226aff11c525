"""Archives: names, headers, limits. The same files make the same bytes, whatever their owners and times."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from posixpath import normpath

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import DeviceName
from solo5_systemd.storage.model import SECTOR_SIZE, ArchiveFormat, ArchiveRequest, Backing, Disk, DiskRequest

BLOCK = 512
"""Bytes; headers and contents of a tar archive begin at multiples of it."""

ARCHIVE_MAX = 16 << 20
"""Largest content of an archive, and largest size of a task's archives in all.

They are memory of the host that no limit of the task counts.
"""

ENTRIES_MAX = 4096
DEPTH_MAX = 32
"""Levels of directories below a member."""

PATHS_MAX = 16384
"""Bytes of the paths of an archive's members as JSON, which are in the lock file of its task."""

_CREDENTIAL = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}"


def member(text: str, path: str, *, strip: bool = False) -> tuple[str, str]:
    """Return the member for a path as it was requested: its name, and its path on the host.

    Args:
        text: the requested path, whose components are the name in the archive.
        strip: leave the requested path out of names in the archive.

    Raises:
        InvalidRequestError: the name has no component, or `..`.
    """
    name = normpath(text).lstrip("/")
    if name in ("", ".") or ".." in name.split("/") or "\0" in text:
        raise InvalidRequestError(
            f"{text!r} cannot be a name in an archive: expected a path without '..', such as local/app.toml."
        )
    return "" if strip else name, path


def credential_name(text: str) -> str:
    """Parse the name of a system credential; raises InvalidRequestError if it is malformed."""
    if not re.fullmatch(_CREDENTIAL, text, re.ASCII):
        raise InvalidRequestError(
            f"credential name {text!r} is not usable: expected 1 to 255 letters, digits, '_', '.' or '-', "
            "the first a letter or digit."
        )
    return text


def size_of(request: DiskRequest, sizes: Iterable[int]) -> int:
    """Return the bytes of the archive of entries with these sizes, in whole sectors; a tar archive has an end."""
    sector = request.sector_size
    if request.archive is not None and request.archive.format is ArchiveFormat.TAR:
        return _padded(sum(BLOCK + _padded(each, BLOCK) for each in sizes) + 2 * BLOCK, sector)
    return _padded(sum(sizes), sector)


def _padded(size: int, unit: int) -> int:
    """Return a size with what is missing of the last unit."""
    return -(-size // unit) * unit


def check_total(disks: Iterable[Disk]) -> None:
    """Check the size of a task's archives, which are memory as long as it runs; raises InvalidRequestError."""
    archives = [disk for disk in disks if disk.backing is Backing.ARCHIVE]
    if (total := sum(disk.size for disk in archives)) > ARCHIVE_MAX:
        names = ", ".join(disk.disk for disk in archives)
        raise InvalidRequestError(
            f"the archives of disks ({names}) have {total} bytes, which would be in memory: expected at most "
            f"{ARCHIVE_MAX} in all.",
            "Use a disk image.",
        )


def check_entry(request: DiskRequest, count: int, size: int) -> None:
    """Check the limits of an archive after each entry; raises InvalidRequestError if there is too much."""
    if count > ENTRIES_MAX:
        raise InvalidRequestError(
            f"disk {request.disk}: its archive has more than {ENTRIES_MAX} entries: expected as many or fewer.",
            "Use a disk image.",
        )
    if size > ARCHIVE_MAX:
        raise InvalidRequestError(
            f"disk {request.disk}: its files have more than {ARCHIVE_MAX >> 20} MiB, which would be in memory: "
            "expected as much or less.",
            "Use a disk image.",
        )


def archive_disk(
    disk: DeviceName, archive: ArchiveRequest, *, sector_size: int = SECTOR_SIZE, roots: tuple[str, ...] = ()
) -> DiskRequest:
    """Return the request for a disk with an archive.

    Raises:
        InvalidRequestError: two members have one name, there is none, or their paths are too long in all.
    """
    names = [name for name, _ in archive.members]
    if not names and not archive.credential:
        raise InvalidRequestError(f"disk {disk}: its archive has no file: expected one or more.")
    if "" in names and len(names) > 1:
        raise InvalidRequestError(
            f"disk {disk}: its archive has strip and {len(names)} paths: expected one, since names could be the same."
        )
    if (size := len(json.dumps(archive.members))) > PATHS_MAX:
        raise InvalidRequestError(
            f"disk {disk}: its archive has {len(names)} paths, which are {size} bytes: expected at most {PATHS_MAX}.",
            "Name a directory instead of each file in it.",
        )
    for name, count in Counter(names).items():
        if count > 1:
            raise InvalidRequestError(f"disk {disk}: its archive has {name!r} twice: expected each name once.")
    return DiskRequest(disk=disk, path="", sector_size=sector_size, roots=roots, archive=archive)
