"""Nomad's two services, method by method: what is asked, put to who knows, and answered.

Names and semantics are those of Nomad's plugins/base and plugins/drivers. Sub-messages that look optional are always
set: the agent dereferences them unseen.
"""

from collections.abc import AsyncIterator

from google.protobuf.timestamp_pb2 import Timestamp

from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.nomad import about
from solo5_systemd.nomad.config.schema import plugin_schema, task_schema
from solo5_systemd.nomad.driver import Driver
from solo5_systemd.nomad.handle import encode
from solo5_systemd.nomad.proto import base_pb2 as base
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.stats.stream import Statistics
from solo5_systemd.nomad.task import exit_result
from solo5_systemd.nomad.task.registry import Known

NO_SHELL = (
    "a unikernel has no shell and no processes: nothing can be executed in it. Its console is in `nomad alloc logs`, "
    "and what it answers to, it answers over the network."
)

CANNOT_EXECUTE = 126
"""Exit status of a shell that finds a command which it cannot execute."""


class BasePlugin:
    """hashicorp.nomad.plugins.base.proto.BasePlugin."""

    def __init__(self, driver: Driver, version: str) -> None:
        self._driver = driver
        self._version = version

    async def plugin_info(self, _: base.PluginInfoRequest) -> base.PluginInfoResponse:
        return base.PluginInfoResponse(
            type=base.DRIVER,
            plugin_api_versions=[about.API_VERSION],
            plugin_version=self._version,
            name=about.NAME,
        )

    async def config_schema(self, _: base.ConfigSchemaRequest) -> base.ConfigSchemaResponse:
        return base.ConfigSchemaResponse(spec=plugin_schema())

    async def set_config(self, request: base.SetConfigRequest) -> base.SetConfigResponse:
        """Pure: Nomad calls it several times, in processes that it ends right after.

        A wrong configuration is no error here: it would keep the whole agent from starting. The driver is undetected
        instead, and says why.
        """
        topology = request.nomad_config.driver.Topology if request.HasField("nomad_config") else None
        self._driver.configure(request.msgpack_config, topology)
        return base.SetConfigResponse()


class DriverService:
    """hashicorp.nomad.plugins.drivers.proto.Driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._statistics = Statistics(driver.session)

    async def init(self, _: wire.InitRequest) -> wire.InitResponse:
        return wire.InitResponse()

    async def shutdown(self, _: wire.ShutdownRequest) -> wire.ShutdownResponse:
        """Nothing is ended with us: tasks are PID 1's."""
        return wire.ShutdownResponse()

    async def task_config_schema(self, _: wire.TaskConfigSchemaRequest) -> wire.TaskConfigSchemaResponse:
        return wire.TaskConfigSchemaResponse(spec=task_schema())

    async def capabilities(self, _: wire.CapabilitiesRequest) -> wire.CapabilitiesResponse:
        offered = about.capabilities()
        offered.disable_log_collection = self._driver.config.disable_log_collection
        return wire.CapabilitiesResponse(capabilities=offered)

    def fingerprint(self, _: wire.FingerprintRequest) -> AsyncIterator[wire.FingerprintResponse]:
        return self._driver.fingerprints()

    # --- the life of a task ----------------------------------------------------------------------------------------

    async def start_task(self, request: wire.StartTaskRequest) -> wire.StartTaskResponse:
        known = await self._driver.start(request.task)
        response = wire.StartTaskResponse(handle=_handle(known))
        if known.network is not None:
            response.network_override.CopyFrom(known.network)
        return response

    async def recover_task(self, request: wire.RecoverTaskRequest) -> wire.RecoverTaskResponse:
        await self._driver.recover(request.handle)
        return wire.RecoverTaskResponse()

    async def wait_task(self, request: wire.WaitTaskRequest) -> wire.WaitTaskResponse:
        end = await self._driver.tasks.wait(request.task_id)
        return wire.WaitTaskResponse(
            result=exit_result.exit_result(end.outcome), err=exit_result.exit_error(end.outcome)
        )

    async def stop_task(self, request: wire.StopTaskRequest) -> wire.StopTaskResponse:
        patience = request.timeout.ToNanoseconds() / 1e9
        await self._driver.tasks.stop(request.task_id, request.signal, patience)
        return wire.StopTaskResponse()

    async def destroy_task(self, request: wire.DestroyTaskRequest) -> wire.DestroyTaskResponse:
        keep = not self._driver.config.collection.tasks
        await self._driver.tasks.destroy(request.task_id, force=request.force, keep=keep)
        return wire.DestroyTaskResponse()

    async def signal_task(self, request: wire.SignalTaskRequest) -> wire.SignalTaskResponse:
        await self._driver.tasks.signal(request.task_id, request.signal)
        return wire.SignalTaskResponse()

    # --- look ------------------------------------------------------------------------------------------------------

    async def inspect_task(self, request: wire.InspectTaskRequest) -> wire.InspectTaskResponse:
        known = self._driver.tasks.known(request.task_id)
        response = wire.InspectTaskResponse(task=_status(known), driver=_driver_status(known))
        if known.network is not None:
            response.network_override.CopyFrom(known.network)
        return response

    def task_stats(self, request: wire.TaskStatsRequest) -> AsyncIterator[wire.TaskStatsResponse]:
        known = self._driver.tasks.known(request.task_id)
        asked = request.collection_interval.ToNanoseconds() / 1e9
        interval = max(asked, self._driver.config.stats_interval)
        return self._statistics.samples(known, interval, self._driver.mhz_per_core)

    def task_events(self, _: wire.TaskEventsRequest) -> AsyncIterator[wire.DriverTaskEvent]:
        return self._driver.events.stream()

    # --- what no unikernel can -------------------------------------------------------------------------------------

    async def exec_task(self, _: wire.ExecTaskRequest) -> wire.ExecTaskResponse:
        raise InvalidRequestError(NO_SHELL)

    async def exec_task_streaming(
        self, _: AsyncIterator[wire.ExecTaskStreamingRequest]
    ) -> AsyncIterator[wire.ExecTaskStreamingResponse]:
        """No error: Nomad passes its text on in a websocket's close frame, which holds 125 bytes or nothing."""
        said = wire.ExecTaskStreamingIOOperation(data=f"{NO_SHELL}\r\n".encode())
        yield wire.ExecTaskStreamingResponse(stderr=said)
        yield wire.ExecTaskStreamingResponse(exited=True, result=wire.ExitResult(exit_code=CANNOT_EXECUTE))

    async def create_network(self, _: wire.CreateNetworkRequest) -> wire.CreateNetworkResponse:
        """Not offered among the capabilities, hence not called; no specification is "nothing to set up"."""
        return wire.CreateNetworkResponse(created=False)

    async def destroy_network(self, _: wire.DestroyNetworkRequest) -> wire.DestroyNetworkResponse:
        return wire.DestroyNetworkResponse()


def _handle(known: Known) -> wire.TaskHandle:
    return wire.TaskHandle(
        version=about.HANDLE_VERSION,
        config=known.config,
        state=wire.RUNNING,
        driver_state=encode(known.state),
    )


def _status(known: Known) -> wire.TaskStatus:
    ended = known.end.result() if known.end.done() else None
    return wire.TaskStatus(
        id=known.config.id,
        name=known.config.name,
        state=wire.EXITED if ended else wire.RUNNING,
        started_at=_timestamp(known.state.started),
        completed_at=_timestamp(ended.time if ended else 0),
        result=exit_result.exit_result(ended.outcome) if ended else wire.ExitResult(),
    )


def _driver_status(known: Known) -> wire.TaskDriverStatus:
    attributes = {"unit": known.state.unit, "invocation": known.state.invocation, "control_group": known.control_group}
    return wire.TaskDriverStatus(attributes=attributes)


def _timestamp(microseconds: int) -> Timestamp:
    stamp = Timestamp()
    stamp.FromMicroseconds(microseconds)
    return stamp
