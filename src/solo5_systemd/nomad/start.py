"""The start of a task: FIFOs connected, unit started, guest ready. A failed start is undone."""

import asyncio
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from solo5_systemd.base.errors import HostError, InvalidRequestError, NoSuchTaskError, Solo5Error, TakenError
from solo5_systemd.base.names import UnitKind, task_scope, task_service
from solo5_systemd.base.paths import boot_id, exists, mount_points
from solo5_systemd.engine.task import Task
from solo5_systemd.network.model import Endpoint
from solo5_systemd.nomad import event_messages, logs, ports, readiness, volumes
from solo5_systemd.nomad.engine import EngineSession
from solo5_systemd.nomad.events import EventStream, StartEvents
from solo5_systemd.nomad.handle import DriverState
from solo5_systemd.nomad.option_values import Logging
from solo5_systemd.nomad.plugin_config import PluginConfig
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.scope_tenders import ScopeChildren
from solo5_systemd.nomad.task_options import GuestPort, ReadinessProbe, TaskOptions, task_options
from solo5_systemd.nomad.wait import TaskEnd, wait_for_end
from solo5_systemd.nomad.workload import image_candidates, logging_of, name_of, workload_of
from solo5_systemd.settings.solo5_toml import Settings
from solo5_systemd.task.workload import Workload
from solo5_systemd.unit.state import UnitState

START_TIMEOUT_S = 120.0
"""Seconds until the unit runs. The timeouts of the single steps are shorter, and their errors name the step."""


PROC = Path("/proc")


@cache
def agent_id() -> str:
    """Return the parent's process ID and start time (proc(5), stat); empty if it has died already.

    The agent outlives its plugins. Units carry this value, by which a later plugin of the same agent finds them.
    """
    pid = os.getppid()
    try:
        fields = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return f"{pid}.{fields[19]}" if pid > 1 else ""


async def sibling_conflict(
    session: EngineSession, task: wire.TaskConfig, siblings: Iterable[wire.TaskConfig]
) -> InvalidRequestError | None:
    """Return the error for a port that another task of the allocation holds; None: no sibling holds one.

    No retry can get such a port while the sibling runs. Lease records are read, not units: a sibling that is being
    started has its ports before its unit.
    """
    wanted = tuple(ports.publish(task, task_options(task.msgpack_driver_config)))
    with suppress(HostError):  # the caller then raises its own error, which a retry may resolve
        engine = session.engine
        for sibling in siblings:
            held = await engine.backends.networks.reservation(name_of(sibling.id))
            error = ports.taken_by_sibling(task, wanted, held.ports if held else (), sibling.name)
            if error is not None:
                return error
    return None


@dataclass(frozen=True, kw_only=True)
class StartedTask:
    """A task that was started and is ready, or was recovered.

    Attributes:
        network: the guest's address and ports; None without a NIC.
        ended: done when its unit has ended.
    """

    state: DriverState
    run: UnitState
    network: wire.NetworkOverride | None
    ended: "asyncio.Task[TaskEnd]"


@dataclass(frozen=True, kw_only=True)
class _JobRequest:
    """A job's task, decoded and checked. `images`: candidate paths of the image."""

    options: TaskOptions
    workload: Workload
    images: Sequence[str]
    logging: Logging


@dataclass(frozen=True)
class TaskStarter:
    """Starts tasks."""

    session: EngineSession
    scopes: ScopeChildren
    events: EventStream
    background: asyncio.TaskGroup

    async def start(self, config: wire.TaskConfig) -> StartedTask:
        """Start a task, and wait until it is ready.

        Raises:
            Solo5Error: it did not start, or was not ready in time. The start is undone.
        """
        try:
            request = _job_request(config, self.session.config, self.session.settings())
            if request.options.ready is not None:
                await readiness.check_rule(request.options.ready, config, request.options)
        except Solo5Error:
            await logs.unblock_readers(config)  # the client has started logmon before StartTask
            raise
        with StartEvents(self.events, config, request.options.ready) as progress:
            try:
                async with asyncio.timeout(START_TIMEOUT_S):
                    started = await self._start(config, request, progress)
            except TimeoutError as error:
                raise HostError(f"task {config.name} did not start within {START_TIMEOUT_S:.0f} seconds.") from error
            progress.publish(event_messages.started(started.state.unit, started.state.invocation))
            for limit in event_messages.port_limits(request.workload.publish, started.reservation):
                progress.publish(limit)
            for unused in event_messages.unused_name_servers(request.workload):
                progress.publish(unused)
            return await self._until_ready(config, request, started, progress)

    async def _until_ready(
        self, config: wire.TaskConfig, request: _JobRequest, started: Task, progress: StartEvents
    ) -> StartedTask:
        options, state = request.options, _state(request, started)
        ended = self.background.create_task(wait_for_end(self.session, self.scopes, state, started.state))
        try:
            network = ports.network_override(started.reservation, config, options)
            if options.ready is not None:
                rule = options.ready
                condition = (
                    ports.endpoint(rule.condition, config, options, started.reservation)
                    if isinstance(rule.condition, GuestPort)
                    else rule.condition
                )
                progress.on_step(f"waiting for {condition}")
                since = time.monotonic()
                evidence = await readiness.wait_until_ready(
                    self.session, started.state, condition, rule.deadline, ended
                )
                progress.publish(event_messages.ready(evidence, time.monotonic() - since))
                if isinstance(condition, Endpoint):  # a printed line cannot be lost
                    probe = ReadinessProbe(**vars(condition), interval=rule.interval, on_loss=rule.on_loss)
                    state = replace(state, ready=probe)
        except BaseException:  # also on cancellation: the agent would have no handle of the unit
            await asyncio.shield(self._undo(state, ended))
            raise
        return StartedTask(state=state, run=started.state, network=network, ended=ended)

    async def _undo(self, state: DriverState, ended: "asyncio.Task[TaskEnd]") -> None:
        """Remove a task whose start failed after its unit ran, and drain its FIFOs."""
        try:
            with suppress(Solo5Error):  # the first error is the one to raise
                await self.session.engine.discard(state.task)
            await asyncio.wait((ended,), timeout=logs.DRAIN_TIMEOUT_S)
            await logs.drain(self.session, state.task, state.logging)
        finally:
            ended.cancel()
            self.scopes.forget(state.task)

    async def _start(self, config: wire.TaskConfig, request: _JobRequest, progress: StartEvents) -> Task:
        workload = await asyncio.to_thread(_with_files, config, request)  # since the file system may hang
        name = workload.name
        unit = task_scope(name) if workload.kind is UnitKind.SCOPE else task_service(name)
        since = time.time_ns() // 1000  # before the unit, so that its first line counts
        try:
            progress.on_step("opening the log FIFOs")
            try:
                # With its journald running: the relay opens that journal next.
                namespace = await self.session.engine.log_namespace()
            except Solo5Error:
                await logs.unblock_readers(config)
                raise
            await logs.connect(self.session, config, name, unit, since, request.logging, namespace)
            return await self._begin(workload, since, progress)
        except BaseException:
            await asyncio.shield(logs.drain(self.session, name, request.logging))
            raise

    async def _begin(self, workload: Workload, since: int, progress: StartEvents) -> Task:
        """Start the unit, or return the one that exists.

        Nomad uses a task ID for one start only. So an existing unit of this name is this very task, started by a driver
        that was killed before it answered.
        """
        engine = self.session.engine
        try:
            if workload.kind is UnitKind.SERVICE:
                return await engine.start(workload, progress)
            return await self.scopes.start(engine, workload, progress)
        except TakenError as error:  # the name is taken, or a port or a disk
            try:
                found = await engine.task(workload.name)
            except NoSuchTaskError:
                raise error from None
            # systemd has no start time of a scope. `since` is earlier, so that no console line is missed.
            return replace(found, state=replace(found.state, started=found.started or since))


def _job_request(config: wire.TaskConfig, plugin: PluginConfig, settings: Settings) -> _JobRequest:
    """Decode and check a job's task."""
    options = task_options(config.msgpack_driver_config)
    workload = workload_of(config, options, plugin, os.cpu_count() or 1, settings.served)
    return _JobRequest(
        options=options,
        # By SOLO5_AGENT a later plugin of the same agent finds a forgotten task.
        workload=replace(workload, log_fields=(*workload.log_fields, ("SOLO5_AGENT", agent_id()))),
        images=image_candidates(options, config, plugin),
        logging=logging_of(config, options, plugin),
    )


def _state(request: _JobRequest, started: Task) -> DriverState:
    return DriverState(
        task=request.workload.name,
        unit=started.state.unit,
        invocation=started.state.invocation,
        boot=boot_id(),
        started=started.started,
        kind=request.workload.kind,
        logging=request.logging,
        log_namespace=started.state.log_namespace,
        control_group=started.state.control_group,
        pid=started.state.main_pid,
    )


def _with_files(task: wire.TaskConfig, request: _JobRequest) -> Workload:
    """Return the workload with the first image that exists, or else the first, and with volumes as they are mounted.

    Raises:
        InvalidRequestError: a block has an option that does not fit the kind of its volume.
        HostError: a volume is not mounted.
    """
    workload, blocks = request.workload, request.options.block
    image = next((path for path in request.images if exists(path, workload.roots)), request.images[0])
    mounts = mount_points() if any(block.volume is not None for block in blocks.values()) else ()
    disks = (
        each
        if (block := blocks[each.disk]).volume is None
        else volumes.published(task, block, each, mounts, is_directory=not Path(each.roots[0]).is_block_device())
        for each in workload.disks
    )
    return replace(workload, image=image, disks=tuple(disks))
