"""Maintenance: repairs of what other programs change, expiry of reservations, and the check of units."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from solo5_systemd.base.concurrency import begin
from solo5_systemd.base.errors import Solo5Error
from solo5_systemd.base.names import TaskName
from solo5_systemd.network.conntrack import delete_udp_flows_to_others
from solo5_systemd.network.nft_tables import return_memory
from solo5_systemd.networkd.dhcp import DhcpServers
from solo5_systemd.networkd.leases import now
from solo5_systemd.networkd.namespaces import Core
from solo5_systemd.networkd.releases import UNIT_CHECK_INTERVAL_S, Releases, failure_logged
from solo5_systemd.networkd.sleep import Sleep

BRIDGE_CHECK_INTERVAL_S = 0.5
"""Interval of the checks for a missing joined bridge. A watch would be woken by each attach of a tap instead."""
_LINKS_SETTLE_S = 0.05  # the kernel sends one RTM_DELLINK for each port of a deleted bridge

UNWATCHED_CHECK_INTERVAL_S = 1.0
"""Interval of the checks of units where inotify has reached a limit."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Maintenance:
    """Repairs, expires and checks in a loop; `emit` sends a signal."""

    core: Core
    releases: Releases
    servers: DhcpServers
    sleep: Sleep
    emit: Callable[[str, Sequence[object]], None]

    async def run(self, unfinished: Sequence[TaskName]) -> None:
        """Finish the releases of tasks that were interrupted, then maintain until cancelled."""
        watches = self.core.watches
        # Seconds between two checks of units; inotify reports most ends before.
        interval = UNWATCHED_CHECK_INTERVAL_S if self.core.units.fileno() is None else UNIT_CHECK_INTERVAL_S
        checked_at = now()
        for task in unfinished:
            with failure_logged(task):
                await self.releases.release(task)
        await self._delete_flows_to_others()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_until_due(checked_at + interval)):
                    await watches.wake.wait()
            watches.wake.clear()  # before the flags are read: an event from here on wakes the loop again
            await self._repair()
            if now() - checked_at >= interval:
                checked_at = now()
                await self._check_units()
            if watches.repairs:  # last: the check repairs and reports, too
                while watches.repairs:
                    repair = watches.repairs.popleft()
                    self.emit("Repaired", [list(repair.tasks), repair.what])
                await self._delete_flows_to_others()
            if time.monotonic() >= self.sleep.next_check:
                try:
                    await self.sleep.check()
                except (Solo5Error, OSError) as error:  # repeated at the next check
                    _log.error("idle tasks cannot be put to sleep: %s", error)
            for task in self.core.state.expired():
                with failure_logged(task):
                    await self.releases.release_if_due(task, "reservation expired")

    def _seconds_until_due(self, check: float) -> float:
        """Return the seconds until the next reservation expires, or the next check of units or of idle tasks.

        `check`: the second of CLOCK_BOOTTIME in which units are checked.
        """
        if self.core.state.host.repairs.awaits_bridge:
            return BRIDGE_CHECK_INTERVAL_S
        due = min(self.core.state.next_expiry(), check)
        return min(max(1, due - now()), max(0.1, self.sleep.next_check - time.monotonic()))

    async def _repair(self) -> None:
        watches, repairs = self.core.watches, self.core.state.host.repairs
        try:
            if watches.rules:
                watches.rules = False
                await self.core.writer.run(repairs.repair_tables)
            if repairs.awaits_bridge:
                await self.core.writer.run(repairs.repair_joined)
            if watches.links != frozenset():  # None: unknown, after lost netlink messages
                await asyncio.sleep(_LINKS_SETTLE_S)
                changed, watches.links = watches.links, frozenset()
                await self.core.writer.run(repairs.repair_changed, changed)
            if watches.namespaces:
                await asyncio.sleep(_LINKS_SETTLE_S)
                paths, watches.namespaces = watches.namespaces, set()
                await self.core.writer.run(self.core.state.repair_others, paths)
        except (Solo5Error, OSError) as error:  # OSError: such as ENOBUFS, which passes
            _log.error("network repair failed: %s", error)
            watches.rules, watches.links = True, None  # all is compared at the next wake-up

    async def _delete_flows_to_others(self) -> None:
        """Delete UDP flows to published ports that began while there were no tables."""
        try:
            ports, guests = await self.core.writer.run(self.core.state.host.served)
            if ports:
                await asyncio.to_thread(delete_udp_flows_to_others, ports, guests)
        except (Solo5Error, OSError) as error:
            _log.warning("deleting conntrack entries of published UDP ports failed: %s", error)

    async def _check_units(self) -> None:
        """Look for ends that no event has reported, and for releases that failed."""
        host = self.core.state.host
        # Those that another process had bound when the service started.
        await self.core.writer.run(host.ports.bind_missing, host.leases.published_ports())
        try:
            await self.core.writer.run(self.core.state.repair_others)
            await self.core.writer.run(host.repairs.repair_unannounced)
            await self.core.writer.run(self.core.state.everywhere, lambda state: state.repairs.report_mistakes())
        except (Solo5Error, OSError) as error:  # such as another program's link of the bridge's name
            _log.error("network repair failed: %s", error)
        if host.dhcp.in_use:
            begin(self.core.tasks, self.servers.maintain())  # a server that does not start delays no repair
        self.releases.release_without_run(self.core.state.due())
        return_memory()
