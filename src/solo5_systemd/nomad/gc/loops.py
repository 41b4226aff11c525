"""What the driver does without being asked: follow Nomad's shared cores, and remove what nobody uses or knows."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import PurePosixPath

from solo5_systemd.errors import Solo5Error
from solo5_systemd.nomad.config.plugin import PluginConfig
from solo5_systemd.nomad.engine import Session
from solo5_systemd.nomad.gc.forgotten import DanglingTasks
from solo5_systemd.nomad.task.postmortem import remove_gone
from solo5_systemd.nomad.task.registry import Tasks
from solo5_systemd.nomad.workload.convert import SHARED_SLICE
from solo5_systemd.settings_files import RUN, write_networks

NETWORKS = RUN / "nomad.toml"

FOLLOW_PERIOD = 2.0
"""Seconds between two looks at Nomad's shared cores: one small file is read."""

SHARED = "share.slice"
"""Nomad's cgroup of all tasks without reserved cores (client/lib/cgroupslib)."""

_log = logging.getLogger(__name__)


class Housekeeping:
    """Three loops, begun once.

    Args:
        session: the engine.
        tasks: what the driver answers for.
        serving: an agent listens.
        background: where the loops run.
    """

    def __init__(
        self, session: Session, tasks: Tasks, serving: Callable[[], bool], background: asyncio.TaskGroup
    ) -> None:
        self._serving = serving
        self._session = session
        self._dangling = DanglingTasks(session, tasks)
        self._background = background
        self._begun = False
        self._swept = False
        self._reclaimed = False
        self._shared = ""
        self._cpus = ""

    def begin(self, config: Callable[[], PluginConfig]) -> None:
        """Begin with the configuration in force, and read it anew whenever a period begins."""
        try:
            write_networks(NETWORKS, config().network_settings)
        except Solo5Error as error:
            _log.error("The networks of plugin.solo5.config are not defined: %s", error)
        if not self._begun:
            self._begun = True
            self._background.create_task(self._follow_cores())
            self._background.create_task(self._collect(config))
            self._background.create_task(self._end_dangling(config))

    def sweep(self) -> None:
        """Remove, once, what starts have left that ended with an earlier driver."""
        if not self._swept:
            self._swept = True
            self._background.create_task(_kept_going("bind mounts of disks", self._sweep_disks()))

    def reclaim(self) -> None:
        """Take disks back, once, from users that no task has: until then PID 1 may allocate one after a boot."""
        if not self._reclaimed:
            self._reclaimed = True
            self._background.create_task(_kept_going("disks of users that no task has", self._reclaim_disks()))

    def find_cores(self, cpuset_cgroup: str) -> None:
        """Learn from a task where Nomad's shared partition is; what runs is confined to it within a period.

        Args:
            cpuset_cgroup: of any task, as Nomad names it; one of a task with reserved cores has no shared partition.
        """
        parent = PurePosixPath(cpuset_cgroup).parent
        if parent.name == SHARED:
            self._shared = str(parent)

    async def share_cores(self, cpuset_cgroup: str) -> None:
        """The same, and at once: what is about to start must not run on others' cores."""
        self.find_cores(cpuset_cgroup)
        if self._shared:
            await self._confine()

    async def _confine(self) -> None:
        engine = await self._session.engine()
        cpus = await engine.shared_cpus(self._shared)
        if cpus and cpus != self._cpus:
            await engine.confine_slice(SHARED_SLICE, cpus)
            self._cpus = cpus

    async def _follow_cores(self) -> None:
        while True:
            await asyncio.sleep(FOLLOW_PERIOD)
            if self._shared:
                await _kept_going("Nomad's shared cores", self._confine())

    async def _collect(self, config: Callable[[], PluginConfig]) -> None:
        while True:
            wanted = config().collection
            await asyncio.sleep(wanted.interval)
            if wanted.enabled:
                await _kept_going("unused images", self._collect_images(wanted.image_age))
                await _kept_going("users of tasks that are gone", self._collect_users())
                await _kept_going("disks of users that no task has", self._reclaim_disks())
            if wanted.enabled and not wanted.tasks:
                await _kept_going("ended tasks", remove_gone(self._session))

    async def _end_dangling(self, config: Callable[[], PluginConfig]) -> None:
        """Only for an agent: a plugin that lost its own knows nothing of what another has started since."""
        while True:
            collection = config().collection
            wanted = collection.dangling
            await asyncio.sleep(wanted.period)
            if not self._serving():
                self._dangling.pause()
            elif wanted.enabled:
                await _kept_going(
                    "tasks that Nomad has forgotten", self._dangling.sweep(wanted, keep_ended=not collection.tasks)
                )
                await _kept_going("consoles of tasks long gone", self._close_consoles())

    async def _close_consoles(self) -> None:
        for task in await (await self._session.engine()).collect_consoles():
            _log.info("The console of task %s, which is long gone, is let go.", task)

    async def _sweep_disks(self) -> None:
        for path in await (await self._session.engine()).sweep_disks():
            _log.info("Removed the bind mounts of disks in %s, whose start was killed.", path)

    async def _collect_users(self) -> None:
        freed = await (await self._session.engine()).collect_users()
        if freed:
            _log.info("Freed the users of tasks %s, whose units are gone.", ", ".join(freed))

    async def _reclaim_disks(self) -> None:
        for sentence in await (await self._session.engine()).reclaim_disks():
            _log.warning("%s", sentence)

    async def _collect_images(self, age: float) -> None:
        removed = await (await self._session.engine()).collect_images(min_age=age)
        if removed:
            _log.info("Removed %d stored images that no task had used for %.0f s.", len(removed), age)


async def _kept_going(what: str, doing: Awaitable[None]) -> None:
    """A failure is told, and the next period tries again."""
    try:
        await doing
    except Solo5Error as error:
        _log.warning("%s: %s", what, error)
    except Exception:  # noqa: BLE001 - housekeeping must not end the plugin, and with it everybody's watch
        _log.exception("%s: an internal error.", what)
