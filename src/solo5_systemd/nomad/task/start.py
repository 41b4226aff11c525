"""The start of a task: console connected, unit started or found there, guest ready; or else nothing is left."""

import asyncio
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from solo5_systemd.engine.task import Started, Task
from solo5_systemd.errors import HostError, InvalidRequestError, NoSuchTaskError, Solo5Error, TakenError
from solo5_systemd.names import task_scope, task_service
from solo5_systemd.nomad.config.plugin import PluginConfig
from solo5_systemd.nomad.config.ready import Endpoint, Line, Rule, Watched
from solo5_systemd.nomad.config.task import TaskOptions, task_options
from solo5_systemd.nomad.config.values import Logging
from solo5_systemd.nomad.engine import Session
from solo5_systemd.nomad.events import messages
from solo5_systemd.nomad.events.start_progress import Announcer, Steps
from solo5_systemd.nomad.events.stream import Events
from solo5_systemd.nomad.handle import DriverState
from solo5_systemd.nomad.logs import fifos
from solo5_systemd.nomad.process import agent_id
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.readiness import watch
from solo5_systemd.nomad.scope.parent import Scopes
from solo5_systemd.nomad.wait import End, Endings
from solo5_systemd.nomad.workload import convert, ports
from solo5_systemd.nomad.workload.task_name import name_of
from solo5_systemd.procfs import boot_id, is_there
from solo5_systemd.workload import UnitKind, Workload

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime


# Other tasks of an allocation that hold a port which a start was refused.


async def conflict(
    session: Session, task: wire.TaskConfig, siblings: Iterable[wire.TaskConfig]
) -> InvalidRequestError | None:
    """Return the error for a port that a sibling holds: no retry gets it while the sibling runs. None: none does.

    Leases are read, not units: a sibling that is being started holds its ports before it has a unit.
    """
    wanted = tuple(ports.publish(task, task_options(task.msgpack_driver_config)))
    with suppress(HostError):  # the port is taken all the same
        engine = await session.engine()
        for sibling in siblings:
            held = await engine.reservation(name_of(sibling.id))
            error = ports.taken_by_sibling(task, wanted, held.ports if held else (), sibling.name)
            if error is not None:
                return error
    return None


PATIENCE = 120.0
"""Seconds until the unit runs; each step of a start has less, and says what was slow."""


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A task that has just been started, and is ready.

    Attributes:
        state: for its handle.
        control_group: below the root of the hierarchy.
        network: the guest's address and ports, None without a NIC.
        ended: done when its unit is over.
    """

    state: DriverState
    control_group: str
    network: wire.NetworkOverride | None
    ended: "asyncio.Task[End]"


@dataclass(frozen=True, kw_only=True)
class _Wish:
    """What a job asks for, found to make sense. `images`: where its image may be, the first that exists being meant."""

    options: TaskOptions
    workload: Workload
    images: Sequence[str]
    logging: Logging


class Starter:
    """Starts tasks.

    Args:
        session: the engine.
        scopes: where children are kept that become tenders.
        endings: who waits for ends.
        events: where it is told how far a start has come.
        background: where the waiting goes on.
    """

    def __init__(
        self, session: Session, scopes: Scopes, endings: Endings, events: Events, background: asyncio.TaskGroup
    ) -> None:
        self._session = session
        self._scopes = scopes
        self._endings = endings
        self._events = events
        self._background = background

    async def start(self, config: wire.TaskConfig, plugin: PluginConfig) -> Begun:
        """Start a task, and wait until it is what its job calls ready.

        Raises:
            Solo5Error: it did not start, or was not ready in time; nothing of it is left.
        """
        try:
            wish = _wish(config, plugin)
            if wish.options.ready is not None:
                await watch.check(wish.options.ready, config, wish.options)
        except Solo5Error:
            await fifos.dismiss(config)
            raise
        with Announcer(self._events, config) as progress:
            try:
                async with asyncio.timeout(PATIENCE):
                    started = await self._start(config, wish, progress)
            except TimeoutError as error:
                raise HostError(f"task {config.name} did not start within {PATIENCE:.0f} seconds.") from error
            progress.tell(messages.started(started.unit, started.invocation))
            for limit in messages.unreached(wish.workload.publish, started.reservation):
                progress.tell(limit)
            return await self._until_ready(config, wish, started, progress)

    async def _until_ready(self, config: wire.TaskConfig, wish: _Wish, started: Started, progress: Announcer) -> Begun:
        options, state = wish.options, _state(wish, started)
        ended = self._background.create_task(self._endings.end(state, started.pid))
        try:
            network = ports.network_override(started.reservation, config, options)
            if options.ready is not None:
                wanted = _wanted(options.ready, config, options, started)
                progress.on_step(f"waiting for {wanted}")
                begun = time.monotonic()
                how = await watch.become(self._session, state, wanted, options.ready.deadline, ended)
                progress.tell(messages.ready(how, time.monotonic() - begun))
                state = replace(state, ready=_watched(options.ready, wanted))
        except BaseException:
            await asyncio.shield(self._undo(state, ended))
            raise
        return Begun(state=state, control_group=started.control_group, network=network, ended=ended)

    async def _undo(self, state: DriverState, ended: "asyncio.Task[End]") -> None:
        """End a task that Nomad will never hear of; but its last lines are to be heard."""
        try:
            with suppress(Solo5Error):  # what went wrong before is to be told
                await (await self._session.engine()).discard(state.task)
            await asyncio.wait((ended,), timeout=fifos.DRAIN_PATIENCE)
            await fifos.let_go(self._session, state.task, state.logging)
        finally:
            ended.cancel()
            self._endings.forget(state.task)

    async def _start(self, config: wire.TaskConfig, wish: _Wish, progress: Announcer) -> Started:
        image = await asyncio.to_thread(_first_there, wish.images, wish.workload.roots)
        workload = replace(wish.workload, image=image)
        engine = await self._session.engine()
        name = workload.name
        unit = task_scope(name) if workload.kind is UnitKind.SCOPE else task_service(name)
        since = time.time_ns() // 1000
        try:
            progress.on_step("opening the log files' pipes")
            namespace = await self._log_namespace(engine, config)
            await fifos.connect(self._session, config, name, unit, since, wish.logging, namespace)
            return await self._begin(engine, workload, wish.options.ready, since, progress)
        except BaseException:
            await asyncio.shield(fifos.let_go(self._session, name, wish.logging))
            raise

    async def _log_namespace(self, engine: "Runtime", config: wire.TaskConfig) -> str:
        """Return the journal namespace of the console, whose journald runs before the relay opens its journal."""
        try:
            return await engine.log_namespace()
        except Solo5Error:
            await fifos.dismiss(config)
            raise

    async def _begin(
        self, engine: "Runtime", workload: Workload, rule: Rule | None, since: int, progress: Announcer
    ) -> Started:
        """Start the unit, or find it there.

        An id is used for one start only: what has its name already is this very task, started by a driver that died
        before it could answer.
        """
        try:
            if workload.kind is UnitKind.SERVICE:
                return await engine.start(workload, Steps(progress, rule))
            progress.on_step("starting the process that becomes its tender")
            return await self._scopes.start(engine, self._session.settings(), workload, rule, progress)
        except TakenError as error:  # of the name, or of a port or disk
            try:
                return _started(await engine.task(workload.name), since)
            except NoSuchTaskError:
                raise error from None


def _wish(config: wire.TaskConfig, plugin: PluginConfig) -> _Wish:
    """Read a job; raises what is wrong with it."""
    options = task_options(config.msgpack_driver_config)
    workload = convert.workload(config, options, plugin, os.cpu_count() or 1)
    return _Wish(
        options=options,
        workload=replace(workload, log_fields=(*workload.log_fields, ("SOLO5_AGENT", agent_id()))),
        images=convert.image_candidates(options, config, plugin),
        logging=convert.logging_of(config, options, plugin),
    )


def _state(wish: _Wish, started: Started) -> DriverState:
    return DriverState(
        task=wish.workload.name,
        unit=started.unit,
        invocation=started.invocation,
        boot=boot_id(),
        started=started.started,
        kind=wish.workload.kind,
        logging=wish.logging,
        log_namespace=started.log_namespace,
    )


def _wanted(rule: Rule, config: wire.TaskConfig, options: TaskOptions, started: Started) -> Line | Endpoint:
    return rule.by if isinstance(rule.by, Line) else ports.endpoint(rule.by, config, options, started.reservation)


def _watched(rule: Rule, wanted: Line | Endpoint) -> Watched | None:
    """What is asked from now on; a line that was said stays said."""
    if isinstance(wanted, Line):
        return None
    return Watched(endpoint=wanted, interval=rule.interval, on_loss=rule.on_loss)


def _started(task: Task, since: int) -> Started:
    """Of a scope systemd does not say since when it runs: not before `since`, hence all that it said is later."""
    return Started(
        name=task.name,
        unit=task.unit,
        invocation=task.invocation,
        pid=task.pid,
        started=task.started or since,
        control_group=task.control_group,
        reservation=task.reservation,
        log_namespace=task.state.log_namespace,
    )


def _first_there(candidates: Sequence[str], roots: Sequence[str]) -> str:
    return next((path for path in candidates if is_there(path, roots)), candidates[0])
