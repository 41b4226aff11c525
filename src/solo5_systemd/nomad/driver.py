"""The driver: configuration, tasks, events, fingerprint and background work."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import replace

from solo5_systemd.base.errors import DependencyError, SettingsError, Solo5Error
from solo5_systemd.nomad.engine import EngineSession
from solo5_systemd.nomad.events import EventStream, ServiceSignals
from solo5_systemd.nomad.fingerprint import HEALTHY, Fingerprint, disabled, failed, fingerprint, response
from solo5_systemd.nomad.housekeeping import Housekeeping
from solo5_systemd.nomad.plugin_config import REMOVE_NOTHING, PluginConfig, plugin_config
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.proto.base_pb2 import ClientTopology
from solo5_systemd.nomad.stats_messages import mhz_per_core
from solo5_systemd.nomad.tasks import TaskEntry, TaskRegistry
from solo5_systemd.task.properties import release_of

_log = logging.getLogger(__name__)


class Driver:
    """The state of one plugin process, behind both gRPC services.

    Attributes:
        config: the plugin configuration; the defaults until Nomad has sent it.
    """

    def __init__(self, version: str, background: asyncio.TaskGroup) -> None:
        self.config = PluginConfig()
        self.session = EngineSession()
        self.events = EventStream()
        self.tasks = TaskRegistry(self.session, self.events, background)
        self.mhz_per_core = 0.0
        self._version = version
        self._config_error = ""
        self._undecoded: bytes | None = None
        self._refresh = asyncio.Event()
        self._listeners = 0
        self._housekeeping = Housekeeping(self.session, self.tasks, lambda: self._listeners > 0, background)
        self._service_signals = ServiceSignals(self.session, self.tasks.publish, background)

    def configure(self, data: bytes, topology: ClientTopology | None) -> None:
        """Set the plugin configuration. An error in it is reported by the fingerprint."""
        self._decode(data)
        if topology is not None:
            self.mhz_per_core = mhz_per_core(topology)
        self._refresh.set()

    async def fingerprints(self) -> AsyncGenerator[wire.FingerprintResponse, None]:
        """Yield fingerprints to the agent, and start the background work.

        In every Nomad since 1.8 this is the first RPC to a plugin that the agent keeps. The agent keeps the stream open
        as long as it uses this plugin.
        """
        self._housekeeping.start(lambda: self.config)
        self._listeners += 1
        try:
            async with aclosing(fingerprints(self._fingerprint, self._refresh)) as responses:
                async for response in responses:
                    yield response
        finally:
            self._listeners -= 1

    async def start(self, task: wire.TaskConfig) -> TaskEntry:
        """Start a task; raises as `TaskRegistry.start`."""
        if self._config_error:
            raise SettingsError(self._config_error)
        self._service_signals.subscribe()
        await self._housekeeping.shared_cores.confine(task.resources.linux_resources.cpuset_cgroup)
        return await self.tasks.start(task, self.config)

    async def recover(self, handle: wire.TaskHandle) -> None:
        """Recover a task; raises as `TaskRegistry.recover`."""
        # The task runs already, so no other failure may prevent this: everything else happens in the background.
        self._service_signals.subscribe()
        self._housekeeping.remove_stale_mounts()
        self._housekeeping.shared_cores.note(handle.config.resources.linux_resources.cpuset_cgroup)
        await self.tasks.recover(handle)

    def _decode(self, data: bytes) -> None:
        """Decode a configuration. If msgpack is missing, each fingerprint tries again."""
        self._undecoded = None
        try:
            self.config, self._config_error = plugin_config(data), ""
        except (SettingsError, DependencyError) as error:
            self.config, self._config_error = REMOVE_NOTHING, str(error)
            self._undecoded = data if isinstance(error, DependencyError) else None
        self.session.configure(self.config)

    async def _fingerprint(self) -> Fingerprint:
        if self._undecoded is not None:
            self._decode(self._undecoded)
        if self._config_error:
            return disabled(self._config_error)
        if not self.config.enabled:
            return disabled("disabled: plugin.solo5.config.enabled is false")
        try:
            return await self._probe_host()
        except Solo5Error as error:
            return failed(str(error), self._version)
        except Exception:  # noqa: BLE001 - if the stream ended, Nomad would drop the driver from the node
            _log.exception("fingerprint failed")
            return failed("solo5: internal error; the agent's log has the details", self._version)

    async def _probe_host(self) -> Fingerprint:
        from solo5_systemd.host.probe import probe
        from solo5_systemd.journal.console_storage import storage_problem

        settings = self.session.settings()
        engine = self.session.engine
        host = await probe(settings=settings, systemd=release_of(await engine.backends.units.version()))
        if not host.namespace_problem:
            host = replace(host, console_problem=await storage_problem(host.log_namespace))
        self._housekeeping.reclaim_disks()
        return fingerprint(host, settings, self.config, self._version)


async def fingerprints(
    probe: Callable[[], Awaitable[Fingerprint]], refresh: asyncio.Event
) -> AsyncGenerator[wire.FingerprintResponse, None]:
    """Yield fingerprints without end: Nomad would reopen an ended stream at once."""
    last: Fingerprint | None = None
    while True:
        refresh.clear()  # before the probe: a change during it causes another one
        found = await probe()
        if found != last:
            _log_change(found, last)
            yield response(found, last.attributes if last else {})
            last = found
        with suppress(TimeoutError):
            async with asyncio.timeout(found.interval_s):
                await refresh.wait()


def _log_change(found: Fingerprint, last: Fingerprint | None) -> None:
    if last is None or found.description != last.description:
        level = logging.INFO if found.health == HEALTHY else logging.WARNING
        _log.log(level, "%s", found.description)
