"""The user of a task, the disks that it is given, and the record that makes it known to systemd and the C library.

A record is what systemd calls a JSON User Record. nss-systemd(8) reads it from /run/userdb, by name and by number.
"""

import json
from dataclasses import dataclass
from typing import NamedTuple

from solo5_systemd.errors import TakenError
from solo5_systemd.names import TaskName


class RangeUsedUpError(TakenError):
    """Every user of the range is allocated."""


@dataclass(frozen=True, kw_only=True)
class HeldUser:
    """A user that a start holds.

    Attributes:
        uid: its number, and that of its group.
        descriptor: while it is open, no collection frees the user and no other start has the task's name.
        adopted: the task had it before: by a start that was killed, or by one that was faster and has ended meanwhile.
    """

    uid: int
    descriptor: int
    adopted: bool = False


class Given(NamedTuple):
    """A disk that was given.

    Attributes:
        path: at that time.
        device: that it lies on, or its own number, as in `Disk.identity`; a boot may change it.
        inode: 0 for a block device.
        filesystem: the identifier of its file system, where that has one that a boot does not change; 0: unknown.
    """

    path: str
    device: int
    inode: int
    filesystem: int = 0


def user_name(uid: int) -> str:
    return f"solo5-{uid}"


def kept_record(uid: int) -> bytes:
    """Return the record of a user that no task has and that may own a disk: it is not allocated meanwhile."""
    return _record(uid, "Solo5 disks that could not be taken back")


def user_record(uid: int, task: TaskName) -> bytes:
    """Return the record of a task's user."""
    return _record(uid, f"Solo5 task {task}")


def _record(uid: int, real_name: str) -> bytes:
    record = {
        "userName": user_name(uid),
        "uid": uid,
        "gid": uid,
        "realName": real_name,
        "disposition": "dynamic",
        "service": "org.solo5",
        "locked": True,
        "homeDirectory": "/",
    }
    return json.dumps(record).encode()
