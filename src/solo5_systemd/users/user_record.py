"""The user of a task, and its JSON user record for systemd and the C library.

nss-systemd(8) reads JSON user records (systemd's docs/USER_RECORD.md) from /run/userdb, by name and by uid.
"""

import hashlib
import json
from dataclasses import dataclass

from solo5_systemd.base.errors import TakenError
from solo5_systemd.base.names import TaskName


class RangeUsedUpError(TakenError):
    """Every user of the range is allocated."""


@dataclass(frozen=True, kw_only=True)
class AllocatedUser:
    """A user allocated for a start in progress.

    Attributes:
        uid: the uid, and the gid of its group.
        descriptor: has the lock of the task in the registry. While it is open, garbage collection does not free the
            user, and a second start of the task fails.
        adopted: allocated by an earlier start of the task, which was killed or whose unit has ended.
    """

    uid: int
    descriptor: int
    adopted: bool = False


def user_name(uid: int) -> str:
    """Return the user name of a uid, such as `solo5-61200`."""
    return f"solo5-{uid}"


def user_of(task: TaskName) -> str:
    """Return the name of a declared task's user: constant, unlike its uid, and fit for User= (systemd.exec(5)).

    Of an instance, systemd makes it of `%i`.
    """
    prefix, at, instance = task.partition("@")
    if at:
        return f"solo5-{_digest(prefix)[:12]}-{instance}"
    return f"solo5-{_digest(task)[:16]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def user_record(uid: int, task: TaskName | None, name: str = "") -> bytes:
    """Return a user record.

    Args:
        task: None: the user has no task and may own a disk; the record prevents its allocation.
        name: that of a declared task's unit file, whatever the uid is.
    """
    record = {
        "userName": name or user_name(uid),
        "uid": uid,
        "gid": uid,
        "realName": f"Solo5 task {task}" if task else "Solo5 disks that could not be taken back",
        "disposition": "dynamic",
        "service": "org.solo5",
        "locked": True,
        "homeDirectory": "/",
    }
    return json.dumps(record).encode()
