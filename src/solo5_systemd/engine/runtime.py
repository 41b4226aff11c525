"""The story of a task: start, watch, stop, forget.

Nothing is remembered between calls: each begins by asking PID 1.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from solo5_systemd.engine.stop import SIGKILL, SIGNALS, Stopper
from solo5_systemd.engine.task import NoCallbacks, Sample, StartCallbacks, Started, StartedScope, Task, phase
from solo5_systemd.errors import HostError, InvalidRequestError, NoSuchTaskError, TakenError
from solo5_systemd.journal.export import Entry
from solo5_systemd.names import TaskName
from solo5_systemd.network.model import Reservation
from solo5_systemd.unit.outcome import Outcome, is_unambiguous, outcome
from solo5_systemd.unit.properties import Property, parse_property
from solo5_systemd.unit.state import ActiveState, UnitState, child_state, state_of_run
from solo5_systemd.workload import STOP_TIMEOUT_S, StopSignal, Workload

if TYPE_CHECKING:
    from solo5_systemd.engine.backends import Backends, Meter
    from solo5_systemd.engine.gc import Collector
    from solo5_systemd.engine.orphans import Orphan
    from solo5_systemd.engine.start import Plan, Starter
    from solo5_systemd.network.model import NetworkOverview

IMAGE_MIN_AGE_S = 60.0
"""Seconds for which a stored image is kept though no task has it: its start may be under way."""


class Runtime:
    """The engine, on the backends that it is given."""

    def __init__(self, backends: "Backends") -> None:
        self._backends = backends
        self._units = backends.units
        self._stopper = Stopper(backends)

    @cached_property
    def _starter(self) -> "Starter":
        from solo5_systemd.engine.start import Starter  # half of all there is to import, and only for a start

        return Starter(self._backends, lambda: self.collect_images(min_age=IMAGE_MIN_AGE_S))

    @cached_property
    def _collector(self) -> "Collector":
        from solo5_systemd.engine.gc import Collector

        return Collector(self._backends, self.discard)

    # --- start -----------------------------------------------------------------------------------------------

    async def preview(self, workload: Workload) -> "Plan":
        """What `start` would do; nothing is reserved or started.

        Raises:
            Solo5Error: as `start`.
        """
        return await self._starter.preview(workload)

    async def unenforced(self, workload: Workload) -> Mapping[str, str]:
        """Return the limits of a workload that this kernel will not enforce, each with the controller that it needs."""
        from solo5_systemd.unit.limits import unenforced

        return unenforced(workload, await self._backends.usages.controllers())

    async def start(self, workload: Workload, progress: StartCallbacks | None = None) -> Started:
        """Start a task as a service of PID 1.

        Raises:
            Solo5Error: it did not start; nothing that was made for it is left.
        """
        async with self._starter.service(workload, progress or NoCallbacks()) as started:
            return started

    async def start_scope(self, workload: Workload, pid: int, progress: StartCallbacks | None = None) -> StartedScope:
        """Put a process into a scope of its own and say what it is to execute.

        Raises:
            Solo5Error: the scope did not start; nothing that was made for it is left.
        """
        async with self._starter.scope(workload, pid, progress or NoCallbacks()) as entered:
            return entered

    async def open_console(self, unit: str, namespace: str) -> tuple[int, int]:
        """Journal streams for a process that PID 1 does not start: its stdout and stderr, the caller's to close.

        `log_namespace` has given the namespace: its journald runs.
        """
        console = self._backends.console
        return await console.open_stdout(unit, namespace), await console.open_stderr(unit, namespace)

    async def log_namespace(self) -> str:
        """Return the journal namespace of the consoles of new tasks, whose journald runs; empty: the host's journal.

        Raises:
            HostError: its journald did not start.
            SettingsError: the operator's settings are wrong.
        """
        return await self._starter.namespace()

    # --- look ------------------------------------------------------------------------------------------------

    async def systemd_version(self) -> str:
        """What PID 1 says of itself, such as `257.7-1`; that it answers is worth as much.

        Raises:
            HostError: it does not.
        """
        return await self._units.version()

    async def task(self, name: TaskName) -> Task:
        """One task, now.

        Raises:
            NoSuchTaskError: none has this name.
        """
        reservation = await self.reservation(name)
        return await self._view(await self._state(name), reservation)

    async def reservation(self, name: TaskName) -> Reservation | None:
        """What a task holds of the network, None for nothing; no service is woken to say so."""
        return await self._backends.networks.reservation(name)

    async def tasks(self, *, ended: bool = True) -> tuple[Task, ...]:
        """All tasks by name; those that have ended cost a look into the journal where their end is ambiguous."""
        states = await self._units.states(ended=ended)
        held = await self._held() if states else {}
        views = await asyncio.gather(*(self._view(state, held.get(state.task)) for state in states))
        return tuple(sorted(views, key=lambda task: task.name))

    async def running(self) -> dict[TaskName, Task]:
        """The tasks that live, at the least cost for many: which run each is, and what it holds of the network.

        When it started is not among it, nor whether its tender hangs.
        """
        states = await self._units.running_states()
        held = await self._held() if states else {}
        return {
            state.task: Task(state=state, phase=phase(state, hung=False), reservation=held.get(state.task))
            for state in states
        }

    async def units(self) -> Sequence[UnitState]:
        """The units of all tasks."""
        return await self._units.states()

    async def unit(self, name: TaskName) -> UnitState | None:
        """The unit of one task; None where it has none."""
        return await self._units.state(name)

    async def names(self, *, ended: bool = True) -> tuple[TaskName, ...]:
        """The names of all tasks, or of those that live."""
        return tuple(sorted(await self._units.names(ended=ended)))

    async def _held(self) -> dict[TaskName, Reservation]:
        return {each.task: each for each in await self._backends.networks.reservations()}

    async def _state(self, name: TaskName) -> UnitState:
        state = await self._units.state(name)
        if state is None:
            raise NoSuchTaskError(f"no task is named {name!r}.", "List them: solo5ctl ps --all")
        return state

    async def _view(self, state: UnitState, reservation: Reservation | None = None) -> Task:
        return Task(
            state=state,
            phase=phase(state, hung=await self._stopper.is_hung(state)),
            outcome=await self._outcome(state) if state.over else None,
            reservation=reservation,
        )

    async def _outcome(self, state: UnitState) -> Outcome:
        """The journal is read only where the unit alone does not tell it all."""
        shutting_down = state.stop_requested and await self._units.is_shutting_down()
        if is_unambiguous(state):
            return outcome(state, shutting_down=shutting_down)
        await self._backends.console.sync(state.task, state.log_namespace)
        return outcome(state, await self._backends.console.exit_messages(state), shutting_down=shutting_down)

    async def networks(self) -> "Sequence[NetworkOverview]":
        """All networks, configured or in use."""
        return await self._backends.networks.networks()

    async def samples(self) -> Mapping[TaskName, Sample]:
        """What each task that runs uses now; no question to PID 1."""
        usages = await self._backends.usages.usages()
        traffic = await self._backends.networks.traffic()
        return {task: Sample(usage=usages[task], nics=traffic.get(task, {})) for task in sorted(usages)}

    def meter(self, control_group: str) -> "Meter":
        """Memory and processor time of a cgroup, again and again, for those who know it (`Started`, `Task`)."""
        return self._backends.usages.meter(control_group)

    async def console(self, task: Task, *, follow: bool, last: int | None = None) -> AsyncGenerator[Entry, None]:
        """The console's lines; following ends by itself when the task has ended and all was read."""
        cursor = None
        if follow:
            async with aclosing(self._follow(task, last)) as entries:
                async for entry in entries:
                    cursor = entry.cursor
                    yield entry
            await self._backends.console.sync(task.state.task, task.state.log_namespace)
            last = last if cursor is None else None
        async with aclosing(
            self._backends.console.entries(task.state, follow=False, last=last, after=cursor)
        ) as entries:
            async for entry in entries:
                yield entry

    async def _follow(self, task: Task, last: int | None) -> AsyncGenerator[Entry, None]:
        """Lines until the task ends; what it said just before its end may still be on the way."""
        async with aclosing(self._backends.console.entries(task.state, follow=True, last=last)) as entries:
            ended = asyncio.ensure_future(self._stopper.wait_until_over(task.state))
            reading = asyncio.ensure_future(anext(entries))
            try:
                while True:
                    await asyncio.wait((ended, reading), return_when=asyncio.FIRST_COMPLETED)
                    if not reading.done():
                        ended.result()
                        return
                    yield reading.result()
                    reading = asyncio.ensure_future(anext(entries))
            except StopAsyncIteration as error:
                if not ended.done():
                    raise HostError(
                        f"the journal reader ended before task {task.name}.", "Retry: solo5ctl logs {task.name}"
                    ) from error
            finally:
                for future in (ended, reading):
                    future.cancel()
                await asyncio.gather(ended, reading, return_exceptions=True)

    async def wait(self, name: TaskName) -> Task:
        """Wait until the task has ended, and say how.

        Raises:
            NoSuchTaskError: none has this name, or it was removed meanwhile.
        """
        return await self._outlast(await self._state(name))

    async def wait_for_run(self, unit: str, invocation: str, pid: int) -> Task:
        """The same for one run of a unit, by those who know it from a start, with no question before the first change.

        Raises:
            NoSuchTaskError: it was removed meanwhile, or another run has its unit.
        """
        return await self._outlast(state_of_run(unit, invocation, pid))

    async def wait_for_task(self, task: Task) -> Task:
        """The same for a task as it was seen just now: PID 1 is asked nothing before it tells of a change.

        Raises:
            NoSuchTaskError: it was removed meanwhile, or another run has its unit.
        """
        return await self._outlast(task.state, seen=not task.state.over)

    async def _outlast(self, state: UnitState, *, seen: bool = False) -> Task:
        ended = await self._stopper.wait_until_over(state, seen=seen)
        if ended is None:
            raise NoSuchTaskError(f"task {state.task} was removed before its outcome could be read.")
        return await self._view(ended)

    # --- act -------------------------------------------------------------------------------------------------

    async def stop(
        self, name: TaskName, *, signal: StopSignal = StopSignal.TERM, timeout_s: float = STOP_TIMEOUT_S
    ) -> Task:
        """Send the stop signal, wait at most `timeout_s` seconds, then kill the whole cgroup.

        Raises:
            NoSuchTaskError: none has this name.
        """
        state = await self._state(name)
        if state.over:
            return await self._view(state)
        await self._stopper.stop(state, signal, timeout_s)
        return await self._settled(state)

    async def stop_only(self, name: TaskName, *, signal: StopSignal, timeout_s: float) -> None:
        """The same for those who learn of the outcome by waiting for it, and discard the task afterwards.

        Raises:
            NoSuchTaskError: none has this name.
        """
        state = await self._state(name)
        if not state.over:
            await self._stopper.stop(state, signal, timeout_s)

    async def _settled(self, state: UnitState) -> Task:
        """The ended task. A stop that was asked for is no failure, though hvt exits with 1 for it."""
        after = await self._units.state(state.task)
        if after is None or after.invocation != state.invocation:  # a scope, which nothing keeps; or it was removed
            after = replace(state, active=ActiveState.INACTIVE)
        task = await self._view(after)
        if task.outcome is not None and task.outcome.clean and after.active is ActiveState.FAILED:
            await self._units.reset_failed([after.unit])
        return task

    async def kill(self, name: TaskName, number: int) -> None:
        """Send INT or TERM to the tender, or KILL to the whole cgroup.

        Raises:
            InvalidRequestError: any other signal.
            NoSuchTaskError: none has this name.
        """
        if number not in (*SIGNALS.values(), SIGKILL):
            raise InvalidRequestError(
                f"signal {number} cannot be sent: expected INT or TERM, which a tender handles, or KILL.",
                "To stop and continue a guest: solo5ctl freeze, solo5ctl thaw",
            )
        state = await self._state(name)
        if state.over:
            raise InvalidRequestError(f"task {name} has ended: there is nothing to send a signal to.")
        await self._stopper.signal(state, number)

    async def freeze(self, name: TaskName) -> None:
        await self._units.freeze((await self._running(name)).unit)

    async def thaw(self, name: TaskName) -> None:
        await self._units.thaw((await self._running(name)).unit)

    async def _running(self, name: TaskName) -> UnitState:
        state = await self._state(name)
        if state.over:
            raise InvalidRequestError(f"task {name} has ended: it can be neither frozen nor thawed.")
        return state

    async def remove(self, name: TaskName, *, force: bool = False) -> None:
        """Forget an ended task, and with `force` stop a running one first.

        Raises:
            NoSuchTaskError: none has this name.
            TakenError: it runs, and `force` was not given.
        """
        state = await self._state(name)
        if not state.over:
            if not force:
                raise TakenError(
                    f"task {name} is running: expected one that has ended.",
                    f"Stop it first (solo5ctl stop {name}), or remove it by force (solo5ctl rm --force {name}).",
                )
            await self.stop(name)
        await self._starter.discard(name)

    async def discard(self, name: TaskName, *, over: bool = False, keep: bool = False) -> None:
        """Leave nothing of a task, whether it runs, has ended, was half made or never was; a running one is stopped.

        Args:
            name: the task's.
            over: its end has been read already, and need not be asked for.
            keep: leave the outcome of a service that has ended, until `remove`.
        """
        if not over and await self._units.is_running(name):
            state = await self._units.state(name)
            if state is not None and not state.over:
                await self._stopper.stop(state, StopSignal.TERM, STOP_TIMEOUT_S)
        await self._starter.discard(name, keep=keep)

    async def confine_slice(self, slice_unit: str, cpus: str) -> None:
        """Let all that runs in a slice use these processors alone, until the next boot; start it where it is not.

        Args:
            slice_unit: `solo5.slice` or one below it.
            cpus: a list such as `0-3,6`; empty: every processor.

        Raises:
            InvalidRequestError: slice or list is malformed.
        """
        where = str(parse_property("Slice", slice_unit).value)
        which = parse_property("AllowedCPUs", cpus) if cpus else Property("AllowedCPUs", "ay", b"")
        await self._units.set_properties(where, [which])

    async def child_outcome(self, name: TaskName, since: int, status: int, *, stop_requested: bool) -> Outcome:
        """How a scope's tender ended, as its parent has it.

        Args:
            name: the task's.
            since: microseconds since the epoch, when it started.
            status: as `subprocess` has it, negative for a signal.
            stop_requested: a stop was requested before.
        """
        found = await self._units.state(name)
        return await self._outcome(child_state(name, since, status, stop_requested=stop_requested, found=found))

    async def shared_cpus(self, directory: str) -> str | None:
        """The processors of a cgroup that somebody else keeps, such as `0-2,5`; None where it names none."""
        return await self._backends.usages.cpus(directory)

    # --- clean up --------------------------------------------------------------------------------------------

    async def orphans(self) -> "tuple[Orphan, ...]":
        """What belongs to nobody, and why that is certain; no service is woken to find it."""
        return await self._collector.find()

    async def collect(self, *, dry_run: bool) -> tuple[str, ...]:
        """Remove that, and stored images that no task runs. A line for each."""
        return await self._collector.collect(dry_run=dry_run)

    async def collect_consoles(self) -> Sequence[TaskName]:
        """Have the relay let go of the consoles of tasks that are long gone; these."""
        return await self._collector.consoles()

    async def sweep_disks(self) -> Sequence[str]:
        """Remove the bind mounts of disks that starts which were killed have left; a path for each."""
        return await self._backends.disks.sweep()

    async def collect_users(self) -> Sequence[TaskName]:
        """Free the users of tasks whose unit is gone, and forget their locks on disks; these tasks."""
        return await self._collector.users()

    async def reclaim_disks(self) -> Sequence[str]:
        """Take disks back from users that no task has; a sentence for each that such a user still has."""
        return await self._backends.users.reclaim()

    async def collect_images(self, *, min_age: float) -> Sequence[str]:
        """Remove stored images that no task runs and nobody has used for `min_age` seconds; their SHA-256."""
        return await self._collector.images(min_age=min_age)
