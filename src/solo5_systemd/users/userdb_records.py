"""The user records of task users, which systemd and the C library read, and systemd's lock of their uids.

nss-systemd(8) reads JSON user records (systemd's docs/USER_RECORD.md) by name and by uid.

    /run/userdb/UID.user           the record, created exclusively: a uid belongs to one task
    /run/userdb/solo5-UID.user     the same file
    /run/systemd/dynamic-uid/UID   PID 1's lock of a uid of `DynamicUser=`, whose range the users of tasks share

PID 1 allocates a uid in three steps: flock(2) of its lock, getpwuid(3) for a user with that number, and creation of the
user record. With the same steps here, each side detects the other's users.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from solo5_systemd.base.atomic_file import link_unnamed, open_unnamed, replace_file
from solo5_systemd.base.locks import closing, try_lock
from solo5_systemd.base.names import TaskName

RECORDS = Path("/run/userdb")
LOCKS = Path("/run/systemd/dynamic-uid")


def user_name(uid: int) -> str:
    """Return the user name of a uid, such as `solo5-61200`."""
    return f"solo5-{uid}"


def user_record(uid: int, task: TaskName | None, name: str = "") -> bytes:
    """Return a user record; without a task, it prevents the allocation of a user that may own a disk.

    The unit file of a declared task has a name that is the same with each uid.
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


def create(uid: int, task: TaskName) -> bool:
    """Create the record of a task's user; False if PID 1 or another process has allocated the uid."""
    RECORDS.mkdir(mode=0o755, parents=True, exist_ok=True)
    with allocating(uid) as is_ours, closing(open_unnamed(RECORDS, 0o644)) as descriptor:
        if not is_ours:
            return False
        os.write(descriptor, user_record(uid, task))
        os.fchmod(descriptor, 0o644)
        try:
            link_unnamed(descriptor, _path(f"{uid}"))
        except FileExistsError:
            return False
        with suppress(FileExistsError):  # left by a removal of only one of the two names
            link_unnamed(descriptor, _path(user_name(uid)))
    return True


def retain(uid: int) -> None:
    """Replace a user's record by one that belongs to no task."""
    RECORDS.mkdir(mode=0o755, parents=True, exist_ok=True)
    for name in (user_name(uid), f"{uid}"):
        replace_file(_path(name), user_record(uid, None), mode=0o644)


def remove(uid: int) -> None:
    """Remove a user's record. The name that creation is exclusive by is removed last."""
    _path(user_name(uid)).unlink(missing_ok=True)
    _path(f"{uid}").unlink(missing_ok=True)


def exists(uid: int) -> bool:
    """Return whether a uid has a record, whatever program has made it."""
    return _path(f"{uid}").exists()


def is_of(uid: int, task: TaskName) -> bool:
    """Return whether a user is that of a task."""
    return _read(uid) == user_record(uid, task)


def is_unused(uid: int) -> bool:
    """Return whether a user has no task."""
    return _read(uid) in (b"", user_record(uid, None))


def _read(uid: int) -> bytes:
    with suppress(FileNotFoundError):
        return _path(f"{uid}").read_bytes()
    return b""


def _path(name: str) -> Path:
    return RECORDS / f"{name}.user"


@contextmanager
def allocating(uid: int) -> Iterator[bool]:
    """Lock a uid while its record is made; yields False if PID 1 has the lock, for a unit with DynamicUser=."""
    LOCKS.mkdir(mode=0o755, exist_ok=True)
    path = LOCKS / str(uid)
    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY, 0o600)
        if not try_lock(descriptor):
            os.close(descriptor)
            yield False
            return
        if os.fstat(descriptor).st_nlink:  # otherwise another process removed the file between open(2) and flock(2)
            break
        os.close(descriptor)
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)  # before the unlock: PID 1 expects to create the file itself
        os.close(descriptor)
