"""Given disks: a disk becomes the property of the user of its task, and root's again after the task is removed.

chown(2) is applied to the checked file descriptor, never to a path. `title` decides which files are given.
"""

import os
import stat
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from solo5_systemd.base.errors import HostError, TakenError
from solo5_systemd.base.locks import closing
from solo5_systemd.base.procfs import ROOT, existing, identity, mount_points, path_of
from solo5_systemd.settings.solo5_toml import TASK_UIDS
from solo5_systemd.storage.locks import lock, taken
from solo5_systemd.storage.model import Disk
from solo5_systemd.storage.title import read_title, write_title

_OWNER_MAY_WRITE = stat.S_IRUSR | stat.S_IWUSR
_SET_ID = stat.S_ISUID | stat.S_ISGID
_ALL_MAY_WRITE = stat.S_IROTH | stat.S_IWOTH


def give(disk: Disk, descriptor: int, user: int) -> int:
    """Make a user the owner of a disk, with mode u+rw; a disk that every user may write stays as it is.

    The file gets the title of its holder before. If the former owner is the user of another task, the change is on
    stable storage when this returns.

    Args:
        descriptor: of its file or device, O_PATH suffices.

    Returns:
        The uid of the former owner; `user` if the owner stays.

    Raises:
        HostError: chown(2) or chmod(2) fails, such as on a read-only file system, or there is no room for the title.
        TakenError: processes of the user of another task, whose disk it was, are still there.
    """
    status = os.fstat(descriptor)
    if status.st_uid in TASK_UIDS and status.st_uid != user and _has_processes(status.st_uid):
        # The tender of a scope can unlock its disks, and has them open.
        raise taken(disk)
    path = f"/proc/self/fd/{descriptor}"
    mode = stat.S_IMODE(status.st_mode)
    new_mode = mode & ~_SET_ID | _OWNER_MAY_WRITE  # chown(2) clears set-ID bits: do not set them again
    try:
        write_title(descriptor, disk.holder)
        if mode & _ALL_MAY_WRITE == _ALL_MAY_WRITE:
            return user
        if status.st_uid != user:
            os.chown(path, user, -1)
        if mode != new_mode:
            Path(path).chmod(new_mode)
        if status.st_uid in TASK_UIDS and status.st_uid != user:
            _sync(path, status)
    except OSError as error:
        raise HostError(f"{disk} cannot be given to the task's user: {error.strerror}.") from error
    return status.st_uid


def _has_processes(uid: int) -> bool:
    """Return whether a user has processes (getpriority(2), which looks for them)."""
    try:
        os.getpriority(os.PRIO_USER, uid)
    except ProcessLookupError:
        return False
    return True


LOCK_TIMEOUT_S = 2.0
"""PID 1 closes the descriptors of an ended service in a thread, some time later; stdin has the disk lock."""

LOCK_INTERVAL_S = 0.02


def reclaim_disk(uid: int, disk: Disk) -> None:
    """Change the owner of a given disk from a task's user to root; on stable storage when this returns.

    A disk without a title, of which `owner` is another user, becomes that user's again.

    A no-op for a disk that has another owner now, was moved or removed, or was replaced by another file.

    Args:
        disk: the disk as it was given; the device number may have changed at a boot.

    Raises:
        HostError: the disk may still belong to the user.
    """
    try:
        disk = _with_node(disk)
        if (opened := _open(uid, disk)) is None:
            return
        with closing(opened) as descriptor:
            if _is_owned_by(uid, disk, descriptor):
                _take_back_locked(uid, disk, descriptor)
    except OSError as error:
        raise _reclaim_error(uid, disk, f"{error.strerror}") from error


def _with_node(disk: Disk) -> Disk:
    """Return a block device to which its path no longer resolves with the path of its node in /dev.

    The device of a CSI volume is bind-mounted to its path, where another file is when it is unmounted.
    """
    if not _is_device(disk):
        return disk
    number = disk.identity[0]
    with suppress(OSError):
        status = Path(disk.path).lstat()
        if stat.S_ISBLK(status.st_mode) and status.st_rdev == number:
            return disk
    return replace(disk, path=os.path.realpath(f"/dev/block/{os.major(number)}:{os.minor(number)}"))


def _open(uid: int, disk: Disk) -> int | None:
    """Open the disk's path with O_PATH; None where the disk was removed or moved.

    Raises:
        HostError: the disk's file system is not mounted.
    """
    # A bind mount of one file system in itself, such as a volume, has the device number of what is below it.
    with suppress(FileNotFoundError, NotADirectoryError):
        return os.open(disk.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    is_mounted = not disk.mount or disk.mount in mount_points()
    if not _is_device(disk) and not (is_mounted and _is_filesystem_of(disk, str(existing(Path(disk.path))))):
        raise _reclaim_error(uid, disk, "its file system is not mounted")
    return None


def _is_device(disk: Disk) -> bool:
    """Return whether the disk was a block device, whose owner is lost with its device node."""
    return not disk.identity[1]


def _is_owned_by(uid: int, disk: Disk, descriptor: int) -> bool:
    """Return whether the open file is the given disk and still belongs to the user.

    For a file the inode suffices: the device number of its file system may have changed at a boot.
    """
    status = os.fstat(descriptor)
    if stat.S_ISBLK(status.st_mode):
        same = identity(status) == disk.identity
    else:
        same = stat.S_ISREG(status.st_mode) and status.st_ino == disk.identity[1]
        if not same and not _is_device(disk) and not _is_filesystem_of(disk, disk.path):
            raise _reclaim_error(uid, disk, "another file system has its path")
    return same and status.st_uid == uid and path_of(descriptor) == disk.path


def _is_filesystem_of(disk: Disk, path: str) -> bool:
    """Return whether a path lies in the disk's file system: by device number or, after a boot, by f_fsid."""
    return Path(path).lstat().st_dev == disk.identity[0] or os.statvfs(path).f_fsid == disk.filesystem != 0


def _take_back_locked(uid: int, disk: Disk, descriptor: int) -> None:
    """Take the disk back with its lock, if the user still owns it: under the lock, no task can be given the disk."""
    found = replace(disk, identity=identity(os.fstat(descriptor)))
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while os.fstat(descriptor).st_uid == uid:
        try:
            held = lock([found])
        except TakenError as error:
            if time.monotonic() > deadline:
                raise _reclaim_error(uid, disk, "it is in use") from error
            time.sleep(LOCK_INTERVAL_S)
            continue
        with closing(held):
            if os.fstat(descriptor).st_uid == uid:
                _take_back(descriptor, disk.owner)
        return


def _take_back(descriptor: int, owner: int) -> None:
    path = f"/proc/self/fd/{descriptor}"
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode):
        _free_beyond_end(path, status)
    os.chown(path, ROOT if read_title(descriptor, status) else owner, -1)
    _sync(path, status)


def _free_beyond_end(path: str, status: os.stat_result) -> None:
    """Free the space that a tender has allocated beyond the end of a file (fallocate(2), FALLOC_FL_KEEP_SIZE).

    LimitFSIZE= does not limit it. To truncate a file to its own size frees it.
    """
    with closing(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)) as opened:
        os.ftruncate(opened, status.st_size)
        os.utime(opened, ns=(status.st_atime_ns, status.st_mtime_ns))


def _sync(path: str, status: os.stat_result) -> None:
    """Write the owner of a file to stable storage.

    The given-disk file changes next, perhaps on another file system. Without fsync(2), a power loss could keep that
    change and lose the one of the owner.
    """
    if stat.S_ISREG(status.st_mode):
        with closing(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)) as opened:
            os.fsync(opened)


def _reclaim_error(uid: int, disk: Disk, reason: str) -> HostError:
    return HostError(
        f"disk {disk.path!r} cannot be reclaimed from user {uid}: {reason.rstrip('.')}.",
        f"The next `solo5ctl gc` retries, and a task that gets the disk ends it; if the disk was removed for good: "
        f"rm /var/lib/solo5/users/{uid}",
    )
