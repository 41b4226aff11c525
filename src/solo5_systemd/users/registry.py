"""The users of this machine's tasks, allocated without a process that remembers them.

    /run/solo5/users/TASK          the uid in digits; empty until one is chosen. Locked by flock(2) during a start.
    /run/solo5/users/.last         the uid that was chosen last: the next search begins behind it
    /run/userdb/UID.user           the user's record: made exclusively, so that a uid belongs to one task
    /run/userdb/solo5-UID.user     the same file
    /run/solo5/users/.reclaimed    the disks of earlier boots were taken back, as far as that was possible
    /run/systemd/dynamic-uid/UID   systemd's lock of a uid, held while its record is made (`users.dynamic`)

A task's file exists before its records and is removed after them, so whatever is left by a start that was killed is
found from the task's file. A file that is not locked, of a task without a unit, is stale. The files of tasks are for
root alone: another user could hold a lock on a file that it can open.

A user whose disks cannot be taken back stays allocated, to no task: its note stays, and so does a record of its own.
"""

import asyncio
import fcntl
import logging
import os
import pwd
import random
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from solo5_systemd.errors import HostError, Solo5Error, TakenError
from solo5_systemd.names import TaskName
from solo5_systemd.procfs import name_descriptor
from solo5_systemd.users.dynamic import LOCKS, allocating
from solo5_systemd.users.notes import NOTES, Notes
from solo5_systemd.users.record import Given, HeldUser, RangeUsedUpError, kept_record, user_name, user_record

STATE = Path("/run/solo5/users")
RECORDS = Path("/run/userdb")

RECLAIM_TIMEOUT_S = 5.0
"""Seconds for which the first start of a boot waits for file systems that have disks of earlier boots."""

_LAST = ".last"
_RECLAIMED = ".reclaimed"

_log = logging.getLogger(__name__)


class Users:
    """The users of tasks; fulfils `backends.Users`.

    Args:
        uids: the operator's range, read when a user is first allocated.
        take_back: makes a disk no longer the user's, or raises a Solo5Error.
        state: the tasks' files.
        records: where nss-systemd looks for records.
        notes: which disks the users have.
        locks: where PID 1 locks the users that it allocates.
    """

    def __init__(
        self,
        uids: Callable[[], range],
        take_back: Callable[[int, Given], None],
        state: Path = STATE,
        records: Path = RECORDS,
        notes: Path = NOTES,
        locks: Path = LOCKS,
    ) -> None:
        self._uids = uids
        self._take_back = take_back
        self._state = state
        self._records = records
        self._notes = Notes(notes)
        self._locks = locks
        self._resolved = False

    async def acquire(self, task: TaskName) -> HeldUser:
        await self._reclaim_first()
        with _explained(self._state):
            held = self._acquire(task)
        try:
            if not self._resolved:  # once in a process: the answer is the host's, not the task's
                await asyncio.to_thread(_check_resolved, held.uid)
                self._resolved = True
        except BaseException:
            os.close(held.descriptor)
            await self.release(task)
            raise
        return held

    def next_uid(self) -> int:
        return next(self._candidates())

    async def record_disks(self, uid: int, disks: Sequence[Given]) -> None:
        with _explained(self._state):
            await asyncio.to_thread(self._notes.add, uid, disks)  # it waits for the storage

    async def release(self, task: TaskName) -> None:
        await asyncio.to_thread(self._release, task)  # a disk may be far away

    def _release(self, task: TaskName) -> None:
        with _explained(self._state):
            descriptor = self._locked(task)
            if descriptor is not None:
                self._free(task, descriptor)

    async def tasks(self) -> Collection[TaskName]:
        free = []
        with suppress(PermissionError), _explained(self._state):
            for task in self._names():
                descriptor = self._locked(task)
                if descriptor is not None:
                    os.close(descriptor)
                    free.append(task)
        return free

    async def collect(self, loaded: Callable[[], Awaitable[Collection[TaskName]]]) -> Sequence[TaskName]:
        """Free the users of tasks without a unit.

        Args:
            loaded: returns the tasks that have a unit; called while starts of the others are locked out.
        """
        locked: dict[TaskName, int] = {}
        try:
            with _explained(self._state):
                for task in self._names():
                    descriptor = self._locked(task)
                    if descriptor is not None:
                        locked[task] = descriptor
                kept = frozenset(await loaded()) if locked else frozenset[TaskName]()
                for task in locked.keys() & kept:  # before the work below: they can be released meanwhile
                    os.close(locked.pop(task))
                stale = sorted(locked)
                for task in stale:
                    await asyncio.to_thread(self._free, task, locked.pop(task))
        finally:
            for descriptor in locked.values():
                os.close(descriptor)
        return stale

    async def reclaim(self) -> Sequence[str]:
        return await asyncio.to_thread(self._reclaim)

    async def _reclaim_first(self) -> None:
        """Before the first start of a boot: what is in /run went with the boot that it was of, an owner did not."""
        with _explained(self._state):
            self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
            if (self._state / _RECLAIMED).exists():
                return
            reclaiming = asyncio.ensure_future(self.reclaim())
            reclaiming.add_done_callback(_warn)  # its thread may outlast the time; a user with a note is not given out
            await asyncio.wait([reclaiming], timeout=RECLAIM_TIMEOUT_S)
            (self._state / _RECLAIMED).touch(mode=0o600)

    def _reclaim(self) -> Sequence[str]:
        with _explained(self._state):
            return [fault for uid in self._notes.users() for fault in self._reclaim_from(uid)]

    def _reclaim_from(self, uid: int) -> Sequence[str]:
        """Take back the disks of a user that no task has.

        Until they are, the user's record keeps PID 1 from allocating it. Where PID 1 has done so already, the disks are
        taken back all the same, and the note stays until the lock is ours: a start could be about to use the user.
        """
        if not self._is_no_tasks(uid):
            return ()
        self._records.mkdir(mode=0o755, parents=True, exist_ok=True)
        with allocating(uid, self._locks) as is_ours:
            if not self._is_no_tasks(uid):
                return ()
            if is_ours:
                self._keep(uid)
            faults = self._take_all_back(uid)
            if is_ours and not faults:
                self._forget(uid)
        return faults

    def _is_no_tasks(self, uid: int) -> bool:
        try:
            return (self._records / f"{uid}.user").read_bytes() == kept_record(uid)
        except FileNotFoundError:
            return True

    def _acquire(self, task: TaskName) -> HeldUser:
        self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._records.mkdir(mode=0o755, parents=True, exist_ok=True)
        left = self._locked(task)
        descriptor = self._made(task) if left is None else left
        try:
            adopted = None if left is None else self._adopted(task, descriptor)
            if adopted is not None:
                return HeldUser(uid=adopted, descriptor=descriptor, adopted=True)
            return HeldUser(uid=self._chosen(task, descriptor), descriptor=descriptor)
        except BaseException:
            self._free(task, descriptor)
            raise

    def _made(self, task: TaskName) -> int:
        """Make a task's file, locked from its first moment on."""
        descriptor = os.open(self._state, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            name_descriptor(descriptor, self._state / task)
        except FileExistsError as error:
            os.close(descriptor)
            raise TakenError(
                f"task name {task!r} is taken: another start of it is under way.", "List the tasks: solo5ctl ps"
            ) from error
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _locked(self, task: TaskName) -> int | None:
        """Open and lock a task's file; None where there is none, or where a start holds it."""
        path = self._state / task
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:  # not removed between the two calls
                return descriptor
        except BlockingIOError:
            pass
        os.close(descriptor)
        return None

    def _adopted(self, task: TaskName, descriptor: int) -> int | None:
        """The uid that the task has had already, by a start that died or a unit that has just ended; None for none."""
        uid = _content(descriptor)
        if uid is None or not self._is_record_of(task, uid):
            self._remove_records(task, uid)
            os.ftruncate(descriptor, 0)
            return None
        return uid

    def _chosen(self, task: TaskName, descriptor: int) -> int:
        for uid in self._candidates():
            if self._notes.exists(uid) or (self._records / f"{uid}.user").exists():
                continue
            with allocating(uid, self._locks) as is_ours:
                made = is_ours and self._recorded(task, uid)
            if made:
                os.pwrite(descriptor, str(uid).encode(), 0)
                (self._state / _LAST).write_text(str(uid))
                return uid
        uids = self._uids()
        raise RangeUsedUpError(
            f"all {len(uids)} users of tasks, {uids[0]} to {uids[-1]}, are in use.",
            "Remove ended tasks (solo5ctl rm, solo5ctl gc), or set a larger range: task_uids in solo5.toml(5).",
        )

    def _candidates(self) -> Iterator[int]:
        """Every uid of the range, from behind the last one on: a uid is used again as late as possible."""
        uids = self._uids()
        try:
            last = int((self._state / _LAST).read_text())
        except (OSError, ValueError):
            last = random.choice(uids)  # noqa: S311 - a place to begin at, and no secret
        begin = uids.index(last) + 1 if last in uids else 0
        yield from (uids[(begin + i) % len(uids)] for i in range(len(uids)))

    def _recorded(self, task: TaskName, uid: int) -> bool:
        """Make the user's record; False where the uid has one."""
        descriptor = os.open(self._records, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, user_record(uid, task))
            os.fchmod(descriptor, 0o644)
            name_descriptor(descriptor, self._records / f"{uid}.user")
            with suppress(FileExistsError):  # of a record that somebody removed by half
                name_descriptor(descriptor, self._records / f"{user_name(uid)}.user")
        except FileExistsError:
            return False
        finally:
            os.close(descriptor)
        return True

    def _is_record_of(self, task: TaskName, uid: int) -> bool:
        with suppress(OSError):
            return (self._records / f"{uid}.user").read_bytes() == user_record(uid, task)
        return False

    def _free(self, task: TaskName, descriptor: int) -> None:
        """Remove a task's records, and then its file, and close that."""
        try:
            self._remove_records(task, _content(descriptor))
            (self._state / task).unlink(missing_ok=True)
        finally:
            os.close(descriptor)

    def _leave(self, uid: int) -> None:
        """Take back every disk that the user was given, and free it; a user that may still have one stays allocated."""
        faults = self._take_all_back(uid)
        if faults:
            self._keep(uid)
            for fault in faults:
                _log.warning("%s", fault)
        else:
            self._forget(uid)

    def _take_all_back(self, uid: int) -> Sequence[str]:
        faults = []
        for disk in self._notes.read(uid):
            try:
                self._take_back(uid, disk)
            except Solo5Error as error:
                faults.append(str(error))
        return faults

    def _keep(self, uid: int) -> None:
        """Have a record of the user that is no task's."""
        for name in (user_name(uid), f"{uid}"):
            new = self._records / f".{name}"
            new.write_bytes(kept_record(uid))
            new.chmod(0o644)
            new.replace(self._records / f"{name}.user")

    def _forget(self, uid: int) -> None:
        self._notes.remove(uid)
        (self._records / f"{user_name(uid)}.user").unlink(missing_ok=True)
        (self._records / f"{uid}.user").unlink(missing_ok=True)

    def _remove_records(self, task: TaskName, uid: int | None) -> None:
        """Remove a task's records; where its file does not name the uid, a start was killed between the two."""
        uids = (
            [uid] if uid is not None else [int(p.stem) for p in self._records.glob("[0-9]*.user") if p.stem.isdigit()]
        )
        for each in uids:
            if self._is_record_of(task, each):
                self._leave(each)

    def _names(self) -> list[TaskName]:
        with suppress(FileNotFoundError):
            return sorted(TaskName(file.name) for file in self._state.iterdir() if not file.name.startswith("."))
        return []


def uid_of(task: TaskName, state: Path = STATE) -> int | None:
    """Return the uid of a task; None for a task without a user of its own."""
    with suppress(OSError, ValueError):
        return int((state / task).read_text())
    return None


def _warn(reclaiming: "asyncio.Future[Sequence[str]]") -> None:
    if reclaiming.cancelled():
        return
    error = reclaiming.exception()
    for sentence in (str(error),) if error else reclaiming.result():
        _log.warning("%s", sentence)


def _content(descriptor: int) -> int | None:
    text = os.pread(descriptor, 16, 0)
    return int(text) if text.isdigit() else None


def _check_resolved(uid: int) -> None:
    """Check that the C library knows the user, as systemd will look it up.

    Raises:
        DependencyError: the library that reads the records is not installed.
        HostError: it is not configured.
    """
    with suppress(KeyError):
        pwd.getpwuid(uid)
        return
    from ctypes import CDLL

    try:
        CDLL("libnss_systemd.so.2")
    except OSError as error:
        from solo5_systemd.dependencies import blamed

        raise blamed(error) from error
    raise HostError(
        f"user {uid} is not found, though {RECORDS} has its record: expected systemd to be a source of users.",
        "Put `systemd` into the line `passwd:` of /etc/nsswitch.conf.",
    )


@contextmanager
def _explained(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HostError(f"the users of tasks in {directory} cannot be kept: {error.strerror}.") from error
