"""The tasks of this driver by Nomad's task ID: start, recover, wait, stop, signal, destroy.

The registry holds only what PID 1 cannot: task ID, allocation, and the wait for the end. A restarted driver gets the
rest from RecoverTask. A driver without an entry can still stop and destroy, since a task's name derives from its ID.
"""

import asyncio
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from signal import Signals

from solo5_systemd.base.concurrency import KeyedLocks, retry
from solo5_systemd.base.errors import HostError, InvalidRequestError, NoSuchTaskError, Solo5Error, TakenError
from solo5_systemd.base.names import TaskName
from solo5_systemd.base.paths import boot_id
from solo5_systemd.base.sanitize import name_for_unit
from solo5_systemd.bus.peers import RETRY_INTERVAL_S
from solo5_systemd.engine.task import Phase
from solo5_systemd.network.model import Reservation
from solo5_systemd.nomad import event_messages, logs, ports, readiness
from solo5_systemd.nomad.engine import EngineSession
from solo5_systemd.nomad.event_messages import TaskEvent
from solo5_systemd.nomad.events import EventStream
from solo5_systemd.nomad.handle import DriverState, verify
from solo5_systemd.nomad.handle import decode as decode_state
from solo5_systemd.nomad.logs import LogReattacher
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.scope_tenders import ScopeChildren
from solo5_systemd.nomad.start import Start, TaskEntry, kept
from solo5_systemd.nomad.task_options import task_options
from solo5_systemd.nomad.wait import TaskEnd, wait_for_end
from solo5_systemd.nomad.workload import name_of
from solo5_systemd.task.quantities import signal_number
from solo5_systemd.unit.outcome import Ending
from solo5_systemd.unit.state import UnitState

REMOVE_TIMEOUT_S = 30.0
"""Seconds that a removal is retried while PID 1, the bus or solo5-networkd is not reachable."""

RECOVER_TIMEOUT_S = 60.0
"""Seconds that PID 1 or the bus may be unreachable. If RecoverTask fails, Nomad ends a task that runs."""

_log = logging.getLogger(__name__)


class TaskRegistry:
    """All tasks of the driver."""

    def __init__(self, session: EngineSession, events: EventStream, background: asyncio.TaskGroup) -> None:
        self._session = session
        self._events = events
        self._background = background
        self._failing_since: float | None = None
        self._log_reattacher = LogReattacher(session)
        self._scopes = ScopeChildren()
        self._starting: dict[str, wire.TaskConfig] = {}
        self._entries: dict[str, TaskEntry] = {}
        self._ids: dict[tuple[str, str], str] = {}  # of the entries, by allocation and name of the task
        self._locks = KeyedLocks[str]()  # by task ID: start, recovery and destruction of one task are serialized

    def entry(self, task_id: str) -> TaskEntry:
        """Return the entry of a task; NoSuchTaskError: it was neither started nor recovered, or it is destroyed."""
        if task_id not in self._entries:
            raise NoSuchTaskError(f"this driver has neither started nor recovered a task {task_id!r}.")
        return self._entries[task_id]

    # --- start and recover ---------------------------------------------------------------------------------------

    async def start(self, config: wire.TaskConfig) -> TaskEntry:
        """Start a task; a start that fails is undone, and raises Solo5Error. Idempotent: a started ID has its entry."""
        async with self._locks[config.id]:
            if config.id in self._entries:
                return self._entries[config.id]
            if (known := self._ids.get((config.alloc_id, config.name))) is not None:
                self._forget(known)
                await self._remove_predecessor(config, name_of(known))
            self._starting[config.id] = config
            try:
                return self._add(await self._started(config))
            finally:
                del self._starting[config.id]
                if config.id not in self._entries:
                    self._events.forget(config)

    async def _started(self, config: wire.TaskConfig) -> TaskEntry:
        """Start a task; once more if an earlier start of it, which no plugin knows any more, had what it needs."""
        try:
            return await self._new_start(config).run()
        except TakenError as error:
            if (conflict := await self._sibling_conflict(config)) is not None:
                raise conflict from None
            name = await self._unanswered(config)
            if name is None or not await self._remove_predecessor(config, name):
                raise error from None
        return await self._new_start(config).run()

    def _new_start(self, config: wire.TaskConfig) -> Start:
        return Start(self._session, self._scopes, self._events, self._background, config)

    async def _unanswered(self, config: wire.TaskConfig) -> TaskName | None:
        """Return an earlier start of the same task that runs and that this driver does not have."""
        with suppress(HostError):  # the caller then raises its own error
            for unit in await self._session.engine.backends.units.states(ended=False):
                of = config.alloc_id, name_for_unit(config.name)
                if _nomad_task(unit) == of and unit.task not in self.claimed():
                    return unit.task
        return None

    async def _remove_predecessor(self, config: wire.TaskConfig, name: TaskName) -> bool:
        """Remove an earlier start of the same task, whose answer did not reach an agent that was killed meanwhile.

        Nomad runs one start of a task at a time, and destroys all that it has a handle of. So this one would have the
        disks and ports of the next for ever. One that is not removed here is a forgotten task from now on.
        Returns whether it is removed.
        """
        of_forgotten = self._session.config.gc.dangling_tasks
        if not of_forgotten.enabled or of_forgotten.dry_run:
            return False
        _log.warning("forgotten task %s stopped: Nomad starts task %s anew", name, config.name)
        with suppress(Solo5Error):
            await self._session.engine.discard(name)
            await logs.drain(self._session, name)
            return True
        return False

    async def _sibling_conflict(self, config: wire.TaskConfig) -> InvalidRequestError | None:
        """Return the error for a port that another task of the allocation holds; None: no sibling holds one.

        Nomad retries a start, and no retry can get such a port. Lease records are read, not units: a sibling that is
        being started has its ports before its unit.
        """
        wanted = tuple(ports.publish(config, task_options(config.msgpack_driver_config)))
        with suppress(HostError):  # the caller then raises its own error, which a retry may resolve
            for name, each in [*self._living()]:  # which may change meanwhile
                # An earlier run of the task itself will free its ports.
                if each.alloc_id == config.alloc_id and each.name != config.name:
                    held = await self._session.engine.backends.networks.reservation(name)
                    if error := ports.taken_by_sibling(config, wanted, held.ports if held else (), each.name):
                        return error
        return None

    async def recover(self, handle: wire.TaskHandle) -> TaskEntry:
        """Recover a task that an earlier driver started, running or ended. Idempotent.

        Raises:
            NoSuchTaskError: its unit does not exist any more.
            HostError: PID 1 is not reachable.
        """
        config = handle.config
        async with self._locks[config.id]:
            if config.id in self._entries:
                return self._entries[config.id]
            stored = decode_state(handle.driver_state)
            found, reservation = await retry(
                lambda: self._find(stored), Solo5Error, interval_s=RETRY_INTERVAL_S, transient=self._is_short_outage
            )
            self._failing_since = None
            run = verify(stored, boot_id(), found)
            reattaching = self._log_reattacher.reattach(config, stored, running=not run.over)
            reattached = self._background.create_task(reattaching)
            ended = self._background.create_task(wait_for_end(self._session, self._scopes, stored.run))
            network = ports.guest_address(reservation)
            return self._add(TaskEntry(config=kept(config), state=stored, network=network, end=ended), reattached)

    async def _find(self, stored: DriverState) -> tuple[UnitState | None, Reservation | None]:
        """Return the unit of a task, without a D-Bus call if its run goes on, and what the task has reserved."""
        backends = self._session.engine.backends
        return await backends.units.current(stored.run), await backends.networks.reservation(stored.run.task)

    def _is_short_outage(self, _: Solo5Error) -> bool:
        """Return whether the outage has not reached its limit, which is one for all tasks: Nomad recovers in turn."""
        now = asyncio.get_running_loop().time()
        if self._failing_since is None:
            self._failing_since = now
        return now < self._failing_since + RECOVER_TIMEOUT_S

    def _add(self, started: TaskEntry, *reattached: asyncio.Task[None]) -> TaskEntry:
        end = self._background.create_task(self._until_end(started, *reattached))
        config = started.config
        entry = self._entries[config.id] = replace(started, end=end)
        self._ids[config.alloc_id, config.name] = config.id
        return entry

    def _forget(self, task_id: str) -> None:
        if (entry := self._entries.pop(task_id, None)) is not None:
            self._ids.pop((entry.config.alloc_id, entry.config.name), None)

    async def _until_end(self, task: TaskEntry, *reattached: asyncio.Task[None]) -> TaskEnd:
        """Watch a task's readiness until its end, then drain its FIFOs and publish its last event."""
        name, probe = task.state.run.task, task.state.ready
        if probe is None:
            end = await task.end
        else:
            publish, reasons = partial(self._events.publish_throttled, task.config), list[str]()

            def on_stop(reason: str) -> None:
                reasons.append(reason)
                self._scopes.stop_requested.add(name)

            watching = self._background.create_task(readiness.watch(self._session, name, probe, publish, on_stop))
            end = await task.end
            watching.cancel()
            if reasons and end.outcome.ending is Ending.STOPPED:  # it may have ended by itself before the stop
                sentence = f"stopped because it was no longer ready ({reasons[-1]})"
                end = replace(end, outcome=replace(end.outcome, sentence=sentence))
        await asyncio.gather(*reattached)  # the drain needs the FIFOs
        await logs.drain(self._session, name)
        await self._events.publish_last(task.config, event_messages.exit_event(end.outcome))
        return end

    def claimed(self) -> frozenset[TaskName]:
        """Return the names of the tasks, and of those that are being started, recovered or destroyed."""
        return frozenset(map(name_of, (*self._entries, *self._locks)))  # a locked ID without an entry is one of these

    def configs(self) -> Sequence[wire.TaskConfig]:
        """Return the configurations of the tasks, and of those that are being started."""
        return [*self._starting.values(), *(entry.config for entry in self._entries.values())]

    # --- wait ------------------------------------------------------------------------------------------------------

    async def wait(self, task_id: str) -> TaskEnd:
        """Wait for a task's end; raises NoSuchTaskError."""
        # Shared by all callers: a cancelled call must not cancel the wait itself.
        return await asyncio.shield(self.entry(task_id).end)

    # --- stop, destroy, signal -------------------------------------------------------------------------------------

    async def stop(self, task_id: str, signal: str, timeout_s: float) -> None:
        """Stop a task, with or without an entry. Idempotent.

        Args:
            signal: the job's `kill_signal`; empty: SIGTERM.
        """
        if self._is_over(task_id):
            return
        name, number = name_of(task_id), signal_number(signal or "SIGTERM")
        if number not in (Signals.SIGINT, Signals.SIGTERM, Signals.SIGKILL):
            sentence = f"kill_signal {signal} does not stop a tender: SIGTERM is sent instead"
            self.publish(TaskEvent(message=sentence), name)
        engine = self._session.engine
        self._scopes.stop_requested.add(name)
        entry = self._entries.get(task_id)
        with suppress(NoSuchTaskError):
            await engine.stop_only(
                name,
                run=entry.state.run if entry else None,
                signal=Signals.SIGINT if number == Signals.SIGINT else Signals.SIGTERM,
                timeout_s=0 if number == Signals.SIGKILL else timeout_s,
            )

    async def destroy(self, task_id: str, *, force: bool) -> None:
        """Remove a task, with or without an entry; `gc { tasks = false }` retains the outcome of a service. Idempotent.

        Raises:
            TakenError: it runs, and `force` is not set.
        """
        async with self._locks[task_id]:
            entry = self._entries.get(task_id)
            name = name_of(task_id)
            over, keep = self._is_over(task_id), not self._session.config.gc.tasks
            if not over and not force:
                with suppress(NoSuchTaskError):
                    if (await self._session.engine.task(name)).phase is not Phase.ENDED:
                        raise TakenError(f"task {task_id} is running.", "Stop it first.")
            unit = entry.state.run.unit if entry else ""
            try:
                await retry(  # Nomad calls DestroyTask once, and ignores an error
                    lambda: self._session.engine.discard(name, over=over, keep=keep, unit=unit),
                    (HostError, TakenError),
                    interval_s=RETRY_INTERVAL_S,
                    timeout_s=REMOVE_TIMEOUT_S,
                    on_failure=lambda error: _log.info("removal of task %s failed, retrying: %s", name, error),
                )
            except Solo5Error:
                self._forget(task_id)  # else its unit would be claimed for ever, and never be forgotten
                raise
            if keep and entry is not None:  # without an entry its allocation is not known
                try:  # DestroyTask is called once: the rest must be done even if this fails
                    await _remove_earlier(self._session, entry.config, name, self.claimed())
                except HostError as error:
                    _log.info("earlier runs of task %s not removed: %s", name, error)
            self._scopes.forget(name)
            if entry is not None:
                await asyncio.wait((entry.end,), timeout=logs.DRAIN_TIMEOUT_S)
                self._forget(task_id)
            else:
                await logs.drain(self._session, name)

    def _is_over(self, task_id: str) -> bool:
        """Return whether a task's outcome has been read. After an unknown outcome, its unit may exist all the same."""
        entry = self._entries.get(task_id)
        return entry is not None and entry.end.done() and entry.end.result().outcome.ending is not Ending.UNKNOWN

    async def signal(self, task_id: str, signal: str) -> None:
        """Send a signal, or freeze or thaw the task; any other signal is only an event.

        SIGSTOP and SIGCONT stand for the cgroup freezer: a stopped tender's guest clock would run on. A unikernel has
        no signal handlers, so the default action of any other signal would kill its tender. That is no error, since
        Nomad fails a task whose template cannot send its `change_signal`.

        Raises:
            NoSuchTaskError: there is no such task.
            InvalidRequestError: there is no such signal.
        """
        name, number = self.entry(task_id).state.run.task, signal_number(signal)
        if not number:
            raise InvalidRequestError(
                f"signal {signal!r} does not exist: expected a name or number of signal(7).",
                "SIGINT, SIGTERM and SIGKILL end a unikernel, SIGSTOP and SIGCONT freeze and thaw it.",
            )
        engine = self._session.engine
        match number:
            case Signals.SIGSTOP:
                await engine.freeze(name)
                self.publish(TaskEvent(message="Frozen by SIGSTOP, until SIGCONT"), name)
            case Signals.SIGCONT:
                await engine.thaw(name)
                self.publish(TaskEvent(message="Thawed by SIGCONT"), name)
            case Signals.SIGINT | Signals.SIGTERM | Signals.SIGKILL:
                await engine.kill(name, number)
            case _:
                self.publish(event_messages.signal_not_sent(number), name)

    def publish(self, event: TaskEvent, *names: TaskName) -> None:
        """Publish a throttled event of those tasks that are starting or run, and are this driver's."""
        concerned = frozenset(names)  # a repair may concern all tasks
        for name, config in self._living():
            if name in concerned:
                self._events.publish_throttled(config, event)

    def _living(self) -> Iterator[tuple[TaskName, wire.TaskConfig]]:
        yield from ((name_of(config.id), config) for config in self._starting.values())
        yield from ((each.state.run.task, each.config) for each in self._entries.values() if not each.end.done())


async def _remove_earlier(
    session: EngineSession, config: wire.TaskConfig, newest: TaskName, claimed: Collection[str]
) -> None:
    """Remove the earlier ended runs of a task that is retained (`gc { tasks = false }`).

    Each is a loaded unit in PID 1, and a job may restart its task any number of times. `claimed` names are kept, too.
    """
    engine = session.engine
    prefix = newest.rpartition("-")[0] + "-"  # the name without its hash: of all starts of the task
    for name in await engine.names():
        if not name.startswith(prefix) or name == newest or name in claimed:
            continue
        unit = await engine.backends.units.state(name)  # the prefix is short: another allocation may have the same
        if unit is None or not unit.over:
            continue
        if _nomad_task(unit) == (config.alloc_id, name_for_unit(config.name)):
            await engine.discard(name, over=True)


def _nomad_task(unit: UnitState) -> tuple[str | None, str | None]:
    """Return allocation and task of a unit; None: it is not Nomad's."""
    return unit.log_fields.get("NOMAD_ALLOC_ID"), unit.log_fields.get("NOMAD_TASK_NAME")
