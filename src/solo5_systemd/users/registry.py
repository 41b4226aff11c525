"""The allocation of users to tasks, kept in files alone.

    /run/solo5/users/TASK          the uid in decimal; empty until one is allocated. Locked by flock(2) during a start
    /run/solo5/users/.last         the uid allocated last: the next search starts after it
    /run/userdb/UID.user           the user record, created exclusively, so that a uid belongs to one task
    /run/userdb/solo5-UID.user     the same file
    /run/solo5/users/.claims       what tasks take of the node (`users.claims`)
    /run/solo5/users/.reclaimed    marks that the disks of earlier boots were reclaimed, as far as possible
    /run/systemd/dynamic-uid/UID   systemd's lock of a uid, held while its record is made (`users.dynamic_user_locks`)

A task's file is made before its records and removed after them: everything left by a killed start is found from that
file. An unlocked file of a task without a unit is stale. Only root can open the files, since a user that can open one
could lock it.

A user whose disks cannot be reclaimed stays allocated without a task: its given-disk file and a record remain, until
they are reclaimed or given to another task.
"""

import asyncio
import logging
import os
import pwd
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TypeVar

from solo5_systemd.errors import HostError, Solo5Error, TakenError
from solo5_systemd.files.atomic_file import link_unnamed, open_unnamed, replace_file
from solo5_systemd.locks import LockedError, lock, try_lock
from solo5_systemd.names import TaskName
from solo5_systemd.settings.limits import Claim, Node, Totals
from solo5_systemd.users.claims import TASKS, Claims
from solo5_systemd.users.dynamic_user_locks import LOCKS, allocating
from solo5_systemd.users.given_disks import GIVEN_DISKS, GivenDiskFiles
from solo5_systemd.users.user_record import (
    AllocatedUser,
    GivenDisk,
    RangeUsedUpError,
    retained_record,
    user_name,
    user_record,
)

STATE = TASKS
RECORDS = Path("/run/userdb")

RECLAIM_TIMEOUT_S = 5.0
"""How long the first start of a boot waits for the disks of earlier boots, whose file systems may hang."""

LOCK_TIMEOUT_S = 5.0
"""How long a start or a removal waits for another one of the same task, or for a collection, before it fails."""

LOCK_POLL_S = 0.02

_LAST = ".last"
_RECLAIMED = ".reclaimed"

_log = logging.getLogger(__name__)

T = TypeVar("T")


async def _nothing(_: TaskName) -> None:
    pass


class _StartingError(TakenError):
    """Another process has the lock of a task's file."""


class Users:
    """The users of tasks; implements `backends.Users`.

    Args:
        uids: returns the operator's range; called at the first allocation.
        reclaim_disk: returns a given disk to user solo5, or raises a Solo5Error.
        state: the directory of the tasks' files.
        records: the directory of user records, which nss-systemd reads.
        given_disks: the directory of given-disk files.
        locks: the directory of PID 1's locks for dynamic users.
        node: returns what the node has, and the limits of tasks.
    """

    def __init__(
        self,
        uids: Callable[[], range],
        reclaim_disk: Callable[[int, GivenDisk], None],
        state: Path = STATE,
        records: Path = RECORDS,
        given_disks: Path = GIVEN_DISKS,
        locks: Path = LOCKS,
        node: Callable[[], Node] = Node,
    ) -> None:
        self._uids = uids
        self._reclaim_disk = reclaim_disk
        self._state = state
        self._records = records
        self._given_disks = GivenDiskFiles(given_disks)
        self._locks = locks
        self._node = node
        self._claims = Claims(state)
        self._resolved = False

    async def acquire(self, task: TaskName) -> AllocatedUser:
        """Allocate a user for a start, or adopt the one of an earlier start of the task.

        Raises:
            TakenError: another start of the task is in progress, or (RangeUsedUpError) all users are allocated.
            DependencyError: libnss_systemd is not installed.
            HostError: the C library does not find the user, or a file cannot be written.
        """
        await self._reclaim_first()
        with _host_errors(self._state):
            held, _ = await self._patiently(lambda: self._acquire(task))
        try:
            if not self._resolved:  # once per process: it depends on the host, not on the task
                await asyncio.to_thread(_check_resolved, held.uid)
                self._resolved = True
        except BaseException:
            if held.adopted:  # perhaps from a start that has succeeded
                os.close(held.descriptor)
            else:
                await asyncio.shield(self.release(task, held.descriptor))
            raise
        return held

    async def claim(self, task: TaskName, claim: Claim) -> None:
        """Check what a task takes beside all others, and record it; the task's user is allocated.

        Raises:
            Solo5Error: as `check_claim`; TakenError also if other starts make claims for LOCK_TIMEOUT_S.
        """
        with _host_errors(self._state):
            await self._patiently(lambda: self._claim(task, claim))

    def _claim(self, task: TaskName, claim: Claim) -> None:
        try:
            with self._claims.exclusive():
                self._check_claim(task, claim, prune=True)
                self._claims.make(task, claim)
        except LockedError as error:
            raise _StartingError(
                f"task {task} waited {LOCK_TIMEOUT_S:g} seconds for other starts to record what they take."
            ) from error

    def check_claim(self, task: TaskName, claim: Claim) -> None:
        """Check what a task would take now, and record nothing.

        Raises:
            InvalidRequestError, TakenError, HostError: a limit would be exceeded.
        """
        with _host_errors(self._state):
            self._check_claim(task, claim, prune=False)

    def _check_claim(self, task: TaskName, claim: Claim, *, prune: bool) -> None:
        node = self._node()
        with nullcontext(Totals()) if node.is_alone(claim) else self._claims.others(task, prune=prune) as others:
            node.check(claim, others, f"task {task}")

    def end_claim(self, task: TaskName) -> None:
        """Remove the claim of an ended task that keeps its user."""
        with _host_errors(self._state):
            self._claims.end(task)

    def next_uid(self) -> int:
        """Return the uid where the next search starts, for a preview; a start may get another one."""
        return next(self._candidates())

    async def record_disks(self, uid: int, disks: Sequence[GivenDisk]) -> None:
        """Record disks before they are given to a user; on stable storage when this returns."""
        with _host_errors(self._state):
            await asyncio.to_thread(self._given_disks.add, uid, disks)  # in a thread: fsync(2)

    async def disk_taken(self, uid: int, disk: GivenDisk) -> None:
        """Record that a user's disk has another owner now; a user without a task and without other disks is freed.

        So a volume that was unmounted before its disk was reclaimed, and is mounted elsewhere, holds no user for ever.
        """
        await asyncio.to_thread(self._disk_taken, uid, disk)

    def _disk_taken(self, uid: int, disk: GivenDisk) -> None:
        try:
            with _host_errors(self._state):
                if self._given_disks.drop(uid, disk):
                    self._reclaim_from(uid)
        except HostError as error:  # the user stays allocated, and the start goes on
            _log.warning("%s", error)

    async def release(self, task: TaskName, held: int | None = None) -> None:
        """Free the user of a task; a no-op without one, or during a start of the task.

        Args:
            task: the task.
            held: descriptor with the lock of the start that the user was allocated for, which is closed; None: none.
        """
        await asyncio.to_thread(self._release, task, held)  # in a thread: a given disk may be on a remote file system

    def _release(self, task: TaskName, held: int | None) -> None:
        with _host_errors(self._state):
            descriptor = self._lock_file(task) if held is None else held
            if descriptor is not None:
                self._free(task, descriptor)

    @asynccontextmanager
    async def removal(self, task: TaskName) -> AsyncGenerator[None, None]:
        """Keep starts of a task out during the block, which removes the task; then free its user.

        Raises:
            TakenError: a start of the task has just succeeded, or is in progress for LOCK_TIMEOUT_S.
        """
        with _host_errors(self._state):
            (descriptor, is_new), has_waited = await self._patiently(lambda: self._lock_or_create(task))
        if has_waited and not is_new:  # a failed start, a removal and a collection remove the file
            os.close(descriptor)
            raise TakenError(
                f"task {task!r} was started meanwhile: expected one that is not being started.", "Repeat the command."
            )
        if is_new:  # there is no user, and no search for one
            try:
                yield
            finally:
                (self._state / task).unlink(missing_ok=True)
                os.close(descriptor)
            return
        try:
            yield
        except BaseException:
            os.close(descriptor)
            raise
        await asyncio.shield(self.release(task, descriptor))  # which closes it, also after a cancellation

    def _lock_or_create(self, task: TaskName) -> tuple[int, bool]:
        self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = self._lock_file(task)
        return (self._create_file(task), True) if descriptor is None else (descriptor, False)

    async def _patiently(self, lock: Callable[[], T]) -> tuple[T, bool]:
        """Call a function until no other process has the lock that it needs; return also whether one had it."""
        end, has_waited = time.monotonic() + LOCK_TIMEOUT_S, False
        while True:
            try:
                return lock(), has_waited
            except _StartingError:
                if time.monotonic() > end:
                    raise
            has_waited = True
            await asyncio.sleep(LOCK_POLL_S)

    async def tasks(self) -> Collection[TaskName]:
        """Return the tasks with a user and no start in progress; none for a caller without permission."""
        free = []
        with suppress(PermissionError), _host_errors(self._state):
            for task in self._task_names():
                descriptor = self._lock_file(task)
                if descriptor is not None:
                    os.close(descriptor)
                    free.append(task)
        return free

    async def collect(
        self,
        loaded: Callable[[], Awaitable[Collection[TaskName]]],
        before: Callable[[TaskName], Awaitable[None]] = _nothing,
    ) -> Sequence[TaskName]:
        """Free the users of tasks without a unit.

        Args:
            loaded: returns the tasks with a unit. It is called first without a lock, since the start of a task that has
                one would wait for it; then with the files of the others locked against starts.
            before: is called for each task without a unit before its user is freed, with its file locked.
        """
        locked: dict[TaskName, int] = {}
        try:
            with _host_errors(self._state):
                names = self._task_names()
                for task in set(names).difference(await loaded()) if names else ():
                    descriptor = self._lock_file(task)
                    if descriptor is not None:
                        locked[task] = descriptor
                kept = frozenset(await loaded()) if locked else frozenset[TaskName]()
                for task in locked.keys() & kept:  # first: the work below may be slow, and would block their release
                    os.close(locked.pop(task))
                freed = []
                for task in sorted(locked):
                    try:
                        await before(task)
                    except Solo5Error as error:  # the next collection repeats it, and the others are freed now
                        _log.warning("the user of task %s is kept: %s", task, error)
                        continue
                    await asyncio.shield(asyncio.to_thread(self._free, task, locked.pop(task)))
                    freed.append(task)
        finally:
            for descriptor in locked.values():
                os.close(descriptor)
        return freed

    async def reclaim(self) -> Sequence[str]:
        """Reclaim the disks of users without a task; returns one sentence for each disk that failed."""
        return await asyncio.to_thread(self._reclaim)

    async def _reclaim_first(self) -> None:
        """Reclaim disks before the first start of a boot: /run is empty then, while the owners of disks persist."""
        with _host_errors(self._state):
            self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
            if (self._state / _RECLAIMED).exists():
                return
            reclaiming = asyncio.ensure_future(self.reclaim())
            # The thread may run on after the timeout; a user with a given-disk file is not allocated.
            reclaiming.add_done_callback(_warn)
            await asyncio.wait([reclaiming], timeout=RECLAIM_TIMEOUT_S)
            (self._state / _RECLAIMED).touch(mode=0o600)

    def _reclaim(self) -> Sequence[str]:
        with _host_errors(self._state):
            return [fault for uid in self._given_disks.users() for fault in self._reclaim_from(uid)]

    def _reclaim_from(self, uid: int) -> Sequence[str]:
        """Reclaim the disks of a user without a task.

        Until that is done, the retained record prevents an allocation by PID 1. If PID 1 has the user already, the
        disks are reclaimed as well, and the given-disk file stays until this process gets the lock.
        """
        if not self._is_unused(uid):
            return ()
        self._records.mkdir(mode=0o755, parents=True, exist_ok=True)
        with allocating(uid, self._locks) as is_ours:
            if not self._is_unused(uid):
                return ()
            if is_ours:
                self._retain(uid)
            faults = self._reclaim_disks(uid)
            if is_ours and not faults:
                self._remove_uid(uid)
        return faults

    def _is_unused(self, uid: int) -> bool:
        try:
            return (self._records / f"{uid}.user").read_bytes() == retained_record(uid)
        except FileNotFoundError:
            return True

    def _acquire(self, task: TaskName) -> AllocatedUser:
        self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._records.mkdir(mode=0o755, parents=True, exist_ok=True)
        left = self._lock_file(task)
        descriptor = self._create_file(task) if left is None else left
        try:
            adopted = None if left is None else self._adopt(task, descriptor)
            if adopted is not None:
                return AllocatedUser(uid=adopted, descriptor=descriptor, adopted=True)
            return AllocatedUser(uid=self._allocate(task, descriptor), descriptor=descriptor)
        except BaseException:
            self._free(task, descriptor)
            raise

    def _create_file(self, task: TaskName) -> int:
        """Create a task's file, locked before it has a name."""
        descriptor = open_unnamed(self._state, 0o600)
        try:
            lock(descriptor, self._state / task, timeout_s=0.0)
            link_unnamed(descriptor, self._state / task)
        except FileExistsError as error:
            os.close(descriptor)
            raise _StartingError(
                f"task name {task!r} is taken: another start of it is in progress.", "`solo5ctl ps` lists the tasks."
            ) from error
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _lock_file(self, task: TaskName) -> int | None:
        """Open and lock a task's file; None where it does not exist or a start has the lock."""
        path = self._state / task
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        if try_lock(descriptor) and os.fstat(descriptor).st_nlink:  # otherwise removed between open(2) and flock(2)
            return descriptor
        os.close(descriptor)
        return None

    def _adopt(self, task: TaskName, descriptor: int) -> int | None:
        """Return the uid of an earlier start of the task, killed or ended; None without a valid one."""
        uid = _read_uid(descriptor)
        if uid is None or not self._is_record_of(task, uid):
            self._remove_records(task, uid)
            os.ftruncate(descriptor, 0)
            return None
        return uid

    def _allocate(self, task: TaskName, descriptor: int) -> int:
        for uid in self._candidates():
            if self._given_disks.exists(uid) or (self._records / f"{uid}.user").exists():
                continue
            with allocating(uid, self._locks) as is_ours:
                made = is_ours and self._create_record(task, uid)
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
        """Yield every uid of the range, starting after the last one: a uid is reused as late as possible."""
        uids = self._uids()
        try:
            last = int((self._state / _LAST).read_text())
        except (OSError, ValueError):
            last = random.choice(uids)  # noqa: S311 - a start position, not a secret
        begin = uids.index(last) + 1 if last in uids else 0
        yield from (uids[(begin + i) % len(uids)] for i in range(len(uids)))

    def _create_record(self, task: TaskName, uid: int) -> bool:
        """Create the user record; False if the uid has one already."""
        descriptor = open_unnamed(self._records, 0o644)
        try:
            os.write(descriptor, user_record(uid, task))
            os.fchmod(descriptor, 0o644)
            link_unnamed(descriptor, self._records / f"{uid}.user")
            with suppress(FileExistsError):  # left by a removal of only one of the two names
                link_unnamed(descriptor, self._records / f"{user_name(uid)}.user")
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
        """Remove a task's records, then its file, and close the file's descriptor."""
        try:
            self._remove_records(task, _read_uid(descriptor))
            self._claims.end(task)
            (self._state / task).unlink(missing_ok=True)
        finally:
            os.close(descriptor)

    def _free_uid(self, uid: int) -> None:
        """Reclaim all given disks of a user and free it; a user that may still own a disk stays allocated."""
        faults = self._reclaim_disks(uid)
        if faults:
            self._retain(uid)
            for fault in faults:
                _log.warning("%s", fault)
        else:
            self._remove_uid(uid)

    def _reclaim_disks(self, uid: int) -> Sequence[str]:
        faults = []
        for disk in self._given_disks.read(uid):
            try:
                self._reclaim_disk(uid, disk)
            except Solo5Error as error:
                faults.append(str(error))
        return faults

    def _retain(self, uid: int) -> None:
        """Replace the user's record by the retained one, which belongs to no task."""
        for name in (user_name(uid), f"{uid}"):
            replace_file(self._records / f"{name}.user", retained_record(uid), mode=0o644)

    def _remove_uid(self, uid: int) -> None:
        self._given_disks.remove(uid)
        (self._records / f"{user_name(uid)}.user").unlink(missing_ok=True)
        (self._records / f"{uid}.user").unlink(missing_ok=True)

    def _remove_records(self, task: TaskName, uid: int | None) -> None:
        """Remove a task's records; without a uid in its file (a start was killed in between), search all records."""
        uids = (
            [uid] if uid is not None else [int(p.stem) for p in self._records.glob("[0-9]*.user") if p.stem.isdigit()]
        )
        for each in uids:
            if self._is_record_of(task, each):
                self._free_uid(each)

    def _task_names(self) -> list[TaskName]:
        with suppress(FileNotFoundError):
            return sorted(TaskName(file.name) for file in self._state.iterdir() if not file.name.startswith("."))
        return []


def uid_of(task: TaskName, state: Path = STATE) -> int | None:
    """Return the uid of a task; None without one."""
    with suppress(OSError, ValueError):
        return int((state / task).read_text())
    return None


def _warn(reclaiming: "asyncio.Future[Sequence[str]]") -> None:
    if reclaiming.cancelled():
        return
    error = reclaiming.exception()
    for sentence in (str(error),) if error else reclaiming.result():
        _log.warning("%s", sentence)


def _read_uid(descriptor: int) -> int | None:
    text = os.pread(descriptor, 16, 0)
    return int(text) if text.isdigit() else None


def _check_resolved(uid: int) -> None:
    """Check that getpwuid(3) finds the user, as systemd requires for User=.

    Raises:
        DependencyError: libnss_systemd is not installed.
        HostError: nsswitch.conf does not use it.
    """
    with suppress(KeyError):
        pwd.getpwuid(uid)
        return
    from ctypes import CDLL

    try:
        CDLL("libnss_systemd.so.2")
    except OSError as error:
        from solo5_systemd.dependencies import dependency_error

        raise dependency_error(error) from error
    raise HostError(
        f"user {uid} is not found, though {RECORDS} has its record: expected systemd as a source of users.",
        "Put `systemd` into the line `passwd:` of /etc/nsswitch.conf.",
    )


@contextmanager
def _host_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HostError(f"the users of tasks in {directory} cannot be managed: {error.strerror}.") from error
