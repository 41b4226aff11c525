"""The driver's background work: garbage collection, forgotten tasks, full disks, shared cores, D-Bus signals."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from functools import partial
from pathlib import PurePosixPath
from typing import TypeAlias

from solo5_systemd.base.concurrency import retry
from solo5_systemd.base.errors import Solo5Error
from solo5_systemd.base.names import TaskName
from solo5_systemd.bus.peers import WATCH_INTERVAL_S
from solo5_systemd.engine.orphans import Kind
from solo5_systemd.nomad import event_messages
from solo5_systemd.nomad.engine import EngineSession
from solo5_systemd.nomad.forgotten_tasks import ForgottenTasks
from solo5_systemd.nomad.plugin_config import REMOVE_NOTHING, PluginConfig
from solo5_systemd.nomad.tasks import TaskRegistry
from solo5_systemd.nomad.workload import SHARED_SLICE
from solo5_systemd.settings.files import RUN, write_networks
from solo5_systemd.task.properties import parse_property

NETWORKS = RUN / "nomad.toml"
"""The networks of the plugin configuration, as a settings file."""

CPUSET_INTERVAL_S = 2.0
"""Seconds between two reads of the CPU set of Nomad's shared partition, which is one small file."""

SPACE_INTERVAL_S = 10.0
"""Seconds between two looks at the free space of the file systems of disks: one system call for each of these."""

SHARED = "share.slice"
"""Nomad's cgroup of all tasks without reserved cores (client/lib/cgroupslib)."""

Work: TypeAlias = Callable[[], Awaitable[Iterable[object] | None]]
"""Returns what it has removed."""

_log = logging.getLogger(__name__)


class Housekeeping:
    """The driver's background loops, and its subscriptions to the signals of both services. Each starts once."""

    def __init__(
        self,
        session: EngineSession,
        tasks: TaskRegistry,
        serving: Callable[[], bool],
        background: asyncio.TaskGroup,
    ) -> None:
        self._session = session
        self._tasks = tasks
        self._serving = serving
        self._background = background
        self._begun: set[str] = set()
        self._shared_cgroup = self._shared_cpus = ""
        self._written: PluginConfig | None = None
        self._forgotten = ForgottenTasks(session, tasks)

    def start(self) -> None:
        """Start the loops."""
        session = self._session  # whose configuration may change
        self._repeat("update of the shared CPU set", lambda: CPUSET_INTERVAL_S, self.confine_shared)
        self._repeat("look at the free space of disks", lambda: SPACE_INTERVAL_S, self._publish_full_disks)
        self._repeat("collection of garbage", lambda: session.config.gc.interval, self._collect_garbage)
        self._repeat("stop of forgotten tasks", lambda: session.config.gc.dangling_tasks.period, self._stop_forgotten)

    def write_networks(self) -> None:
        """Write the networks of a configuration that is new; while it cannot be read, they stay as they are."""
        config = self._session.config
        if config is self._written or config is REMOVE_NOTHING:
            return
        self._written = config
        try:
            write_networks(NETWORKS, config.network)
        except Solo5Error as error:  # tasks in networks of /etc/solo5 start all the same
            _log.error("networks of plugin.solo5.config not written to %s: %s", NETWORKS, error)

    def subscribe(self) -> None:
        """Start the subscriptions to the signals of both services, which are events of tasks."""
        self._subscribe("solo5-networkd", self._publish_repairs)
        self._subscribe("solo5-networkd", self._publish_sleep)
        self._subscribe("solo5-relay", self._publish_dropped_lines)

    def note_cores(self, cpuset_cgroup: str) -> None:
        """Derive Nomad's shared partition from a task's cgroup; that of a task with reserved cores is ignored."""
        parent = PurePosixPath(cpuset_cgroup).parent
        if parent.name == SHARED:
            self._shared_cgroup = str(parent)

    async def confine_shared(self) -> None:
        """Confine the slice of tasks without reserved cores to Nomad's shared partition; before a start of one.

        See docs/decisions/shared-cores.md. Raises HostError while PID 1 is not reachable.
        """
        if not self._shared_cgroup:  # the first task without reserved cores brings the path
            return
        engine = self._session.engine
        cpus = await engine.backends.usages.cpus(self._shared_cgroup)
        if cpus and cpus != self._shared_cpus:  # else PID 1 would set the property every two seconds
            await engine.backends.units.set_properties(SHARED_SLICE, [parse_property("AllowedCPUs", cpus)])
            self._shared_cpus = cpus

    def clean_up_disks(self) -> None:
        """Clean up what tasks of an earlier driver, or of an earlier boot, have left of their disks."""
        self._once("reclaim of given disks", self._clean_up_disks)

    def _once(self, what: str, work: Work) -> None:
        if what not in self._begun:  # each stream of fingerprints and each start of a task asks for it
            self._begun.add(what)
            self._background.create_task(_logged(what, work))

    def _repeat(self, what: str, interval_s: Callable[[], float], work: Work) -> None:
        async def repeated() -> None:
            while True:
                await asyncio.sleep(interval_s())
                await _logged(what, work)

        self._once(what, repeated)

    def _subscribe(self, service: str, listen: Callable[[], Awaitable[None]]) -> None:
        def log(error: Solo5Error) -> None:
            _log.warning(
                "lost D-Bus signal subscription to %s, retrying in %.0f s: %s", service, WATCH_INTERVAL_S, error
            )

        retried = partial(retry, listen, Solo5Error, interval_s=WATCH_INTERVAL_S, on_failure=log)
        self._once(f"subscription to {service} ({listen.__name__})", retried)

    async def _publish_repairs(self) -> None:
        async with aclosing(self._session.engine.backends.networks.repairs()) as repairs:
            async for repair in repairs:
                self._tasks.publish(event_messages.network_repaired(repair.what), *repair.tasks)

    async def _publish_sleep(self) -> None:
        async with aclosing(self._session.engine.backends.networks.sleep_changes()) as changes:
            async for task, asleep, reason in changes:
                self._tasks.publish(event_messages.sleep_changed(reason, asleep=asleep), task)

    async def _publish_dropped_lines(self) -> None:
        async with aclosing(self._session.engine.backends.relay.gaps()) as gaps:
            async for task, lines in gaps:
                self._tasks.publish(event_messages.lines_dropped(lines), task)

    async def _publish_full_disks(self) -> None:
        for disk, is_full in await self._session.engine.backends.disk_space.changes():
            event = event_messages.full_disk(disk, is_full=is_full)
            _log.log(logging.WARNING if is_full else logging.INFO, "task %s: %s", disk.task, event.message)
            self._tasks.publish(event, TaskName(disk.task))

    async def _collect_garbage(self) -> None:
        gc = self._session.config.gc
        if gc.enabled:
            collect = self._session.engine.gc
            await _logged("gc of images", lambda: collect.images(min_age=gc.image_age))
            await _logged("gc of users", collect.users)
            await _logged("reclaim of given disks", self._clean_up_disks)
        if gc.enabled and not gc.tasks:  # otherwise no ended task is retained
            await _logged("gc of retained tasks", partial(remove_orphaned, self._session))

    async def _stop_forgotten(self) -> None:
        if not self._serving():
            self._forgotten.begin_again()
        elif self._session.config.gc.dangling_tasks.enabled:
            await _logged("gc of forgotten tasks", self._forgotten.sweep)
            await _logged("gc of log FIFOs of removed tasks", lambda: self._session.engine.gc.consoles())

    async def _clean_up_disks(self) -> None:
        backends = self._session.engine.backends
        await _logged("removal of stale bind mounts", lambda: backends.disks.sweep())
        # After a boot, PID 1 may allocate a user again that still has a disk.
        for sentence in await backends.users.reclaim():
            _log.warning("%s", sentence)


async def _logged(what: str, work: Work) -> None:
    """Do some work, and log what it has removed, or its failure."""
    try:
        for removed in await work() or ():
            _log.info("%s: %s", what, removed)
    except Solo5Error as error:
        _log.warning("%s failed: %s", what, error)
    except Exception:  # noqa: BLE001 - an exception in the group's task would end the plugin
        _log.exception("%s failed: internal error", what)


async def remove_orphaned(session: EngineSession) -> None:
    """Remove the retained tasks whose allocation Nomad has removed; raises HostError as calls of PID 1."""
    engine = session.engine
    orphaned = {orphan.subject for orphan in await engine.gc.orphans() if orphan.kind is Kind.TASK}
    for state in await engine.backends.units.states() if orphaned else ():
        if state.task in orphaned and state.over:  # one that runs is a forgotten task, which has a grace period
            await _logged(f"gc of retained task {state.task}", partial(engine.discard, state.task, over=True))
