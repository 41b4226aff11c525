"""The owner of a disk: which file may be the disk of a task, which is given to the task's user, and taken back.

`docs/decisions/given-disks.md` has the rules and their reasons. chown(2) is applied to the checked file descriptor,
never to a path.
"""

import errno
import os
import pwd
import stat
import struct
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from solo5_systemd.base.errors import HostError, InvalidRequestError, TakenError, host_errors
from solo5_systemd.base.locks import closing
from solo5_systemd.base.names import DeviceName
from solo5_systemd.base.paths import ANYONE, PLACE, ROOT, existing, identity, is_below, is_mount_point, path_of, way_of
from solo5_systemd.settings.solo5_toml import TASK_UIDS
from solo5_systemd.storage import given_disks
from solo5_systemd.storage.locks import ENDED_TIMEOUT_S, lock, taken
from solo5_systemd.storage.model import Disk, DiskRequest, GivenDisk

READ = 0o4
READ_WRITE = 0o6
_VERSION = struct.Struct("<I")
_ENTRY = struct.Struct("<HHI")  # tag, permissions, user or group: linux/posix_acl_xattr.h
_USER_OBJ, _USER, _GROUP_OBJ, _GROUP, _MASK, _OTHER = 1, 2, 4, 8, 16, 32

USER = "solo5"
"""Whose permission is the operator's mark."""

TITLE = "trusted.solo5.disk"
OFFERED = "offered"
"""The holder of a disk below `block_paths`: any job may use it."""

_OWNER_MAY_WRITE = stat.S_IRUSR | stat.S_IWUSR
_SET_ID = stat.S_ISUID | stat.S_ISGID
_ALL_MAY_WRITE = stat.S_IROTH | stat.S_IWOTH


def check_title(request: DiskRequest, path: str, descriptor: int, how: int) -> tuple[int, str]:
    """Check that a task may have an open file as its disk.

    Args:
        path: of the file, without symbolic links.
        how: READ for a file that is only copied.

    Returns:
        The UID that owns the file at rest if it has no title, and the holder for its title; empty: it gets none.

    Raises:
        InvalidRequestError: another user can have chosen the file, or it is a disk of another job or volume.
        HostError: the operator has not marked it for tasks.
    """
    status = os.fstat(descriptor)
    is_file = stat.S_ISREG(status.st_mode)
    owner = owner_at_rest(descriptor, status)
    way = way_of(request.path)
    if way is None or way.place != Path(path):
        raise HostError(f"{request} was replaced just now: expected the same file.", "Start the task again.")
    holder = _holder(request, path) if is_file else ""
    title = read_title(descriptor, status)
    if is_below(path, request.allocation):
        _check_holder(request, title, holder)
        if not title and owner != ROOT:
            raise InvalidRequestError(
                f"{request} belongs to user {owner}, in a directory that every user may write: expected owner "
                "root, or a disk of an earlier allocation.",
                "Nomad writes artifacts and templates as root; give another file to root: chown root FILE",
            )
        return ROOT, holder
    if way.changers and way.changers != {owner}:
        named = "several users" if ANYONE in way.changers else " and ".join(f"user {it}" for it in sorted(way.changers))
        raise InvalidRequestError(
            f"{request} resolves to a file of user {owner}, by a directory that {named} can "
            "change: expected directories that only root can change, or a file of that user.",
            "Move the disk, or change owner or mode of the directory.",
        )
    if way.is_shared and title != OFFERED:  # another user may have moved an idle disk there
        _check_holder(request, title, "nobody")
    if (way.changers or way.is_shared) and is_file:
        check_single_link(request, status)
    if (request.roots or not is_file) and title != OFFERED:  # an offered disk had the mark when it got its title
        _check_mark(request, path, descriptor, status, owner, how)
    if request.roots and is_file and not way.changers:
        return owner, OFFERED
    return owner if way.changers or not is_file else ROOT, ""


def owner_at_rest(descriptor: int, status: os.stat_result) -> int:
    """Return who owns a file, or owned it before the task that has it: by the records of the user that owns it."""
    found = None
    with suppress(PermissionError):  # a caller that is not root has no disk of a task
        filesystem = os.fstatvfs(descriptor).f_fsid
        found = given_disks.find(status.st_uid, GivenDisk("", *identity(status), filesystem))
    return status.st_uid if found is None else found.owner


def check_single_link(request: DiskRequest, status: os.stat_result) -> None:
    """Refuse a file of an allocation or a volume with several links, or a device, unless that is the volume itself."""
    if stat.S_ISBLK(status.st_mode) and request.path in request.allocation:
        return
    if stat.S_ISBLK(status.st_mode):
        raise InvalidRequestError(
            f"{request} is a block device in a directory of the allocation or of a volume: expected a regular file.",
            "The operator offers devices in plugin.solo5.config.block_paths.",
        )
    if status.st_nlink != 1:
        raise InvalidRequestError(
            f"{request} has {status.st_nlink} names: expected one, since a hard link may be the file of another user."
        )


def _holder(request: DiskRequest, path: str) -> str:
    """Return the holder of a disk of an allocation or volume: a job or the volume's directory; none of a named disk."""
    if request.holder or request.name is not None or not is_below(path, request.allocation):
        return request.holder
    return holder_of_volume(request.allocation[0])


def holder_of_volume(directory: str | Path) -> str:
    """Return the holder of the disks in a volume: its directory, by the inode, since a CSI volume has many paths."""
    return f"directory {Path(directory).stat().st_ino}"


def _check_holder(request: DiskRequest, title: str, holder: str) -> None:
    if holder and title not in ("", holder):
        raise InvalidRequestError(
            f"{request} is a disk of another {'volume' if title.startswith('directory') else 'job'}, which was "
            "moved: expected a disk of this one, or a file that no task has had.",
            f"If it is to be this one's, root runs: setfattr -x {TITLE} FILE",
        )


def _check_mark(request: DiskRequest, path: str, descriptor: int, status: os.stat_result, owner: int, how: int) -> None:
    """Check that user solo5 may write a file, or read one that is only copied: the operator marks disks by that."""
    acl = None
    with suppress(OSError):  # ENODATA: no ACL; EOPNOTSUPP: the file system has none
        acl = os.getxattr(descriptor, "system.posix_acl_access")
    try:
        entry = pwd.getpwnam(USER)
    except KeyError as error:
        sentence = f"user {USER} does not exist: expected the user of tenders."
        raise HostError(sentence, "Run: systemd-sysusers") from error
    groups = os.getgrouplist(USER, entry.pw_gid)
    if may_open(entry.pw_uid, groups, owner=owner, group=status.st_gid, mode=status.st_mode, acl=acl, how=how):
        return
    verb, noun, letters = ("written", "write", "rw") if how == READ_WRITE else ("read", "read", "r")
    raise HostError(
        f"{request} cannot be {verb} by user {USER}: expected {noun} permission.",
        f"Run: chown {USER} {path}   or: setfacl -m u:{USER}:{letters} {path}",
    )


def may_open(
    user: int, groups: Collection[int], *, owner: int, group: int, mode: int, acl: bytes | None, how: int = READ_WRITE
) -> bool:
    """Return whether a process of a user, with all of its groups (credentials(7)) and no capability, may open a file.

    By mode and POSIX ACL (acl(5), `system.posix_acl_access`); access(2) is of no use: it checks the caller, root.
    """
    bits = stat.S_IMODE(mode)
    entries = [(_USER_OBJ, bits >> 6 & 7, 0), (_GROUP_OBJ, bits >> 3 & 7, 0), (_OTHER, bits & 7, 0)]
    if acl:
        entries = [*_ENTRY.iter_unpack(acl[_VERSION.size :])]
    if user == owner:
        return any(allowed & how == how for tag, allowed, _ in entries if tag == _USER_OBJ)
    mask = next((allowed for tag, allowed, _ in entries if tag == _MASK), READ_WRITE)
    named = [allowed & mask for tag, allowed, number in entries if tag == _USER and number == user]
    own = [allowed & mask for tag, allowed, number in entries if tag == _GROUP and number in groups]
    own += [allowed & mask for tag, allowed, _ in entries if tag == _GROUP_OBJ and group in groups]
    others = [allowed for tag, allowed, _ in entries if tag == _OTHER]
    return any(allowed & how == how for allowed in named or own or others)  # the first class that fits decides


def read_title(descriptor: int, status: os.stat_result) -> str:
    """Return the holder of a disk; empty: none, or the attribute is that of the file that this is a copy of."""
    with suppress(OSError):  # ENODATA: none; EOPNOTSUPP: the file system has no such attributes
        inode, _, holder = os.getxattr(f"/proc/self/fd/{descriptor}", TITLE).decode(errors="replace").partition(" ")
        if inode == str(status.st_ino):
            return holder
    return ""


def write_title(descriptor: int, holder: str) -> None:
    """Record the holder of a disk where the file system can; empty: remove the title that it has.

    Raises OSError if the file system is full, perhaps by another tenant who waits for a disk without a title.
    """
    path = f"/proc/self/fd/{descriptor}"
    try:
        if holder:
            os.setxattr(path, TITLE, f"{os.fstat(descriptor).st_ino} {holder}".encode(errors="replace"))
        else:
            os.removexattr(path, TITLE)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise


def give(disk: Disk, descriptor: int, user: int) -> int:
    """Make a user the owner of a disk, with mode u+rw; a disk that every user may write stays as it is.

    The file gets the title of its holder before. If the former owner is the user of another task, the change is on
    stable storage when this returns.

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
    with host_errors(f"{disk} cannot be given to the task's user"):
        write_title(descriptor, disk.holder)
        if mode & _ALL_MAY_WRITE == _ALL_MAY_WRITE:
            return user
        if status.st_uid != user:
            os.chown(path, user, -1)
        if mode != new_mode:
            Path(path).chmod(new_mode)
        if status.st_uid in TASK_UIDS and status.st_uid != user:
            _sync(path, status)
    return status.st_uid


def _has_processes(uid: int) -> bool:
    """Return whether a user has processes (getpriority(2), which looks for them)."""
    try:
        os.getpriority(os.PRIO_USER, uid)
    except ProcessLookupError:
        return False
    return True


def reclaim_disk(uid: int, disk: GivenDisk) -> None:
    """Change the owner of a given disk from a task's user to root; on stable storage when this returns.

    A disk without a title, of which `owner` is another user, becomes that user's again. A no-op for a disk that has
    another owner now, was moved or removed, or was replaced by another file.

    Raises:
        HostError: the disk may still belong to the user.
    """
    hint = (
        "The next `solo5ctl gc` retries, and a task that gets the disk ends it; if the disk was removed for good: rm "
        f"/var/lib/solo5/users/{uid}"
    )
    with host_errors(f"disk {disk.path!r} cannot be reclaimed from user {uid}", hint):
        disk = _with_node(disk)
        try:
            opened = os.open(disk.path, PLACE)
        except (FileNotFoundError, NotADirectoryError):
            _check_filesystem(disk)
            return
        with closing(opened) as descriptor:
            status = os.fstat(descriptor)
            if not _is_same(disk, status):
                _check_filesystem(disk)
            elif status.st_uid == uid and path_of(descriptor) == disk.path:
                _take_back(uid, disk, descriptor)


def _with_node(disk: GivenDisk) -> GivenDisk:
    """Return a device with the path of its node in /dev where its own, as of an unmounted volume, has another file."""
    if not disk.is_device:
        return disk
    number = disk.device
    with suppress(OSError):
        status = Path(disk.path).lstat()
        if stat.S_ISBLK(status.st_mode) and status.st_rdev == number:
            return disk
    return disk._replace(path=os.path.realpath(f"/dev/block/{os.major(number)}:{os.minor(number)}"))


def _is_same(disk: GivenDisk, status: os.stat_result) -> bool:
    """Return whether a file is the given disk: by its inode, since the number of its device may change at a boot."""
    if stat.S_ISBLK(status.st_mode):
        return disk.is_device and status.st_rdev == disk.device
    return stat.S_ISREG(status.st_mode) and status.st_ino == disk.inode


def _check_filesystem(disk: GivenDisk) -> None:
    """Check that the path of a disk that is not there lies in its file system, or the disk may return with that."""
    if disk.is_device:
        return
    place = str(existing(Path(disk.path)))
    # The device number or, after a boot, f_fsid; a bind mount of a file system in itself, such as a volume, has both.
    is_same = Path(place).lstat().st_dev == disk.device or os.statvfs(place).f_fsid == disk.filesystem != 0
    if not is_same or (disk.mount and not is_mount_point(disk.mount)):
        raise OSError(errno.ENXIO, "its file system is not mounted")


def _take_back(uid: int, disk: GivenDisk, descriptor: int) -> None:
    """Take the disk back with its lock, if the user still owns it: under the lock, no task can be given the disk."""
    found = Disk(disk=DeviceName("given"), path=disk.path, identity=identity(os.fstat(descriptor)))
    try:
        held = lock([found], timeout_s=ENDED_TIMEOUT_S)
    except TakenError as error:
        if os.fstat(descriptor).st_uid == uid:  # else a start has given it to another task meanwhile
            raise OSError(errno.EBUSY, "it is in use") from error
        return
    with closing(held):
        path, status = f"/proc/self/fd/{descriptor}", os.fstat(descriptor)
        if status.st_uid == uid:
            if stat.S_ISREG(status.st_mode):
                _free_beyond_end(path, status)
            os.chown(path, ROOT if read_title(descriptor, status) else disk.owner, -1)
            _sync(path, status)


def _free_beyond_end(path: str, status: os.stat_result) -> None:
    """Free what a tender has allocated beyond the end of a file (FALLOC_FL_KEEP_SIZE), which LimitFSIZE= permits."""
    with closing(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)) as opened:
        os.ftruncate(opened, status.st_size)
        os.utime(opened, ns=(status.st_atime_ns, status.st_mtime_ns))


def _sync(path: str, status: os.stat_result) -> None:
    """Write the owner of a file to stable storage, before the given-disk file changes, perhaps on another one."""
    if stat.S_ISREG(status.st_mode):  # the owner of a device node ends with the boot anyway
        with closing(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)) as opened:
            os.fsync(opened)
