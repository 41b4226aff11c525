"""Nomad's two gRPC services, method by method, as calls of the driver.

Names and semantics are those of Nomad's plugins/base and plugins/drivers. Sub-messages that look optional are always
set, since the agent dereferences them unchecked.
"""

from collections.abc import AsyncIterator

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from solo5_systemd.base.errors import HostError, InvalidRequestError, Solo5Error, StartError, TakenError
from solo5_systemd.goplugin.rpc import Failure
from solo5_systemd.nomad import fingerprint
from solo5_systemd.nomad.driver import Driver
from solo5_systemd.nomad.handle import encode
from solo5_systemd.nomad.plugin_config import PLUGIN
from solo5_systemd.nomad.proto import base_pb2 as base
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.proto.recoverable_error_pb2 import RecoverableError
from solo5_systemd.nomad.stats import StatsStreams
from solo5_systemd.nomad.task_options import TASK
from solo5_systemd.nomad.tasks import TaskEntry
from solo5_systemd.nomad.wait import exit_error, exit_result

NO_SHELL = (
    "a unikernel has no shell and no processes: nothing can be executed in it. Its console is in `nomad alloc logs`."
)

CANNOT_EXECUTE = 126
"""A shell's exit status for a command that cannot be executed."""


class BasePlugin:
    """The service hashicorp.nomad.plugins.base.proto.BasePlugin."""

    def __init__(self, driver: Driver, version: str) -> None:
        self._driver = driver
        self._version = version

    async def plugin_info(self, _: base.PluginInfoRequest) -> base.PluginInfoResponse:
        """Return name, version and type of the plugin."""
        return base.PluginInfoResponse(
            type=base.DRIVER,
            plugin_api_versions=[fingerprint.API_VERSION],
            plugin_version=self._version,
            name=fingerprint.NAME,
        )

    async def config_schema(self, _: base.ConfigSchemaRequest) -> base.ConfigSchemaResponse:
        """Return the schema of the plugin configuration."""
        return base.ConfigSchemaResponse(spec=PLUGIN)

    async def set_config(self, request: base.SetConfigRequest) -> base.SetConfigResponse:
        """Set the plugin configuration, without effect on the host: Nomad calls it in short-lived processes, too.

        A wrong configuration is not an error of this call, which would keep the agent from starting. Instead the
        driver is undetected, with the reason in its fingerprint.
        """
        topology = request.nomad_config.driver.Topology if request.HasField("nomad_config") else None
        self._driver.configure(request.msgpack_config, topology)
        return base.SetConfigResponse()


class DriverService:
    """The service hashicorp.nomad.plugins.drivers.proto.Driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._stats = StatsStreams(driver.session)

    async def init(self, _: wire.InitRequest) -> wire.InitResponse:
        """Do nothing."""
        return wire.InitResponse()

    async def shutdown(self, _: wire.ShutdownRequest) -> wire.ShutdownResponse:
        """Do nothing: tasks belong to PID 1, and outlive the plugin."""
        return wire.ShutdownResponse()

    async def task_config_schema(self, _: wire.TaskConfigSchemaRequest) -> wire.TaskConfigSchemaResponse:
        """Return the schema of a task's options."""
        return wire.TaskConfigSchemaResponse(spec=TASK)

    async def capabilities(self, _: wire.CapabilitiesRequest) -> wire.CapabilitiesResponse:
        """Return the driver's capabilities."""
        capabilities = fingerprint.capabilities()
        capabilities.disable_log_collection = self._driver.config.disable_log_collection
        return wire.CapabilitiesResponse(capabilities=capabilities)

    def fingerprint(self, _: wire.FingerprintRequest) -> AsyncIterator[wire.FingerprintResponse]:
        """Stream fingerprints."""
        return self._driver.fingerprints()

    # --- the life of a task ----------------------------------------------------------------------------------------

    async def start_task(self, request: wire.StartTaskRequest) -> wire.StartTaskResponse:
        """Start a task, and return its handle and its guest's address."""
        entry = await self._driver.start(request.task)
        response = wire.StartTaskResponse(handle=_handle(request.task, entry))
        if entry.network is not None:
            response.network_override.CopyFrom(entry.network)
        return response

    async def recover_task(self, request: wire.RecoverTaskRequest) -> wire.RecoverTaskResponse:
        """Recover a task by its handle."""
        await self._driver.recover(request.handle)
        return wire.RecoverTaskResponse()

    async def wait_task(self, request: wire.WaitTaskRequest) -> wire.WaitTaskResponse:
        """Wait for a task's end, and return its exit result."""
        end = await self._driver.tasks.wait(request.task_id)
        return wire.WaitTaskResponse(result=exit_result(end.outcome), err=exit_error(end.outcome))

    async def stop_task(self, request: wire.StopTaskRequest) -> wire.StopTaskResponse:
        """Stop a task within the request's timeout."""
        timeout_s = request.timeout.ToNanoseconds() / 1e9
        await self._driver.tasks.stop(request.task_id, request.signal, timeout_s)
        return wire.StopTaskResponse()

    async def destroy_task(self, request: wire.DestroyTaskRequest) -> wire.DestroyTaskResponse:
        """Remove a task."""
        keep = not self._driver.config.gc.tasks
        await self._driver.tasks.destroy(request.task_id, force=request.force, keep=keep)
        return wire.DestroyTaskResponse()

    async def signal_task(self, request: wire.SignalTaskRequest) -> wire.SignalTaskResponse:
        """Send a signal to a task."""
        await self._driver.tasks.signal(request.task_id, request.signal)
        return wire.SignalTaskResponse()

    # --- inspect ---------------------------------------------------------------------------------------------------

    async def inspect_task(self, request: wire.InspectTaskRequest) -> wire.InspectTaskResponse:
        """Return a task's status."""
        entry = self._driver.tasks.entry(request.task_id)
        response = wire.InspectTaskResponse(task=_status(entry), driver=_driver_status(entry))
        if entry.network is not None:
            response.network_override.CopyFrom(entry.network)
        return response

    def task_stats(self, request: wire.TaskStatsRequest) -> AsyncIterator[bytes]:
        """Stream a task's resource usage, at the requested interval or `stats_interval`, whichever is longer.

        Each response is a serialised TaskStatsResponse.
        """
        entry = self._driver.tasks.entry(request.task_id)
        requested = request.collection_interval.ToNanoseconds() / 1e9
        interval = max(requested, self._driver.config.stats_interval)
        return self._stats.samples(entry, interval, self._driver.mhz_per_core)

    def task_events(self, _: wire.TaskEventsRequest) -> AsyncIterator[wire.DriverTaskEvent]:
        """Stream the events of all tasks."""
        return self._driver.events.stream()

    # --- not supported by unikernels -------------------------------------------------------------------------------

    async def exec_task(self, _: wire.ExecTaskRequest) -> wire.ExecTaskResponse:
        """Refuse: a unikernel has no processes.

        Raises:
            InvalidRequestError: always.
        """
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

    async def create_network(self, _: wire.CreateNetworkRequest) -> wire.CreateNetworkResponse:
        """Create nothing. Not called, since it is not among the capabilities; without a spec Nomad sets up nothing."""
        return wire.CreateNetworkResponse(created=False)

    async def destroy_network(self, _: wire.DestroyNetworkRequest) -> wire.DestroyNetworkResponse:
        """Do nothing."""
        return wire.DestroyNetworkResponse()


def _handle(config: wire.TaskConfig, entry: TaskEntry) -> wire.TaskHandle:
    return wire.TaskHandle(
        version=fingerprint.HANDLE_VERSION,
        config=config,
        state=wire.RUNNING,
        driver_state=encode(entry.state),
    )


def _status(entry: TaskEntry) -> wire.TaskStatus:
    ended = entry.end.result() if entry.end.done() else None
    return wire.TaskStatus(
        id=entry.config.id,
        name=entry.config.name,
        state=wire.EXITED if ended else wire.RUNNING,
        started_at=_timestamp(entry.state.started),
        completed_at=_timestamp(ended.time if ended else 0),
        result=exit_result(ended.outcome) if ended else wire.ExitResult(),
    )


def _driver_status(entry: TaskEntry) -> wire.TaskDriverStatus:
    run = entry.run
    attributes = {"unit": run.unit, "invocation": run.invocation, "control_group": run.control_group}
    return wire.TaskDriverStatus(attributes=attributes)


def _timestamp(microseconds: int) -> Timestamp:
    stamp = Timestamp()
    stamp.FromMicroseconds(microseconds)
    return stamp


RECOVERABLE = (HostError, TakenError, StartError)
"""Errors of the host, of a name or resource in use, and of systemd. All others are errors of the job or its image,
which a retry cannot change."""


def to_failure(error: Exception) -> Failure | None:
    """Return the gRPC status of an error; None: it is an internal error.

    Nomad's client reads only the detail (plugins/drivers/client.go): a recoverable error is retried by the task's
    restart policy, any other fails the task.
    """
    if not isinstance(error, Solo5Error):
        return None
    return Failure(
        code=grpc.StatusCode.FAILED_PRECONDITION,
        message=str(error),
        details=(RecoverableError(recoverable=isinstance(error, RECOVERABLE)),),
    )
