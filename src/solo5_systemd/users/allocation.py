"""The allocation of a user to each task, from its start until it is removed.

A user is freed after its disks have another owner. One whose disks cannot be reclaimed stays allocated without a task:
its given-disk file and a record remain, until they are reclaimed or given to another task.
"""

import asyncio
import logging
import os
import pwd
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from ctypes import CDLL
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from solo5_systemd.base.concurrency import in_thread
from solo5_systemd.base.dependencies import dependency_error
from solo5_systemd.base.errors import HostError, Solo5Error, TakenError, host_errors
from solo5_systemd.base.locks import LockedError, closing, closing_on_error
from solo5_systemd.base.names import TaskName
from solo5_systemd.settings.node_limits import Claim, Node
from solo5_systemd.storage import given_disks
from solo5_systemd.storage.model import GivenDisk
from solo5_systemd.users import userdb_records
from solo5_systemd.users.registry import DIRECTORY, LOCK_TIMEOUT_S, Registry

RECLAIM_TIMEOUT_S = 5.0
"""How long the first start of a boot waits for the disks of earlier boots, whose file systems may hang."""

TASK_LOCK_TIMEOUT_S = 5.0
"""How long a start or a removal waits for another one of the same task, or for a collection, before it fails."""

LOCK_INTERVAL_S = 0.02

COLLECTED_AT_ONCE = 100
"""Tasks that a collection locks at a time, each with a descriptor: many programs may have 1,024."""

_log = logging.getLogger(__name__)

T = TypeVar("T")

_host_errors = partial(host_errors, f"the users of tasks in {DIRECTORY} cannot be managed")


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


class _StartingError(TakenError):
    """Another process starts, removes or collects the task."""


class Users:
    """The users of tasks."""

    def __init__(self, uids: Callable[[], range], node: Callable[[], Node] = Node) -> None:
        self._uids = uids
        self._registry = Registry()
        self._node = node
        self._is_resolved = False

    async def acquire(self, task: TaskName) -> AllocatedUser:
        """Allocate a user for a start, or adopt the one of an earlier start of the task.

        Raises:
            TakenError: another start of the task is in progress, or (RangeUsedUpError) all users are allocated.
            DependencyError: libnss_systemd is not installed.
            HostError: the C library does not find the user, or a file cannot be written.
        """
        if not self._registry.exists():
            await self._reclaim_first()
        held, _ = await self._patiently(lambda: self._acquire(task))
        try:
            if not self._is_resolved:  # once per process: it depends on the host, not on the task
                await asyncio.to_thread(_check_resolved, held.uid)
                self._is_resolved = True
        except BaseException:
            if held.adopted:  # perhaps from a start that has succeeded
                os.close(held.descriptor)
            else:
                await asyncio.shield(self.release(task, held.descriptor))
            raise
        return held

    def _acquire(self, task: TaskName) -> AllocatedUser:
        with closing_on_error(self._lock(task)) as descriptor:
            uid = self._registry.uid(task)
            if uid is not None and userdb_records.is_of(uid, task):  # a killed start may have left the line alone
                return AllocatedUser(uid=uid, descriptor=descriptor, adopted=True)
            return AllocatedUser(uid=self._allocate(task), descriptor=descriptor)

    def _lock(self, task: TaskName) -> int:
        descriptor = self._registry.lock_task(task)
        if descriptor is None:
            raise _StartingError(
                f"task name {task!r} is taken: another start of it is in progress.", "`solo5ctl ps` lists the tasks."
            )
        return descriptor

    def _allocate(self, task: TaskName) -> int:
        for uid in self._candidates():
            if given_disks.exists(uid) or userdb_records.exists(uid):
                continue
            self._registry.add(task, uid)  # before the record, which a killed start may leave
            if userdb_records.create(uid, task):
                return uid
        self._registry.remove(task)
        uids = self._uids()
        raise RangeUsedUpError(
            f"all {len(uids)} users of tasks, {uids[0]} to {uids[-1]}, are in use.",
            "Remove ended tasks (solo5ctl rm, solo5ctl gc), or set a larger range: task_uids in solo5.toml(5).",
        )

    def _candidates(self) -> Iterator[int]:
        """Yield every uid of the range, starting after the last one: a uid is reused as late as possible."""
        uids, last = self._uids(), self._registry.last()
        begin = int.from_bytes(os.urandom(4)) % len(uids)
        if last is not None and last in uids:  # the operator may have changed the range
            begin = uids.index(last) + 1
        yield from (uids[(begin + i) % len(uids)] for i in range(len(uids)))

    def next_uid(self) -> int:
        """Return the uid where the next search starts, for a preview; a start may get another one."""
        return next(self._candidates())

    async def claim(self, task: TaskName, claim: Claim) -> None:
        """Check what a task takes beside all others, and record it; raises as `Node.check`, or LockedError."""
        await self._patiently(lambda: self._registry.claim(task, claim, self._node()))

    def check_claim(self, task: TaskName, claim: Claim) -> None:
        """Check what a task would take now, and record nothing; raises as `Node.check`."""
        with _host_errors():
            self._registry.check_claim(task, claim, self._node())

    async def end_claim(self, task: TaskName) -> None:
        """Remove the claim of an ended task that keeps its user."""
        await self._patiently(lambda: self._registry.end_claim(task))

    @in_thread
    def record_disks(self, uid: int, disks: Sequence[GivenDisk]) -> None:
        """Record disks before they are given to a user; on stable storage when this returns."""
        with _host_errors():
            given_disks.add(uid, disks)

    @in_thread
    def disk_taken(self, uid: int, disk: GivenDisk) -> None:
        """Record that a user's disk has another owner now; a user without a task and without other disks is freed."""
        try:
            with _host_errors():
                if given_disks.drop(uid, disk):
                    self._reclaim_from(uid)
        except HostError as error:  # the user stays allocated, and the start goes on
            _log.warning("%s", error)

    @in_thread
    def release(self, task: TaskName, held: int | None = None) -> None:
        """Free the user of a task, if it has one and is not being started: remove all that it has, then its line.

        Args:
            held: descriptor with the lock of the start that the user was allocated for, which is closed; None: none.
        """
        with _host_errors():
            descriptor = self._registry.lock_task(task) if held is None else held
            if descriptor is None:
                return
            with closing(descriptor):
                uid = self._registry.uid(task)
                if uid is not None and userdb_records.is_of(uid, task):
                    for fault in self._reclaim_disks(uid):
                        _log.warning("%s", fault)
                self._registry.remove(task)

    @asynccontextmanager
    async def removal(self, task: TaskName) -> AsyncGenerator[None, None]:
        """Keep starts of a task out during the block, which removes the task; then free its user."""
        lock, has_waited = await self._patiently(lambda: self._lock(task))
        with closing_on_error(lock) as descriptor:
            if has_waited and self._registry.uid(task) is not None:  # otherwise its start has failed, or it was removed
                raise TakenError(
                    f"task {task!r} was started meanwhile.",
                    "Repeat the command.",
                )
            yield
        await asyncio.shield(self.release(task, descriptor))  # which closes it, also after a cancellation

    async def _patiently(self, act: Callable[[], T]) -> tuple[T, bool]:
        """Call a function until no other process has the lock that it needs; return also whether one had it."""
        begun, has_waited = time.monotonic(), False
        while True:
            try:
                with _host_errors():
                    return act(), has_waited
            except (_StartingError, LockedError) as error:
                patience_s = TASK_LOCK_TIMEOUT_S if isinstance(error, _StartingError) else LOCK_TIMEOUT_S
                if time.monotonic() > begun + patience_s:
                    raise
            has_waited = True
            await asyncio.sleep(LOCK_INTERVAL_S)

    async def tasks(self) -> Collection[TaskName]:
        """Return the tasks with a user and no start in progress; none for a caller without permission."""
        free = []
        with _host_errors(), suppress(PermissionError):
            for task in self._registry.tasks():
                descriptor = self._registry.lock_task(task)
                if descriptor is not None:
                    os.close(descriptor)
                    free.append(task)
        return free

    async def collect(
        self,
        loaded: Callable[[], Awaitable[Collection[TaskName]]],
        before: Callable[[TaskName], Awaitable[None]],
    ) -> Sequence[TaskName]:
        """Free the users of tasks without a unit.

        Args:
            loaded: returns the tasks with a unit: first without a lock, for which the start of such a task would wait;
                then with the others locked against starts.
            before: is called for each task before its user is freed, with the task locked.
        """
        with _host_errors():
            names = self._registry.tasks()
            lost = sorted(set(names).difference(await loaded())) if names else []
        freed: list[TaskName] = []
        for at in range(0, len(lost), COLLECTED_AT_ONCE):
            freed += await self._collect(lost[at : at + COLLECTED_AT_ONCE], loaded, before)
        return freed

    async def _collect(
        self,
        lost: Sequence[TaskName],
        loaded: Callable[[], Awaitable[Collection[TaskName]]],
        before: Callable[[TaskName], Awaitable[None]],
    ) -> Sequence[TaskName]:
        """Free the users of some tasks, unless one has a unit by now or is being started."""
        locked: dict[TaskName, int] = {}
        try:
            with _host_errors():
                for task in lost:
                    descriptor = self._registry.lock_task(task)
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
                    await asyncio.shield(self.release(task, locked.pop(task)))
                    freed.append(task)
        finally:
            for descriptor in locked.values():
                os.close(descriptor)
        return freed

    @in_thread
    def reclaim(self) -> Sequence[str]:
        """Reclaim the disks of users without a task; returns one sentence for each disk that failed."""
        with _host_errors():
            return [fault for uid in given_disks.users() for fault in self._reclaim_from(uid)]

    async def _reclaim_first(self) -> None:
        """Reclaim disks before the first start of a boot: there is no registry then, while the owners of disks persist.

        The thread may run on after the timeout; a user with a given-disk file is not allocated.
        """

        async def reclaim() -> None:
            try:
                for fault in await self.reclaim():
                    _log.warning("%s", fault)
            except Solo5Error as error:
                _log.warning("%s", error)

        await asyncio.wait([asyncio.ensure_future(reclaim())], timeout=RECLAIM_TIMEOUT_S)

    def _reclaim_from(self, uid: int) -> Sequence[str]:
        """Reclaim the disks of a user without a task; until then, the retained record prevents an allocation by PID 1.

        If PID 1 has the user already, the given-disk file stays until this process gets the lock.
        """
        if not userdb_records.is_unused(uid):
            return ()
        with userdb_records.allocating(uid) as is_ours:
            if not userdb_records.is_unused(uid):  # a task got it before the lock was taken
                return ()
            if is_ours:
                userdb_records.retain(uid)
            return self._reclaim_disks(uid, is_ours=is_ours)

    def _reclaim_disks(self, uid: int, *, is_ours: bool = True) -> Sequence[str]:
        """Reclaim all given disks of a user, and free it; one that may still own a disk is retained instead."""
        from solo5_systemd.storage import owner  # imported here for startup time: few starts reclaim a disk

        faults = []
        for disk in given_disks.read(uid):
            try:
                owner.reclaim_disk(uid, disk)
            except Solo5Error as error:
                faults.append(str(error))
        if is_ours and faults:
            userdb_records.retain(uid)
        elif is_ours:
            given_disks.remove(uid)
            userdb_records.remove(uid)
        return faults


def _check_resolved(uid: int) -> None:
    """Check that getpwuid(3) finds the user, as systemd requires for User=."""
    with suppress(KeyError):
        pwd.getpwuid(uid)
        return
    try:
        CDLL("libnss_systemd.so.2")
    except OSError as error:
        raise dependency_error(error) from error
    raise HostError(
        f"user {uid} is not found, though {userdb_records.RECORDS} has its record: expected systemd as a source of "
        "users.",
        "Put `systemd` into the line `passwd:` of /etc/nsswitch.conf.",
    )
