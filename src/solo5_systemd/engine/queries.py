"""The operations that only read: listing and inspecting tasks.

They await their backends only, so that they run without an event loop where the backends do (`queries`).
What is not needed without tasks is imported once there is one: imports are most of the run time of a short verb.
"""

from contextlib import contextmanager
from typing import TYPE_CHECKING

from solo5_systemd.base.errors import HostError, NoSuchTaskError
from solo5_systemd.base.names import DeviceName, TaskName
from solo5_systemd.engine.backends import QueryBackends
from solo5_systemd.engine.hung_tenders import is_hung

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence

    from solo5_systemd.bus.unit_reader import UnitReader
    from solo5_systemd.engine.backends import Backends
    from solo5_systemd.engine.task import Sample, Task
    from solo5_systemd.journal.lines import Line
    from solo5_systemd.network.endpoints import Endpoints
    from solo5_systemd.network.model import LeaseRecord
    from solo5_systemd.storage.model import FailedDisk
    from solo5_systemd.unit.outcome import Outcome
    from solo5_systemd.unit.state import UnitState


def with_disks(samples: "Mapping[TaskName, Sample]") -> "dict[TaskName, Sample]":
    """Return samples with the names of the disks on each device, by the locks of disks: the kernel counts by device."""
    from solo5_systemd.storage.locks import devices_of_tasks

    disks = devices_of_tasks() if any(each.usage.disks for each in samples.values()) else {}
    return {name: each._replace(disks=disks.get(name, {})) for name, each in samples.items()}


class Queries:
    """The reading part of the engine. No state is kept between calls: each reads PID 1 again."""

    def __init__(self, backends: "QueryBackends | Backends") -> None:
        self.backends = backends

    async def task(self, name: TaskName) -> "Task":
        """Return one task; raises NoSuchTaskError if none has the name."""
        record = await self.backends.networks.record(name)
        return await self._view(await self._state(name), record)

    async def tasks(self, *, ended: bool = True, reservations: bool = True) -> "tuple[Task, ...]":
        """Return all tasks, sorted by name. Ambiguous outcomes need the journal, which is slower.

        Args:
            reservations: with their reservations; a list that shows `endpoints` only does without.
        """
        states = await self.backends.units.states(ended=ended)
        if not states:
            return ()
        held = {each.reservation.task: each for each in await self.backends.networks.records()} if reservations else {}
        views = [await self._view(state, held.get(state.task)) for state in states]
        return tuple(sorted(views, key=lambda task: task.name))

    async def names(self, *, ended: bool = True) -> tuple[TaskName, ...]:
        """Return the names of all tasks, sorted; without `ended`, of those that are not over."""
        return tuple(sorted(await self.backends.units.names(ended=ended)))

    async def endpoints(self) -> "Mapping[TaskName, Endpoints]":
        """Return the addresses and published ports of the tasks with a lease record, as text."""
        return await self.backends.networks.endpoints()

    async def waiting(self) -> "Sequence[LeaseRecord]":
        """Return the lease records of the tasks without a process, which wait for their first packet."""
        return [each for each in await self.backends.networks.records() if each.waits]

    async def samples(self, *, drops: bool = False, disks: bool = False) -> "Mapping[TaskName, Sample]":
        """Return the resource usage of each running task, without a D-Bus call.

        Args:
            drops: with the dropped packets of each NIC, by a call of the network service if there are any NICs.
            disks: with the names of the disks on each block device of the host; root only.
        """
        from solo5_systemd.engine.task import Sample

        usages = await self.backends.usages.usages()
        traffic = await self.backends.networks.traffic() if usages else {}
        dropped = await self.drops() if drops and traffic else {}
        found = {
            task: Sample(usage=usages[task], nics=traffic.get(task, {}), drops=dropped.get(task, {}))
            for task in sorted(usages)
        }
        return with_disks(found) if disks else found

    async def full_disks(self) -> "Sequence[FailedDisk]":
        """Return the disks of all running tasks on full file systems; none where that is not known in time."""
        try:
            return [disk for disk, _ in await self.backends.disk_space.changes()]
        except HostError:
            return ()

    async def drops(self) -> "Mapping[TaskName, Mapping[DeviceName, Mapping[str, int]]]":
        """Return the packets of each NIC that the packet filter has dropped, by rule; root only."""
        from solo5_systemd.network.drops import of_nics
        from solo5_systemd.network.use import dropped_by_namespace

        counted = dropped_by_namespace(await self.backends.networks.networks())
        endpoints = await self.endpoints()
        return {task: of_nics(found.nics, counted.get(found.namespace, {})) for task, found in endpoints.items()}

    async def awake_because(self, task: "Task") -> str:
        """Return what keeps a task with an idle time awake; empty: nothing, or unknown."""
        if task.asleep or task.state.over or task.reservation is None or not task.reservation.idle_s:
            return ""
        return await self.backends.networks.awake_because(task.name)

    async def network_problems(self, tasks: "Iterable[Task]") -> "Mapping[TaskName, Sequence[str]]":
        """Return what only an operator can repair of the network of each task, since its start."""
        problems = await self.backends.networks.problems()
        return {
            task.name: list(dict.fromkeys(concerned))
            for task in tasks
            if (concerned := [each.what for each in problems if task.name in each.tasks and each.time >= task.started])
        }

    def console(self, task: "Task", *, last: int | None = None) -> "AsyncGenerator[Line, None]":
        """Return the lines of a task's console that are in the journal; with `last`, that many at most."""
        return self.backends.console.lines(task.state, last=last)

    async def _state(self, name: TaskName) -> "UnitState":
        state = await self.backends.units.state(name)
        if state is None:
            raise NoSuchTaskError(f"no task is named {name!r}.", "List them: solo5ctl ps --all")
        return state

    async def _view(self, state: "UnitState", record: "LeaseRecord | None" = None) -> "Task":
        from solo5_systemd.engine.task import Task, phase

        untried = state.is_untried and not await self.backends.units.was_refused(state.unit)
        return Task(
            state=state,
            phase=phase(state, hung=await is_hung(state, self.backends.usages)),
            outcome=await self._outcome(state) if state.over and not untried else None,
            reservation=record.reservation if record else None,
            asleep=record.asleep if record else 0,
        )

    async def _outcome(self, state: "UnitState") -> "Outcome":
        """Return the outcome; the journal is read only if the unit alone is ambiguous."""
        from solo5_systemd.unit.outcome import is_unambiguous, outcome, with_failed_disks

        shutting_down = state.stop_requested and await self.backends.units.is_shutting_down()
        if is_unambiguous(state):
            return outcome(state, shutting_down=shutting_down)
        await self.backends.console.sync(state.task, state.log_namespace)
        found = outcome(state, await self.backends.console.exit_messages(state), shutting_down=shutting_down)
        if not found.by_disk:
            return found
        return with_failed_disks(found, await self.backends.disk_space.failed_disks(state.task))


async def images_in_use(units: "UnitReader") -> frozenset[str]:
    """Return the SHA-256 of the images of all loaded units."""
    return frozenset(state.log_fields.get("SOLO5_IMAGE_SHA256", "") for state in await units.states())


@contextmanager
def queries() -> "Iterator[Queries]":
    """Yield the reading part of the engine on this host, without an event loop."""
    backends = QueryBackends()
    try:
        yield Queries(backends)
    finally:
        backends.close()
