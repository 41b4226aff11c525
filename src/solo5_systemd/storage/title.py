"""Which file may be the disk of a task: by the way to it, its owner, and the records of earlier tasks.

That user solo5 may write a file, or that root owns it, is no title by itself: the disks of other tenants are such files
while they are at rest. `docs/decisions/given-disks.md` has the rules and their reasons.

A disk of Nomad has its title in an extended attribute that only root can read and set (`trusted`, xattr(7)): the inode
and a holder, such as a job. A renamed file keeps it; that of a copy has another inode, and is void.
"""

import errno
import os
import pwd
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from solo5_systemd.base.errors import HostError, InvalidRequestError
from solo5_systemd.base.procfs import ANYONE, ROOT, is_below, way_of
from solo5_systemd.storage.file_access import READ_WRITE, may_open
from solo5_systemd.storage.model import DiskRequest

USER = "solo5"
"""Whose permission is the operator's mark."""

TITLE = "trusted.solo5.disk"
OFFERED = "offered"
"""The holder of a disk below `block_paths`: any job may use it."""

Recorded = Callable[[int, os.stat_result, int], int | None]
"""Returns who owned a file before its task, by the UID of the task, the file's status and f_fsid; None: not known."""


def no_records(_uid: int, _status: os.stat_result, _filesystem: int) -> None:
    """Record no disk."""


def check_title(
    request: DiskRequest, path: str, descriptor: int, how: int, recorded: Recorded = no_records
) -> tuple[int, str]:
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
    former = recorded(status.st_uid, status, os.fstatvfs(descriptor).f_fsid)
    owner = status.st_uid if former is None else former
    way = way_of(request.path)
    if way is None or way.place != Path(path):
        raise HostError(f"{request} was replaced just now: expected the same file.", "Start the task again.")
    holder = _holder(request, path) if is_file else ""
    title = read_title(descriptor, status)
    if is_in_allocation(request, path):
        _check_holder(request, title, holder)
        if not title and owner != ROOT:
            raise InvalidRequestError(
                f"{request} belongs to user {owner}, in a directory that every user may write: expected owner "
                "root, or a disk of an earlier allocation.",
                "Nomad writes artifacts and templates as root; give another file to root: chown root FILE",
            )
        return ROOT, holder
    if way.changers and way.changers != {owner}:
        raise InvalidRequestError(
            f"{request} resolves to a file of user {owner}, by a directory that {_named(way.changers)} can "
            "change: expected directories that only root can change, or a file of that user.",
            "Move the disk, or change owner or mode of the directory.",
        )
    if way.is_shared and title != OFFERED:
        _check_holder(request, title, "nobody")
    if (way.changers or way.is_shared) and is_file:
        check_single_link(request, status)
    if (request.roots or not is_file) and title != OFFERED:
        _check_mark(request, path, descriptor, status, owner, how)
    if request.roots and is_file and not way.changers:
        return owner, OFFERED
    return owner if way.changers or not is_file else ROOT, ""


def is_in_allocation(request: DiskRequest, path: str) -> bool:
    """Return whether a resolved path lies in the request's allocation."""
    return is_below(path, request.allocation)


def check_single_link(request: DiskRequest, status: os.stat_result) -> None:
    """Check that a file of an allocation or a volume is a regular file without a second hard link.

    A volume may be a block device itself.

    Raises:
        InvalidRequestError: a block device in a directory, or a file with several links.
    """
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
    if request.holder or request.name is not None or not is_in_allocation(request, path):
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
    if may_open(*_credentials(), owner=owner, group=status.st_gid, mode=status.st_mode, acl=acl, how=how):
        return
    verb, noun, letters = ("written", "write", "rw") if how == READ_WRITE else ("read", "read", "r")
    raise HostError(
        f"{request} cannot be {verb} by user {USER}: expected {noun} permission.",
        f"Run: chown {USER} {path}   or: setfacl -m u:{USER}:{letters} {path}",
    )


def _named(changers: frozenset[int]) -> str:
    if ANYONE in changers:
        return "several users"
    return " and ".join(f"user {uid}" for uid in sorted(changers))


def read_title(descriptor: int, status: os.stat_result) -> str:
    """Return the holder of a disk; empty: none, or the attribute is that of the file that this is a copy of."""
    with suppress(OSError):  # ENODATA: none; EOPNOTSUPP: the file system has no such attributes
        inode, _, holder = os.getxattr(f"/proc/self/fd/{descriptor}", TITLE).decode(errors="replace").partition(" ")
        if inode == str(status.st_ino):
            return holder
    return ""


def write_title(descriptor: int, holder: str) -> None:
    """Record the holder of a disk where the file system can; empty: remove the title that it has.

    Raises:
        OSError: the file system is full, perhaps by another tenant who waits for a disk without a title.
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


def _credentials() -> tuple[int, list[int]]:
    """Return UID and groups of user solo5."""
    try:
        entry = pwd.getpwnam(USER)
    except KeyError as error:
        sentence = f"user {USER} does not exist: expected the user of tenders."
        raise HostError(sentence, "Run: systemd-sysusers") from error
    return entry.pw_uid, os.getgrouplist(USER, entry.pw_gid)
