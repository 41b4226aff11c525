"""The driver: its configuration, its tasks, and what it does by itself."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from solo5_systemd.errors import DependencyError, SettingsError, Solo5Error
from solo5_systemd.nomad.config.plugin import PluginConfig, plugin_config
from solo5_systemd.nomad.engine import Session
from solo5_systemd.nomad.events.service_signals import Bulletins
from solo5_systemd.nomad.events.stream import Events
from solo5_systemd.nomad.fingerprint import Fingerprint, disabled, fingerprint, unreachable
from solo5_systemd.nomad.fingerprint_stream import fingerprints
from solo5_systemd.nomad.gc.loops import Housekeeping
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.proto.base_pb2 import ClientTopology
from solo5_systemd.nomad.stats.message import mhz_per_core
from solo5_systemd.nomad.task.registry import Known, Tasks
from solo5_systemd.unit.exec_start import release_of

_log = logging.getLogger(__name__)


class Driver:
    """Everything behind the services.

    Args:
        version: the project's.
        background: what runs by itself lives there.

    Attributes:
        config: the operator's; the defaults until Nomad has sent it.
    """

    def __init__(self, version: str, background: asyncio.TaskGroup) -> None:
        self.config = PluginConfig()
        self.session = Session()
        self.events = Events()
        self.tasks = Tasks(self.session, self.events, background)
        self.mhz_per_core = 0.0
        self._version = version
        self._wrong = ""
        self._undecoded: bytes | None = None
        self._stir = asyncio.Event()
        self._listeners = 0
        self._housekeeping = Housekeeping(self.session, self.tasks, lambda: self._listeners > 0, background)
        self._bulletins = Bulletins(self.session, self.tasks.tell, background)

    def configure(self, data: bytes, topology: ClientTopology | None) -> None:
        """Take a configuration; what is wrong with it is told by the fingerprint."""
        self._decode(data)
        if topology is not None:
            self.mhz_per_core = mhz_per_core(topology)
        self._stir.set()

    async def fingerprints(self) -> AsyncGenerator[wire.FingerprintResponse, None]:
        """The first RPC of a plugin that is to stay, for every Nomad since 1.8: what is done by itself begins here.

        An agent holds it open for as long as it has this plugin.
        """
        self._housekeeping.begin(lambda: self.config)
        self._listeners += 1
        try:
            async with aclosing(fingerprints(self._look, self._stir)) as answers:
                async for answer in answers:
                    yield answer
        finally:
            self._listeners -= 1

    async def start(self, task: wire.TaskConfig) -> Known:
        """Start a task; raises as `Tasks.start`."""
        if self._wrong:
            raise SettingsError(self._wrong)
        self._bulletins.begin()
        await self._housekeeping.share_cores(task.resources.linux_resources.cpuset_cgroup)
        return await self.tasks.start(task, self.config)

    async def recover(self, handle: wire.TaskHandle) -> None:
        """Take a task up again; raises as `Tasks.recover`. It runs: nothing else may stand in its way."""
        self._bulletins.begin()
        self._housekeeping.sweep()
        self._housekeeping.find_cores(handle.config.resources.linux_resources.cpuset_cgroup)
        await self.tasks.recover(handle)

    def _decode(self, data: bytes) -> None:
        """Read a configuration; where msgpack is missing, each fingerprint tries again."""
        self._undecoded = None
        try:
            self.config, self._wrong = plugin_config(data), ""
        except SettingsError as error:
            self.config, self._wrong = PluginConfig(), str(error)
        except DependencyError as error:
            self.config, self._wrong, self._undecoded = PluginConfig(), str(error), data
        self.session.configure(self.config)

    async def _look(self) -> Fingerprint:
        if self._undecoded is not None:
            self._decode(self._undecoded)
        if self._wrong:
            return disabled(self._wrong)
        if not self.config.enabled:
            return disabled("disabled: plugin.solo5.config.enabled is false")
        try:
            return await self._look_at_machine()
        except Solo5Error as error:
            return unreachable(str(error), self._version)
        except Exception:  # noqa: BLE001 - a look that fails must not end the stream: the driver would be lost
            _log.exception("The machine could not be looked at.")
            return unreachable("solo5: an internal error; the agent's log has the details", self._version)

    async def _look_at_machine(self) -> Fingerprint:
        from solo5_systemd.host.probe import probe

        settings = self.session.settings()
        engine = await self.session.engine()
        host = await probe(settings=settings, systemd=release_of(await engine.systemd_version()))
        self._housekeeping.reclaim()
        return fingerprint(host, settings, self.config, self._version)
