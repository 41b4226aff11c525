"""Maintenance: repairs of what other programs change, expiry of reservations, and the check of units."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from solo5_systemd.base.concurrency import begin
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

UNWATCHED_CHECK_INTERVAL_S = 1.0
"""Interval of the checks of units where inotify has reached a limit."""

_log = logging.getLogger(__name__)


async def maintain(
    core: Core,
    releases: Releases,
    servers: DhcpServers,
    sleep: Sleep,
    emit: Callable[[str, Sequence[object]], None],
    unfinished: Sequence[TaskName],
) -> None:
    """Finish the releases of tasks that were interrupted, then maintain until cancelled."""
    watches = core.watches
    # Seconds between two checks of units; inotify reports most ends before.
    interval = UNWATCHED_CHECK_INTERVAL_S if core.units.fileno() is None else UNIT_CHECK_INTERVAL_S
    checked_at = now()
    for task in unfinished:
        await releases.release(task)
    await _delete_flows_to_others(core, releases)
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(_seconds_until_due(core, sleep, checked_at + interval)):
                await watches.wake.wait()
        watches.wake.clear()  # before the flags are read: an event from here on wakes the loop again
        await _repair(core)
        if now() - checked_at >= interval:
            checked_at = now()
            await _check_units(core, releases, servers)
        if watches.repairs:  # last: the check repairs and reports, too
            while watches.repairs:
                repair = watches.repairs.popleft()
                emit("Repaired", [list(repair.tasks), repair.what])
            await _delete_flows_to_others(core, releases)
        if time.monotonic() >= sleep.next_check:
            try:
                await sleep.check()
            except (Solo5Error, OSError) as error:  # repeated at the next check
                _log.error("idle tasks cannot be put to sleep: %s", error)
        for task in core.state.expired():
            await releases.release_if_due(task, "reservation expired")


def _seconds_until_due(core: Core, sleep: Sleep, check: float) -> float:
    """Return the seconds until the next reservation expires, or the next check of units or of idle tasks.

    `check`: the second of CLOCK_BOOTTIME in which units are checked.
    """
    if core.state.host.repairs.awaits_bridge:
        return BRIDGE_CHECK_INTERVAL_S
    due = min(core.state.next_expiry(), check)
    return min(max(1, due - now()), max(0.1, sleep.next_check - time.monotonic()))


async def _repair(core: Core) -> None:
    watches, repairs = core.watches, core.state.host.repairs
    try:
        if watches.rules:
            watches.rules = False
            await core.writer.run(repairs.repair_tables)
        if repairs.awaits_bridge:
            await core.writer.run(repairs.repair_joined)
        if watches.links != frozenset():  # None: unknown, after lost netlink messages
            await asyncio.sleep(_LINKS_SETTLE_S)
            changed, watches.links = watches.links, frozenset()
            await core.writer.run(repairs.repair_changed, changed)
        if watches.namespaces:
            await asyncio.sleep(_LINKS_SETTLE_S)
            paths, watches.namespaces = watches.namespaces, set()
            await core.writer.run(core.state.repair_others, paths)
    except (Solo5Error, OSError) as error:  # OSError: such as ENOBUFS, which passes
        _log.error("network repair failed: %s", error)
        watches.rules, watches.links = True, None  # all is compared at the next wake-up


async def _delete_flows_to_others(core: Core, releases: Releases) -> None:
    """Delete UDP flows to published ports that began while there were no tables."""
    if redirected := await core.writer.run(core.state.host.redirected):
        await releases.delete_flows(redirected)


async def _check_units(core: Core, releases: Releases, servers: DhcpServers) -> None:
    """Look for ends that no event has reported, and for releases that failed."""
    host = core.state.host
    # Those that another process had bound when the service started.
    await core.writer.run(host.ports.bind_missing, host.leases.published_ports())
    try:
        await core.writer.run(core.state.repair_others)
        await core.writer.run(host.repairs.repair_unannounced)
        await core.writer.run(core.state.everywhere, lambda state: state.repairs.report_mistakes())
    except (Solo5Error, OSError) as error:  # such as another program's link of the bridge's name
        _log.error("network repair failed: %s", error)
    if host.dhcp.in_use:
        begin(core.tasks, servers.maintain())  # a server that does not start delays no repair
    releases.release_without_run(core.state.due())
    return_memory()
