"""The tasks that this driver answers for, by Nomad's task id.

What is kept here is only what PID 1 cannot know (which id, which allocation) and whose end is being waited for. A
driver that is started anew is told the rest by RecoverTask; one that knows nothing can still stop and destroy, since a
task's name follows from its id.
"""

import asyncio
import logging
import posixpath
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from weakref import WeakValueDictionary

from solo5_systemd.engine.task import Phase, Task
from solo5_systemd.errors import HostError, NoSuchTaskError, TakenError
from solo5_systemd.names import TaskName
from solo5_systemd.nomad.config.plugin import PluginConfig
from solo5_systemd.nomad.config.values import Logging
from solo5_systemd.nomad.engine import Session
from solo5_systemd.nomad.events import messages
from solo5_systemd.nomad.events.messages import Announcement
from solo5_systemd.nomad.events.stream import Events
from solo5_systemd.nomad.handle import DriverState, adopt
from solo5_systemd.nomad.handle import decode as decode_state
from solo5_systemd.nomad.logs import fifos
from solo5_systemd.nomad.logs.reattach import Reconnecting
from solo5_systemd.nomad.process import agent_id
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.readiness.watch import Keeper
from solo5_systemd.nomad.scope.parent import Scopes
from solo5_systemd.nomad.task import exit_result, postmortem, signals
from solo5_systemd.nomad.task.claims import Claims
from solo5_systemd.nomad.task.start import Starter, conflict
from solo5_systemd.nomad.task.unit_cache import Listing
from solo5_systemd.nomad.wait import End, Endings
from solo5_systemd.nomad.workload import ports
from solo5_systemd.nomad.workload.task_name import name_of
from solo5_systemd.procfs import boot_id
from solo5_systemd.text import name_for_unit
from solo5_systemd.unit.outcome import Ending, Outcome
from solo5_systemd.workload import StopSignal

REMOVAL_PATIENCE = 30.0
"""Seconds that a removal waits for what it needs and is away."""

RETRY = 0.5
"""Seconds between two attempts at it."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Known:
    """One task of ours.

    Attributes:
        config: Nomad's, whole.
        state: what is stored in its handle.
        control_group: below the root of the hierarchy.
        network: the guest's address and ports, None without a NIC.
        end: done when the task has ended and its last line is delivered.
    """

    config: wire.TaskConfig
    state: DriverState
    control_group: str
    network: wire.NetworkOverride | None
    end: "asyncio.Task[End]"


class Tasks:
    """Start, recover, wait, stop, destroy.

    Args:
        session: the engine.
        events: where tasks' events go.
        background: what watches tasks until they end lives there.
    """

    def __init__(self, session: Session, events: Events, background: asyncio.TaskGroup) -> None:
        scopes = Scopes()
        self._session = session
        self._events = events
        self._background = background
        self._listing = Listing(session)
        self._reconnecting = Reconnecting(session, background)
        self._endings = Endings(session, scopes)
        self._starter = Starter(session, scopes, self._endings, events, background)
        self._agent = agent_id()
        self._starting: dict[str, wire.TaskConfig] = {}
        self._known: dict[str, Known] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def known(self, task_id: str) -> Known:
        """A task that was started or recovered.

        Raises:
            NoSuchTaskError: it was not, or it is destroyed.
        """
        if task_id not in self._known:
            raise NoSuchTaskError(f"task {task_id!r} is not one of this driver's: expected a task that it started.")
        return self._known[task_id]

    # --- start and recover ---------------------------------------------------------------------------------------

    async def start(self, config: wire.TaskConfig, plugin: PluginConfig) -> Known:
        """Start a task; one that this id has started already is returned as it is.

        Raises:
            Solo5Error: it did not start, and nothing of it is left.
        """
        async with self._turn(config.id):
            if config.id in self._known:
                return self._known[config.id]
            self._starting[config.id] = config
            try:
                begun = await self._starter.start(config, plugin)
            except TakenError as error:
                raise await conflict(self._session, config, self._siblings(config)) or error from None
            finally:
                del self._starting[config.id]
            return self._watch(config, begun.state, begun.control_group, begun.network, begun.ended)

    def _siblings(self, config: wire.TaskConfig) -> tuple[wire.TaskConfig, ...]:
        """Return the other tasks of the allocation that run or are being started."""
        running = (known.config for known in self._known.values() if not known.end.done())
        others = (*running, *self._starting.values())
        return tuple(each for each in others if each.alloc_id == config.alloc_id and each.name != config.name)

    async def recover(self, handle: wire.TaskHandle) -> Known:
        """Take a task up again that an earlier driver started, whether it runs or has ended.

        Raises:
            NoSuchTaskError: it is gone.
            HostError: PID 1 cannot be asked.
        """
        config = handle.config
        async with self._turn(config.id):
            if config.id in self._known:
                return self._known[config.id]
            stored = decode_state(handle.driver_state)
            task = adopt(stored, boot_id(), await self._listing.task(stored.task))
            console = self._reconnecting.begin(config, stored, running=task.phase is not Phase.ENDED)
            network = ports.guest_address(task.reservation)
            ended = self._background.create_task(self._end_of_recovered(stored, task, console))
            return self._watch(config, stored, task.control_group, network, ended)

    async def _end_of_recovered(self, stored: DriverState, seen: Task, console: "asyncio.Task[None]") -> End:
        """Its last lines are drained to where its console leads by then."""
        end = await self._endings.end(stored, seen.pid, seen=seen)
        await console
        return end

    def _watch(
        self,
        config: wire.TaskConfig,
        state: DriverState,
        control_group: str,
        network: wire.NetworkOverride | None,
        ended: "asyncio.Task[End]",
    ) -> Known:
        known = Known(
            config=config,
            state=state,
            control_group=control_group,
            network=network,
            end=self._background.create_task(self._until_end(config, state, ended)),
        )
        self._known[config.id] = known
        return known

    async def _until_end(self, config: wire.TaskConfig, state: DriverState, ended: "asyncio.Task[End]") -> End:
        keeper = self._keeper(config, state)
        keeping = self._background.create_task(keeper.keep()) if keeper else None
        end = await ended
        if keeper and keeping:
            keeping.cancel()
            end = _explained(end, keeper.ended_for)
        await fifos.let_go(self._session, state.task, state.logging)
        await self._events.conclude(config, _announced(end.outcome))
        return end

    def _keeper(self, config: wire.TaskConfig, state: DriverState) -> Keeper | None:
        if state.ready is None:
            return None
        return Keeper(self._session, state.task, state.ready, partial(self._events.recur, config))

    def claims(self) -> Claims:
        """What this driver answers for."""
        configs = [*(known.config for known in self._known.values()), *self._starting.values()]
        return Claims(
            names=frozenset(map(name_of, (*self._known, *self._turns))),
            current={(config.alloc_id, name_for_unit(config.name)): name_of(config.id) for config in configs},
            directories=frozenset(posixpath.dirname(config.alloc_dir) for config in configs),
            agent=self._agent,
        )

    # --- look ------------------------------------------------------------------------------------------------------

    async def wait(self, task_id: str) -> End:
        """How the task ended, as soon as it has."""
        return await asyncio.shield(self.known(task_id).end)

    # --- act -------------------------------------------------------------------------------------------------------

    async def stop(self, task_id: str, signal: str, patience: float) -> None:
        """End a task, known or not; one that is gone has been stopped."""
        if self._is_over(task_id):
            return
        asked = signals.stop_signal(signal)
        if asked is None and not signals.is_kill(signal):
            self._tell(task_id, f"A tender does not take {signal} as its end: SIGTERM is sent instead")
        engine = await self._session.engine()
        self._endings.ask(name_of(task_id))
        with suppress(NoSuchTaskError):
            await engine.stop_only(
                name_of(task_id),
                signal=asked or StopSignal.TERM,
                timeout_s=0 if signals.is_kill(signal) else patience,
            )

    async def destroy(self, task_id: str, *, force: bool, keep: bool = False) -> None:
        """Leave nothing of a task, known or not; with `keep`, the outcome of its service.

        Raises:
            TakenError: it runs, and `force` was not given.
        """
        async with self._turn(task_id):
            known = self._known.get(task_id)
            name = name_of(task_id)
            over = self._is_over(task_id)
            if not over and not force and await self._runs(task_id):
                raise TakenError(f"task {task_id} is running: expected one that has ended.", "Stop it first.")
            await self._remove(name, over=over, keep=keep)
            if keep and known is not None:
                try:  # DestroyTask is called once: the rest has to be done whatever becomes of earlier runs
                    await postmortem.remove_earlier(self._session, known.config, name, self.claims().names)
                except HostError as error:
                    _log.info("Earlier runs of task %s are not removed yet: %s", name, error)
            self._listing.outdate()
            self._endings.forget(name)
            if known is not None:
                await asyncio.wait((known.end,), timeout=fifos.DRAIN_PATIENCE)
                del self._known[task_id]
            else:
                await fifos.let_go(self._session, name, Logging.NOMAD)

    async def _remove(self, name: TaskName, *, over: bool, keep: bool) -> None:
        """Nomad asks for it once, and ignores a failure: PID 1, bus and network service are waited for."""
        now = asyncio.get_running_loop().time
        until = now() + REMOVAL_PATIENCE
        while True:
            try:
                await (await self._session.engine()).discard(name, over=over, keep=keep)
            except HostError as error:
                if now() >= until:
                    raise
                _log.info("What is left of task %s is not removed yet: %s", name, error)
            else:
                return
            await asyncio.sleep(RETRY)

    def _is_over(self, task_id: str) -> bool:
        """Its end has been read: nobody else has to. Of one that is unknown, a run may be left that is not the task."""
        known = self._known.get(task_id)
        return known is not None and known.end.done() and known.end.result().outcome.ending is not Ending.UNKNOWN

    async def discard(self, name: TaskName) -> None:
        """Leave nothing of a task that Nomad has forgotten."""
        await (await self._session.engine()).discard(name)
        await fifos.let_go(self._session, name, Logging.NOMAD)

    async def _runs(self, task_id: str) -> bool:
        with suppress(NoSuchTaskError):
            return (await (await self._session.engine()).task(name_of(task_id))).phase is not Phase.ENDED
        return False

    async def signal(self, task_id: str, signal: str) -> None:
        """Send a signal, or freeze and thaw; an event names a signal that has no effect.

        Raises:
            InvalidRequestError: there is no such signal.
            NoSuchTaskError: no such task.
        """
        name = self.known(task_id).state.task
        wanted = signals.action(signal)
        if wanted is None:
            self.tell(name, messages.without_effect(signals.name(signal)))
            return
        engine = await self._session.engine()
        match wanted:
            case signals.Freezing.FREEZE:
                await engine.freeze(name)
                self._tell(task_id, "Frozen by SIGSTOP: the guest stands still until SIGCONT")
            case signals.Freezing.THAW:
                await engine.thaw(name)
                self._tell(task_id, "Thawed by SIGCONT")
            case int():
                await engine.kill(name, wanted)

    def _tell(self, task_id: str, message: str) -> None:
        known = self._known.get(task_id)
        if known is not None:
            self._events.recur(known.config, Announcement(message=message))

    def tell(self, name: TaskName, announcement: Announcement) -> None:
        """Tell what somebody else found out about a task, if it is one of ours that has not ended."""
        for known in self._known.values():
            if known.state.task == name and not known.end.done():
                self._events.recur(known.config, announcement)

    @asynccontextmanager
    async def _turn(self, task_id: str) -> AsyncIterator[None]:
        """One start, recovery or destruction at a time for one task."""
        lock = self._turns.setdefault(task_id, asyncio.Lock())
        async with lock:
            yield


def _explained(end: End, not_ready: str) -> End:
    """An end that we have brought about is told by its reason."""
    if not not_ready or end.outcome.ending is not Ending.STOPPED:
        return end
    return replace(end, outcome=replace(end.outcome, sentence=f"stopped because it was no longer ready ({not_ready})"))


def _announced(outcome: Outcome) -> Announcement:
    return messages.with_last_lines(exit_result.announcement(outcome), outcome.last_lines)
