"""The operations on tasks: start, inspect, wait, stop and remove.

Each combines several backends. What one backend does alone is called there (`Runtime.backends`), and what removes
orphans at `Runtime.gc`. No state is kept between calls: each reads PID 1 again.
"""

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from functools import cached_property
from signal import SIGTERM
from typing import TYPE_CHECKING

from solo5_systemd.base.concurrency import background
from solo5_systemd.base.declared_units import declared_service
from solo5_systemd.base.errors import InvalidRequestError, NoSuchTaskError, TakenError
from solo5_systemd.base.names import TaskName, UnitKind
from solo5_systemd.engine.backends import Backends, host_backends
from solo5_systemd.engine.hung_tenders import SIGKILL, wait_until_over
from solo5_systemd.engine.queries import Queries
from solo5_systemd.engine.stop import STOP_SIGNALS, discard, send_signal, stop
from solo5_systemd.engine.task import QUIET, SpawnProcess, StartCallbacks, Task
from solo5_systemd.task.log_fields import STDERR_PRIORITY, STDOUT_PRIORITY
from solo5_systemd.task.workload import STOP_TIMEOUT_S, Workload
from solo5_systemd.unit.state import ActiveState, UnitState, child_state

if TYPE_CHECKING:
    from solo5_systemd.engine.gc import Collector
    from solo5_systemd.engine.start import Starter
    from solo5_systemd.journal.lines import Line
    from solo5_systemd.settings.solo5_toml import Settings
    from solo5_systemd.unit.outcome import Outcome


class Runtime(Queries):
    """The engine.

    Raises:
        NoSuchTaskError: (a method) no task has the name.
        InvalidRequestError: its state, or its kind of unit, does not permit the operation: it has ended, or is a scope.
        HostError: PID 1 or the kernel refused, or a service did not start.
    """

    backends: Backends

    def __init__(self, backends: Backends) -> None:
        super().__init__(backends)
        self._units = backends.units

    @cached_property
    def starter(self) -> "Starter":
        """The starts of tasks: what `start` does, in parts, and previews."""
        from solo5_systemd.engine.start import Starter  # half of the import time, for a start only

        return Starter(self.backends)

    @cached_property
    def gc(self) -> "Collector":
        """The garbage collection of tasks' resources."""
        from solo5_systemd.engine.gc import Collector  # for startup time, as in `while_frozen`

        return Collector(self.backends)

    # --- start -----------------------------------------------------------------------------------------------

    async def start(self, workload: Workload, progress: StartCallbacks = QUIET) -> Task:
        """Start a task as a service.

        Raises:
            Solo5Error: it did not start; everything that was created for it has been removed.
        """
        progress.on_step("checking the image and what it needs")
        return await self.starter.service(await self.starter.plan(workload), progress)

    @asynccontextmanager
    async def start_scope(
        self, workload: Workload, spawn: SpawnProcess, progress: StartCallbacks = QUIET
    ) -> AsyncGenerator[Task, None]:
        """Start a task as a scope with the process of `spawn` in it; undo it if the block raises. Raises as `start`."""
        progress.on_step("checking the image and what it needs")
        async with self.starter.scope(await self.starter.plan(workload), spawn, progress) as started:
            yield started

    async def open_console(self, unit: str, namespace: str) -> tuple[int, int]:
        """Open journal streams for stdout and stderr of a scope, which the caller closes; start the journald."""
        console = self.backends.console
        await self._units.start_journald(namespace)
        stdout = await console.open_stream(unit, STDOUT_PRIORITY, namespace)
        try:
            return stdout, await console.open_stream(unit, STDERR_PRIORITY, namespace)
        except BaseException:
            os.close(stdout)
            raise

    # --- inspect ------------------------------------------------------------------------------------------------

    async def follow(self, task: Task, *, last: int | None = None) -> AsyncGenerator["Line", None]:
        """Yield the lines of a task's console, as `console`, until the task has ended and all lines are read."""

        async def last_line() -> None:
            await wait_until_over(self.backends, task.state)
            # After an end, journald may still have lines in its sockets.
            await self.backends.console.sync(task.name, task.state.log_namespace)

        async with background(last_line()) as written:
            async with aclosing(self.backends.console.lines(task.state, until=written.done, last=last)) as lines:
                async for line in lines:
                    yield line
            if written.done():
                written.result()  # raises its error

    async def wait(self, name: TaskName) -> Task:
        """Wait until a task has ended, and return it; raises as `wait_for_run`."""
        return await self.wait_for_run(await self._state(name))

    async def wait_for_run(self, state: UnitState) -> Task:
        """Wait as `wait_until_over`, and return the task.

        Raises:
            NoSuchTaskError: the task was removed, or its unit has another run.
        """
        ended = await wait_until_over(self.backends, state)
        if ended is None:
            raise NoSuchTaskError(f"task {state.task} was removed or started again before its outcome could be read.")
        return await self._view(ended)

    # --- control -------------------------------------------------------------------------------------------------

    async def stop(self, name: TaskName, *, signal: int = SIGTERM, timeout_s: float = STOP_TIMEOUT_S) -> Task:
        """Send the stop signal, wait at most `timeout_s` seconds, then kill the cgroup; return the ended task."""
        state = await self._state(name)
        if state.over:
            if await self.is_dormant(name):
                await self._units.stop(state.unit)  # a stop of its socket unit, too
            return await self._view(state)
        await stop(self.backends, state, signal, timeout_s)
        return await self._settled(state)

    async def stop_only(self, name: TaskName, *, signal: int, timeout_s: float, run: UnitState | None = None) -> None:
        """Stop a task like `stop`, without reading its outcome: for callers that wait for the task anyway.

        Args:
            run: the task's unit as it was last read, to save D-Bus calls; None: it is read.
        """
        state = await (self._state(name) if run is None else self._units.current(run))
        if state is None:
            raise NoSuchTaskError(f"no task is named {name!r}.")
        if not state.over:
            await stop(self.backends, state, signal, timeout_s)

    async def _settled(self, state: UnitState) -> Task:
        """Return the ended task; reset the failed state of a requested stop: after INT or TERM, hvt exits with 1."""
        after = await self._units.state(state.task)
        if after is None or after.invocation != state.invocation:  # a scope, which systemd unloads; or it was removed
            after = state._replace(active=ActiveState.INACTIVE)
        task = await self._view(after)
        if task.outcome is not None and task.outcome.clean and after.active is ActiveState.FAILED:
            await self._units.reset_failed([after.unit])
        return task

    async def kill(self, name: TaskName, number: int) -> None:
        """Send INT or TERM to the tender, or KILL to every process of the cgroup."""
        if number not in (*STOP_SIGNALS, SIGKILL):
            raise InvalidRequestError(
                f"signal {number} cannot be sent: expected INT or TERM, which a tender handles, or KILL.",
                "To pause and resume a guest: solo5ctl freeze, solo5ctl thaw.",
            )
        state = await self._state(name)
        if state.over:
            raise InvalidRequestError(f"task {name} has ended: there is nothing to send a signal to.")
        await send_signal(self.backends, state, number)

    async def restart(self, name: TaskName) -> None:
        """Have PID 1 stop and start a task's service, as `systemctl restart` does; a frozen one is thawed first."""
        state = await self._state(name)
        if state.kind is UnitKind.SCOPE:
            raise InvalidRequestError(
                f"task {name} is a scope: expected a service, whose process systemd executes.",
                "Stop it, and start it again as it was started.",
            )
        if state.frozen:  # PID 1 stops no frozen process
            await self._units.thaw(state.unit)
        await self._units.restart(state.unit)

    async def freeze(self, name: TaskName) -> None:
        """Freeze a running task."""
        await self._units.freeze((await self._running(name)).unit)

    async def thaw(self, name: TaskName) -> None:
        """Thaw a frozen task."""
        await self._units.thaw((await self._running(name)).unit)

    async def sleep(self, name: TaskName) -> None:
        """Stop a running task until the next packet for it; one that is dormant stays so.

        Raises:
            InvalidRequestError: also of a task on a joined bridge.
            NotFoundError: it has no NIC on a network of the host.
        """
        if await self.is_dormant(name):
            return
        state = await self._running(name)
        if state.kind is UnitKind.SCOPE:
            raise InvalidRequestError(
                f"task {name} is a scope: expected a service, whose tender is a child of PID 1.",
                f"To freeze it until it is thawed: solo5ctl freeze {name}",
            )
        await self.backends.networks.sleep(name)

    async def wake(self, name: TaskName) -> None:
        """Wake a task that sleeps; start one that is dormant, and wait for the job."""
        if await self.is_dormant(name):
            await self._units.ensure_started(declared_service(name))
        else:
            await self._running(name)
            await self.backends.networks.wake(name)

    async def while_frozen(
        self, name: TaskName, act: Callable[[], None], before: Callable[[], None] = lambda: None
    ) -> float:
        """Call `act` while a running task is frozen; returns and raises as `engine.snapshot_pause.while_frozen`."""
        from solo5_systemd.engine.snapshot_pause import while_frozen

        return await while_frozen(self._units, await self._running(name), act, before)

    async def is_dormant(self, name: TaskName) -> bool:
        """Return whether a task has no process, and is started for its first packet."""
        record = await self.backends.networks.record(name)
        return record is not None and record.waits

    async def _running(self, name: TaskName) -> UnitState:
        state = await self._state(name)
        if state.over:
            raise InvalidRequestError(f"task {name} has ended.", "Tasks that run: solo5ctl ps")
        return state

    async def remove(self, name: TaskName, *, force: bool = False) -> None:
        """Remove an ended task; with `force`, stop a running one first.

        Raises:
            TakenError: it is running, and `force` is not given.
        """
        try:
            state = await self._state(name)
        except NoSuchTaskError:
            if name not in await self.backends.users.tasks():
                raise
            await self.discard(name, over=True)  # the rest of a removal that was interrupted
            return
        dormant = state.over and await self.is_dormant(name)
        if dormant or not state.over:
            if not force:
                raise TakenError(
                    f"task {name} is {'dormant' if dormant else 'running'}.",
                    f"Stop it first (solo5ctl stop {name}), or remove it by force (solo5ctl rm --force {name}).",
                )
            await self.stop(name)
        await self.discard(name, over=True)

    async def discard(self, name: TaskName, *, over: bool = False, keep: bool = False, unit: str = "") -> None:
        """Remove a task with all its resources, as `engine.stop.discard`; stop it if it is running. Idempotent."""
        await discard(self.backends, name, over=over, keep=keep, unit=unit)

    async def child_outcome(self, name: TaskName, since: int, status: int, *, stop_requested: bool) -> "Outcome":
        """Return the outcome of a scope's tender from the exit status that its parent has reaped.

        Args:
            since: microseconds since the epoch, when it started.
            status: as in `subprocess`, negative for a signal.
        """
        found = await self._units.state(name)
        return await self._outcome(child_state(name, since, status, stop_requested=stop_requested, found=found))


@asynccontextmanager
async def connect(settings: "Callable[[], Settings]") -> "AsyncGenerator[Runtime, None]":
    """Yield the engine on this host; raises as `host_backends`."""
    async with host_backends(settings) as backends:
        yield Runtime(backends)
