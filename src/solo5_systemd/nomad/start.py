"""The start of a task: FIFOs connected, unit started, guest ready. A failed start is undone."""

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from solo5_systemd.base.errors import HostError, NoSuchTaskError, Solo5Error, TakenError
from solo5_systemd.base.names import TaskName, UnitKind, task_scope, task_service
from solo5_systemd.base.paths import boot_id, exists, is_mount_point
from solo5_systemd.engine.task import StartCallbacks, Task
from solo5_systemd.network.model import Endpoint, Lease
from solo5_systemd.nomad import event_messages, logs, ports, readiness, volumes
from solo5_systemd.nomad.engine import EngineSession
from solo5_systemd.nomad.event_messages import TaskEvent
from solo5_systemd.nomad.events import EventStream
from solo5_systemd.nomad.handle import DriverState
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.scope_tenders import ScopeChildren
from solo5_systemd.nomad.task_options import GuestPort, ReadinessProbe, no_address_error, task_options
from solo5_systemd.nomad.wait import TaskEnd, wait_for_end
from solo5_systemd.nomad.workload import image_candidates, logging_of, workload_of
from solo5_systemd.storage.model import DiskRequest
from solo5_systemd.task.log_fields import LOG_NAMESPACE, TENDER
from solo5_systemd.task.workload import Workload
from solo5_systemd.unit.state import ActiveState
from solo5_systemd.unit.tender import Parts

START_TIMEOUT_S = 120.0
"""Seconds until the unit runs. The timeouts of the single steps are shorter, and their errors name the step."""

SLOW_START_S = (5.0, 30.0)
"""Seconds after which an event names the current step of an unfinished start."""

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


@dataclass(frozen=True, kw_only=True)
class TaskEntry:
    """A task that was started and is ready, or was recovered.

    Attributes:
        config: what is `kept` of it.
        network: the guest's address and ports; None without a NIC.
        end: done when its unit has ended; in the registry, when its last line is delivered, too.
    """

    config: wire.TaskConfig
    state: DriverState
    network: wire.NetworkOverride | None
    end: "asyncio.Task[TaskEnd]"


def kept(config: wire.TaskConfig) -> wire.TaskConfig:
    """Return what a task's events, and the search for forgotten tasks, need of its configuration."""
    return wire.TaskConfig(id=config.id, name=config.name, alloc_id=config.alloc_id, alloc_dir=config.alloc_dir)


class Start(StartCallbacks):
    """The start of one task, and its events."""

    def __init__(
        self,
        session: EngineSession,
        scopes: ScopeChildren,
        events: EventStream,
        background: asyncio.TaskGroup,
        config: wire.TaskConfig,
    ) -> None:
        self._session = session
        self._scopes = scopes
        self._events = events
        self._background = background
        self._config = config
        self._step = "connecting to the system bus"

    # --- events ----------------------------------------------------------------------------------------------------

    def on_step(self, doing: str) -> None:
        """Set the current step."""
        self._step = doing

    def on_preflight(self, parts: Parts) -> None:
        """Publish the passed preflight; raises InvalidRequestError if the image cannot satisfy the `ready` rule."""
        condition = self._options.ready.condition if self._options.ready else None
        if isinstance(condition, GuestPort) and not parts.image.manifest.nics:
            raise no_address_error(condition)
        self._publish(event_messages.preflight_passed(parts))

    def on_leases(self, leases: Sequence[Lease]) -> None:
        """Publish the task's leases, if it has NICs."""
        if leases:
            self._publish(event_messages.leases_attached(leases))

    def _publish(self, event: TaskEvent) -> None:
        self._events.publish(self._config, event)

    # --- steps -----------------------------------------------------------------------------------------------------

    async def run(self) -> TaskEntry:
        """Start the task, and wait until it is ready; a start that fails is undone, and raises Solo5Error."""

        def warn(seconds: float) -> None:
            self._publish(event_messages.slow_start(self._step, seconds))

        loop = asyncio.get_running_loop()
        timers = [loop.call_later(seconds, warn, seconds) for seconds in SLOW_START_S]
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                started = await self._start()
        except TimeoutError as error:
            raise HostError(f"task {self._config.name} did not start within {START_TIMEOUT_S:.0f} seconds.") from error
        else:
            return await self._until_ready(started)  # beyond the timeout: `ready` has a deadline of the job's
        finally:
            for timer in timers:
                timer.cancel()

    async def _until_ready(self, started: Task) -> TaskEntry:
        run, options, probe = started.state, self._options, None
        self._publish(event_messages.started(run.unit, run.invocation))
        for limit in event_messages.limits(self._workload, started.reservation):
            self._publish(limit)
        fields = {name: text for name, text in run.log_fields.items() if name in (TENDER, LOG_NAMESPACE)}
        run = run._replace(active=ActiveState.ACTIVE, log_fields=fields)
        ended = self._background.create_task(wait_for_end(self._session, self._scopes, run))
        try:
            network = ports.network_override(started.reservation, self._config, options)
            if (rule := options.ready) is not None:
                condition = (
                    ports.endpoint(rule.condition, self._config, options, started.reservation)
                    if isinstance(rule.condition, GuestPort)
                    else rule.condition
                )
                self.on_step(f"waiting for {condition}")
                since = time.monotonic()
                evidence = await readiness.wait_until_ready(self._session, run, condition, rule.deadline, ended)
                self._publish(event_messages.ready(evidence, time.monotonic() - since))
                if isinstance(condition, Endpoint):  # a printed line cannot be lost
                    probe = ReadinessProbe(**vars(condition), interval=rule.interval, on_loss=rule.on_loss)
        except BaseException:  # also on cancellation: the agent would have no handle of the unit
            await asyncio.shield(self._undo(run.task, ended))
            raise
        state = DriverState(run=run, boot=boot_id(), logging=self._logging, ready=probe)
        return TaskEntry(config=kept(self._config), state=state, network=network, end=ended)

    async def _undo(self, name: TaskName, ended: "asyncio.Task[TaskEnd]") -> None:
        """Remove a task whose start failed after its unit ran, and drain its FIFOs."""
        try:
            with suppress(Solo5Error):  # the first error is the one to raise
                await self._session.engine.discard(name)
            await asyncio.wait((ended,), timeout=logs.DRAIN_TIMEOUT_S)
            await logs.drain(self._session, name)
        finally:
            ended.cancel()
            self._scopes.forget(name)

    async def _start(self) -> Task:
        config = self._session.config
        try:
            self._options = task_options(self._config.msgpack_driver_config)
            served = self._session.settings().served
            self._workload = workload_of(self._config, self._options, config, os.cpu_count() or 1, served)
            self._logging = logging_of(self._config, self._options, config)
            await readiness.check_rule(self._config, self._options)
            workload = await asyncio.to_thread(self._with_files)  # since the file system may hang
            self.on_step("opening the log FIFOs")
            # With its journald running: the relay opens that journal next.
            backends = self._session.engine.backends
            namespace = backends.console.namespace()
            await backends.units.start_journald(namespace)
        except Solo5Error:
            await logs.unblock_readers(self._config)  # the client has started logmon before StartTask
            raise
        name = workload.name
        unit = task_scope(name) if workload.kind is UnitKind.SCOPE else task_service(name)
        since = time.time_ns() // 1000  # before the unit, so that its first line counts
        try:
            await logs.connect(self._session, self._config, name, unit, since, self._logging, namespace)
            return await self._begin(workload, since)
        except BaseException:
            # Else the relay would hold FIFOs whose end logmon awaits.
            await asyncio.shield(logs.drain(self._session, name))
            raise

    async def _begin(self, workload: Workload, since: int) -> Task:
        """Start the unit, or return the one that exists.

        Nomad uses a task ID for one start only. So an existing unit of this name is this very task, started by a driver
        that was killed before it answered.
        """
        engine = self._session.engine
        try:
            if workload.kind is UnitKind.SERVICE:
                return await engine.start(workload, self)
            return await self._scopes.start(engine, workload, self)
        except TakenError as error:  # the name is taken, or a port or a disk
            try:
                found = await engine.task(workload.name)
            except NoSuchTaskError:
                raise error from None
            # systemd has no start time of a scope. `since` is earlier, so that no console line is missed.
            return found._replace(state=found.state._replace(started=found.started or since))

    def _with_files(self) -> Workload:
        """Return the workload with its first image that exists, or else the first, and volumes as they are mounted."""
        workload, blocks = self._workload, self._options.block
        images = image_candidates(self._options, self._config, self._session.config)
        image = next((path for path in images if exists(path, workload.roots)), images[0])

        def looked_at(disk: DiskRequest) -> DiskRequest:
            block = blocks[disk.disk]
            if block.volume is None:
                return disk
            [volume] = disk.roots
            is_mounted, is_directory = is_mount_point(volume), not Path(volume).is_block_device()
            return volumes.published(self._config, block, disk, is_mounted=is_mounted, is_directory=is_directory)

        # By SOLO5_AGENT a later plugin of the same agent finds a forgotten task.
        fields = (*workload.log_fields, ("SOLO5_AGENT", agent_id()))
        return replace(workload, image=image, disks=tuple(map(looked_at, workload.disks)), log_fields=fields)
