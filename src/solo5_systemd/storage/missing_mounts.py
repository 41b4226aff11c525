"""The mount points below which starts have created disks: none is created there while nothing is mounted.

    /var/lib/solo5/mounts/DIGEST        a mount point, from the first creation of a disk below it

A directory whose file system was not mounted after a boot is an empty one of the file system above it. A blank disk
in it would look like lost data, and hide the disk when the file system is mounted again.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from solo5_systemd.base.atomic_file import replace_file, sync_directory
from solo5_systemd.base.errors import HostError
from solo5_systemd.base.procfs import is_below, mount_point_of

MOUNTS = Path("/var/lib/solo5/mounts")


def check_mounted(path: str, what: str) -> None:
    """Check that a disk which does not exist would not be created in the place of a file system.

    Args:
        path: of the new file, without symbolic links; its directory exists.

    Raises:
        HostError: it would be, or a file cannot be read.
    """
    try:
        for record, mount in _recorded():
            if is_below(path, (mount,)) and mount_point_of(mount) != mount:
                raise HostError(
                    f"{what} does not exist, and nothing is mounted at {mount!r}: expected the file system that was "
                    "mounted there when a disk was created.",
                    f"Mount it; to create disks without it: rm {record}",
                )
    except OSError as error:
        raise HostError(f"{what}: {error.filename or MOUNTS} cannot be read: {error.strerror}.") from error


def remember_mount(path: str) -> None:
    """Record the mount point above a file, on stable storage, before the file is created.

    Records of directories that were removed, such as those of volumes for one allocation, are removed.

    Raises:
        OSError: a file cannot be written.
    """
    mount = mount_point_of(os.path.dirname(path))  # noqa: PTH120 - of a text
    if not mount or mount in (each for _, each in _recorded()):
        return
    MOUNTS.mkdir(mode=0o700, parents=True, exist_ok=True)
    for record, each in _recorded():
        if not os.path.lexists(each):
            record.unlink(missing_ok=True)
    name = hashlib.sha256(os.fsencode(mount)).hexdigest()[:16]
    replace_file(MOUNTS / name, os.fsencode(mount), several_writers=True, durable=True)
    sync_directory(MOUNTS.parent)


def _recorded() -> Iterator[tuple[Path, str]]:
    """Yield the records, each with its mount point."""
    if MOUNTS.exists():
        for record in sorted(MOUNTS.iterdir()):
            if not record.name.startswith("."):
                yield record, os.fsdecode(record.read_bytes())
