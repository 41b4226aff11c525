"""Maintenance: repairs of what other programs change, expiry of reservations, and the check of units."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from solo5_systemd.base.errors import Solo5Error
from solo5_systemd.base.names import TaskName
from solo5_systemd.network.nft_tables import return_memory
from solo5_systemd.networkd.dhcp import DhcpServers
from solo5_systemd.networkd.leases import now
from solo5_systemd.networkd.namespaces import Core
from solo5_systemd.networkd.releases import UNIT_CHECK_INTERVAL_S, Releases
from solo5_systemd.networkd.sleep import Sleep

BRIDGE_CHECK_INTERVAL_S = 0.5
"""Interval of the checks for a missing joined bridge. A watch would be woken by each attach of a tap instead."""
_LINKS_SETTLE_S = 0.05  # the kernel sends one RTM_DELLINK for each port of a deleted bridge

POLL_INTERVAL_S = 1.0
"""Interval of the checks of units where inotify has reached a limit."""

_log = logging.getLogger(__name__)


class Maintenance:
    """The maintenance loop.

    Args:
        emit: emits a signal of the service.
    """

    def __init__(
        self,
        core: Core,
        releases: Releases,
        servers: DhcpServers,
        sleep: Sleep,
        emit: Callable[[str, Sequence[object]], None],
    ) -> None:
        self._core = core
        self._host = core.state.host
        self._releases = releases
        self._servers = servers
        self._sleep = sleep
        self._emit = emit
        # Seconds between two checks of units; inotify reports most ends before.
        self._check_interval = POLL_INTERVAL_S if core.units.fileno() is None else UNIT_CHECK_INTERVAL_S
        self._units_checked_at = now()

    async def run(self, unfinished: Sequence[TaskName]) -> None:
        """Finish the releases that were interrupted, then maintain until cancelled."""
        for task in unfinished:
            await self._releases.release(task)
        await self._delete_flows_to_others()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_until_due()):
                    await self._core.watches.wake.wait()
            self._core.watches.wake.clear()  # before the flags are read: an event from here on wakes the loop again
            await self._repair()
            if now() - self._units_checked_at >= self._check_interval:
                await self._check_units()
            if self._core.watches.repairs:  # last: the check repairs and reports, too
                while self._core.watches.repairs:
                    repair = self._core.watches.repairs.popleft()
                    self._emit("Repaired", [list(repair.tasks), repair.what])
                await self._delete_flows_to_others()
            if time.monotonic() >= self._sleep.next_check:
                try:
                    await self._sleep.check()
                except (Solo5Error, OSError) as error:  # repeated at the next check
                    _log.error("idle tasks cannot be put to sleep: %s", error)
            for task in self._core.state.expired():
                await self._releases.release_if_due(task, "reservation expired")

    def _seconds_until_due(self) -> float:
        """Return the seconds until the next reservation expires, or the next check of units or of idle tasks."""
        if self._host.repairs.awaits_bridge:
            return BRIDGE_CHECK_INTERVAL_S
        due = min(self._core.state.next_expiry(), self._units_checked_at + self._check_interval)
        return min(max(1, due - now()), max(0.1, self._sleep.next_check - time.monotonic()))

    async def _repair(self) -> None:
        watches, repairs = self._core.watches, self._host.repairs
        try:
            if watches.rules:
                watches.rules = False
                await self._core.writer.run(repairs.repair_tables)
            if repairs.awaits_bridge:
                await self._core.writer.run(repairs.repair_joined)
            if watches.links != frozenset():  # None: unknown, after lost netlink messages
                await asyncio.sleep(_LINKS_SETTLE_S)
                changed, watches.links = watches.links, frozenset()
                await self._core.writer.run(repairs.repair_changed, changed)
            if watches.namespaces:
                await asyncio.sleep(_LINKS_SETTLE_S)
                paths, watches.namespaces = watches.namespaces, set()
                await self._core.writer.run(self._core.state.repair_others, paths)
        except (Solo5Error, OSError) as error:  # OSError: such as ENOBUFS, which passes
            _log.error("network repair failed: %s", error)
            watches.rules, watches.links = True, None  # all is compared at the next wake-up

    async def _delete_flows_to_others(self) -> None:
        """Delete UDP flows to published ports that began while there were no tables."""
        if redirected := await self._core.writer.run(self._host.redirected):
            await self._releases.delete_flows(redirected)

    async def _check_units(self) -> None:
        """Look for ends that no event has reported, and for releases that failed."""
        self._units_checked_at = now()
        # Those that another process had bound when the service started.
        await self._core.writer.run(self._host.ports.bind_missing, self._host.leases.published_ports())
        try:
            await self._core.writer.run(self._core.state.repair_others)
            await self._core.writer.run(self._host.repairs.repair_unannounced)
            await self._core.writer.run(self._core.state.everywhere, lambda state: state.repairs.report_mistakes())
        except (Solo5Error, OSError) as error:  # such as another program's link of the bridge's name
            _log.error("network repair failed: %s", error)
        if self._host.dhcp.in_use:
            await self._servers.maintain()
        self._releases.release_without_run(self._core.state.due())
        return_memory()
