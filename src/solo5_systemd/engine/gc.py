"""Remove orphans: units, leases, taps, users, images and files that belong to no task."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from solo5_systemd.base.names import TaskName, declared_outcome_target, outcome_target
from solo5_systemd.engine.backends import Backends
from solo5_systemd.engine.orphans import RECORD_MAX_AGE_S, Kind, Orphan, alloc_dir, orphans
from solo5_systemd.engine.queries import images_in_use
from solo5_systemd.engine.stop import discard


def is_removed(directory: Path) -> bool:
    """Return whether a directory was removed: not if lstat(2) fails otherwise, or its file system is not mounted."""
    try:
        directory.lstat()
    except FileNotFoundError:
        return directory.parent.is_dir()
    except OSError:
        return False
    return False


class Collector:
    """The garbage collection of tasks' resources."""

    def __init__(self, backends: Backends) -> None:
        self._backends = backends

    async def orphans(self) -> tuple[Orphan, ...]:
        """Return all orphans. Activates no service.

        Units are read after the resources that belong to them, and leases after the units. So a task that starts or
        ends meanwhile has no resource that seems orphaned.
        """
        users = await self._backends.users.tasks()
        consoles = await self._backends.relay.records()
        outcomes = await self._backends.units.outcome_targets()
        states = await self._backends.units.states()
        directories = {*map(alloc_dir, states)} - {""}
        found = orphans(
            units=states,
            outcomes=outcomes,
            expired=await self._backends.networks.expired(),
            strays=await self._backends.networks.orphans(),
            consoles=consoles,
            missing_directories=await asyncio.to_thread(
                lambda: frozenset(each for each in directories if is_removed(Path(each)))
            ),
            users=frozenset(users),
        )
        return tuple(found)

    async def collect(self, *, dry_run: bool) -> tuple[str, ...]:
        """Remove all orphans and unused images; return a line for each, and for what could not be removed."""
        found = await self.orphans()
        kept: Sequence[str] = ()
        if not dry_run:
            await self._remove(found)
            await self.users()
            kept = await self._backends.users.reclaim()
        mounts = await self._backends.disks.sweep(dry_run=dry_run)
        images = await self._backends.images.collect(await images_in_use(self._backends.units), dry_run=dry_run)
        binds = "/run/solo5/binds/"
        return (
            *map(str, found),
            *(
                f"{'bind mounts of disks' if path.startswith(binds) else 'private disk'} {path}: "
                "left by a start that was killed"
                for path in mounts
            ),
            *kept,
            *(f"image {sha256}" for sha256 in images),
        )

    async def consoles(self) -> Sequence[TaskName]:
        """Drain the relay's records of tasks without a unit after RECORD_MAX_AGE_S; return these tasks."""
        records = await self._backends.relay.records()
        silent = {task for task, seconds in records.items() if seconds > RECORD_MAX_AGE_S}
        lost = sorted(silent.difference(await self._backends.units.names())) if silent else []
        for task in lost:
            await self._backends.relay.drain(task)
        return lost

    async def users(self) -> Sequence[TaskName]:
        """Free the users of tasks without a unit, and remove stale disk locks; return these tasks."""
        await self._backends.disks.remove_stale_locks()
        # A request has the same life as its task's user.
        return await self._backends.users.collect(self._backends.units.names, self._backends.networks.forget)

    async def images(self, *, min_age: float) -> Sequence[str]:
        """Remove images that no task runs, unused for `min_age` seconds; return their SHA-256."""
        used = await images_in_use(self._backends.units)
        return await self._backends.images.collect(used, dry_run=False, min_age=min_age)

    async def _remove(self, found: Sequence[Orphan]) -> None:
        for orphan in found:
            match orphan.kind:
                case Kind.TASK:
                    await discard(self._backends, TaskName(orphan.subject))
                    await self._backends.relay.drain(TaskName(orphan.subject))
                case Kind.OUTCOME:
                    task = TaskName(orphan.subject)  # declared or not: its declaration may be gone
                    for target in (outcome_target(task), declared_outcome_target(task)):
                        await self._backends.units.stop(target)
                case Kind.CONSOLE:
                    await self._backends.relay.drain(TaskName(orphan.subject))
                case Kind.LEASE | Kind.STRAY | Kind.USER:
                    pass  # all in one call, those of users by the caller
        if any(orphan.kind in (Kind.LEASE, Kind.STRAY) for orphan in found):
            await self._backends.networks.collect(dry_run=False)
