"""The user of a task, and the record that makes it known to systemd and the C library.

A record is what systemd calls a JSON User Record. nss-systemd(8) reads it from /run/userdb, by name and by number.
"""

import json
from dataclasses import dataclass

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
    """

    uid: int
    descriptor: int


def user_name(uid: int) -> str:
    return f"solo5-{uid}"


def user_record(uid: int, task: TaskName) -> bytes:
    """Return the record of a task's user."""
    record = {
        "userName": user_name(uid),
        "uid": uid,
        "gid": uid,
        "realName": f"Solo5 task {task}",
        "disposition": "dynamic",
        "service": "org.solo5",
        "locked": True,
        "homeDirectory": "/",
    }
    return json.dumps(record).encode()
