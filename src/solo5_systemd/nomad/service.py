"""The driver plugin: Nomad's gRPC service, method by method, and the plugin's state behind it.

Names and semantics are those of Nomad's plugins/drivers. Sub-messages that look optional are always set, since the
agent dereferences them unchecked.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from dataclasses import replace

from google.protobuf.timestamp_pb2 import Timestamp

from solo5_systemd.base.errors import InvalidRequestError, SettingsError, Solo5Error
from solo5_systemd.journal.console import storage_problem
from solo5_systemd.nomad import fingerprint
from solo5_systemd.nomad.base_plugin import BasePlugin
from solo5_systemd.nomad.engine import EngineSession
from solo5_systemd.nomad.events import EventStream
from solo5_systemd.nomad.handle import encode
from solo5_systemd.nomad.housekeeping import Housekeeping
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.stats import Ticker, samples
from solo5_systemd.nomad.stats_messages import mhz_per_core
from solo5_systemd.nomad.task_options import TASK
from solo5_systemd.nomad.tasks import TaskRegistry
from solo5_systemd.nomad.wait import exit_error, exit_result
from solo5_systemd.task.properties import release_of

NO_SHELL = (
    "a unikernel has no shell and no processes: nothing can be executed in it. Its console is in `nomad alloc logs`."
)

CANNOT_EXECUTE = 126
"""A shell's exit status for a command that cannot be executed."""

EXEC_LINGER_S = 0.5
"""How long the refusal's call stays open, for input on its way (such as the end of an empty stdin). The agent, whose
input finds the call ended, drops answers that it has not passed on, and its user reads "unexpected EOF" (Nomad's
plugins/drivers/client.go, ExecTaskStreamingRaw)."""

_log = logging.getLogger(__name__)


class DriverPlugin:
    """The service hashicorp.nomad.plugins.drivers.proto.Driver."""

    def __init__(self, base: BasePlugin, background: asyncio.TaskGroup) -> None:
        self.session = EngineSession(base)
        self.events = EventStream()
        self.tasks = TaskRegistry(self.session, self.events, background)
        self._base = base
        self._listeners = 0
        self._ticker = Ticker()
        self._housekeeping = Housekeeping(self.session, self.tasks, lambda: self._listeners > 0, background)

    # --- the driver ------------------------------------------------------------------------------------------------

    async def task_config_schema(self, _: wire.TaskConfigSchemaRequest) -> wire.TaskConfigSchemaResponse:
        """Return the schema of a task's options."""
        return wire.TaskConfigSchemaResponse(spec=TASK)

    async def capabilities(self, _: wire.CapabilitiesRequest) -> wire.CapabilitiesResponse:
        """Return the driver's capabilities."""
        return wire.CapabilitiesResponse(capabilities=fingerprint.capabilities(self.session.config))

    async def fingerprint(self, _: wire.FingerprintRequest) -> AsyncGenerator[wire.FingerprintResponse, None]:
        """Stream fingerprints without end, and start the background work.

        In every Nomad since 1.8 this is the first RPC to a plugin that the agent keeps, and lasts as long.
        """
        self._housekeeping.start()
        self._listeners += 1
        last = wire.FingerprintResponse()
        try:
            while True:
                self._base.changed.clear()  # before the probe: a change during it causes another one
                found = await self._fingerprint()
                healthy = found.health == fingerprint.HEALTHY
                if found != last:
                    if found.health_description != last.health_description:  # attributes alone are no news for the log
                        level = logging.INFO if healthy else logging.WARNING
                        _log.log(level, "%s", found.health_description)
                    yield fingerprint.after(last, found)
                    last = found
                with suppress(TimeoutError):
                    async with asyncio.timeout(
                        fingerprint.HEALTHY_INTERVAL_S if healthy else fingerprint.UNHEALTHY_INTERVAL_S
                    ):
                        await self._base.changed.wait()
        finally:
            self._listeners -= 1

    async def _fingerprint(self) -> wire.FingerprintResponse:
        if self._base.config_error:
            self._base.decode_config()
        self._housekeeping.write_networks()
        if self._base.config_error or not self.session.config.enabled:
            reason = self._base.config_error or "disabled: plugin.solo5.config.enabled is false"
            return wire.FingerprintResponse(health=fingerprint.UNDETECTED, health_description=reason)
        try:
            from solo5_systemd.host.probe import probe

            settings = self.session.settings()
            engine = self.session.engine
            host = await probe(settings=settings, systemd=release_of(await engine.backends.units.version()))
            if not host.namespace_problem:  # journald would not answer there
                host = replace(host, console_problem=await storage_problem(host.log_namespace))
            self._housekeeping.clean_up_disks()
            return fingerprint.fingerprint_of(host, settings, self.session.config, self._base.version)
        except Solo5Error as error:
            return fingerprint.failed(str(error), self._base.version)
        except Exception:  # noqa: BLE001 - if the stream ended, Nomad would drop the driver from the node
            _log.exception("fingerprint failed")
            return fingerprint.failed("solo5: internal error; the agent's log has the details", self._base.version)

    # --- the life of a task ----------------------------------------------------------------------------------------

    async def start_task(self, request: wire.StartTaskRequest) -> wire.StartTaskResponse:
        """Start a task, and return its handle and its guest's address."""
        if self._base.config_error:  # Nomad may start a task again all the same; the operator's limits are not known
            raise SettingsError(self._base.config_error)
        self._housekeeping.subscribe()
        self._housekeeping.note_cores(request.task.resources.linux_resources.cpuset_cgroup)
        await self._housekeeping.confine_shared()
        entry = await self.tasks.start(request.task)
        handle = wire.TaskHandle(config=request.task, state=wire.RUNNING, driver_state=encode(entry.state))
        handle.version = fingerprint.HANDLE_VERSION
        return wire.StartTaskResponse(handle=handle, network_override=entry.network)

    async def recover_task(self, request: wire.RecoverTaskRequest) -> wire.RecoverTaskResponse:
        """Recover a task by its handle."""
        # The task runs already, so no other failure may prevent this: everything else happens in the background.
        self._housekeeping.subscribe()
        self._housekeeping.note_cores(request.handle.config.resources.linux_resources.cpuset_cgroup)
        await self.tasks.recover(request.handle)
        return wire.RecoverTaskResponse()

    async def wait_task(self, request: wire.WaitTaskRequest) -> wire.WaitTaskResponse:
        """Wait for a task's end, and return its exit result."""
        end = await self.tasks.wait(request.task_id)
        return wire.WaitTaskResponse(result=exit_result(end.outcome), err=exit_error(end.outcome))

    async def stop_task(self, request: wire.StopTaskRequest) -> wire.StopTaskResponse:
        """Stop a task within the request's timeout."""
        await self.tasks.stop(request.task_id, request.signal, request.timeout.ToNanoseconds() / 1e9)
        return wire.StopTaskResponse()

    async def destroy_task(self, request: wire.DestroyTaskRequest) -> wire.DestroyTaskResponse:
        """Remove a task."""
        await self.tasks.destroy(request.task_id, force=request.force)
        return wire.DestroyTaskResponse()

    async def signal_task(self, request: wire.SignalTaskRequest) -> wire.SignalTaskResponse:
        """Send a signal to a task."""
        await self.tasks.signal(request.task_id, request.signal)
        return wire.SignalTaskResponse()

    # --- inspect ---------------------------------------------------------------------------------------------------

    async def inspect_task(self, request: wire.InspectTaskRequest) -> wire.InspectTaskResponse:
        """Return a task's status."""
        entry = self.tasks.entry(request.task_id)
        ended = entry.end.result() if entry.end.done() else None
        status = wire.TaskStatus(
            id=entry.config.id,
            name=entry.config.name,
            state=wire.EXITED if ended else wire.RUNNING,
            started_at=_timestamp(entry.state.run.started),
            completed_at=_timestamp(ended.time if ended else 0),
            result=exit_result(ended.outcome) if ended else wire.ExitResult(),
        )
        return wire.InspectTaskResponse(task=status, network_override=entry.network)

    def task_stats(self, request: wire.TaskStatsRequest) -> AsyncIterator[bytes]:
        """Stream a task's resource usage, at the requested interval or `stats_interval`, whichever is longer."""
        entry = self.tasks.entry(request.task_id)
        requested = request.collection_interval.ToNanoseconds() / 1e9
        interval = max(requested, self.session.config.stats_interval)
        return samples(self.session, self._ticker, entry, interval, mhz_per_core(self._base.topology))

    def task_events(self, _: wire.TaskEventsRequest) -> AsyncIterator[wire.DriverTaskEvent]:
        """Stream the events of all tasks."""
        return self.events.stream()

    # --- not supported by unikernels -------------------------------------------------------------------------------

    async def exec_task(self, _: wire.ExecTaskRequest) -> wire.ExecTaskResponse:
        """Refuse, with an InvalidRequestError: a unikernel has no processes."""
        raise InvalidRequestError(NO_SHELL)

    async def exec_task_streaming(
        self, _: AsyncIterator[wire.ExecTaskStreamingRequest]
    ) -> AsyncIterator[wire.ExecTaskStreamingResponse]:
        """Refuse on stderr, with exit status 126.

        An error would reach the user through a websocket's close frame, whose 125 bytes are too few for the sentence.
        """
        stderr = wire.ExecTaskStreamingIOOperation(data=f"{NO_SHELL}\r\n".encode())
        yield wire.ExecTaskStreamingResponse(stderr=stderr)
        yield wire.ExecTaskStreamingResponse(exited=True, result=wire.ExitResult(exit_code=CANNOT_EXECUTE))
        await asyncio.sleep(EXEC_LINGER_S)


def _timestamp(microseconds: int) -> Timestamp:
    stamp = Timestamp()
    stamp.FromMicroseconds(microseconds)
    return stamp
