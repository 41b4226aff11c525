"""The process of a service: its entry point, log, D-Bus connection, watchdog, exit status.

Imports the standard library and `base/` only, so that a missing dependency can be reported.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, cast

from solo5_systemd.base.dependencies import EXIT_CONFIG, dependency_error
from solo5_systemd.base.errors import DependencyError, HostError, Solo5Error
from solo5_systemd.base.journal_entry import write_entry
from solo5_systemd.dbus.fdstore import notify

if TYPE_CHECKING:
    from solo5_systemd.dbus.message_bus import MessageBus

NOTICE = 5
"""A priority of syslog(3)."""

EXIT_RESTART = 75
"""The exit status after which systemd restarts the service (RestartForceExitStatus=): EX_TEMPFAIL of sysexits(3)."""


def run_module(module: str) -> int:
    """Import a service's module, run its `main`, and return the exit status.

    A missing dependency is reported by one line in the journal (sd-daemon(3)), by the unit's StatusText=, which clients
    read, and by an exit status of RestartPreventExitStatus=.
    """
    try:
        main = import_module(module).main
    except ImportError as error:
        missing = dependency_error(error)
        print(f"<3>{missing}", file=sys.stderr)
        with suppress(OSError):
            notify(f"STATUS={missing}")
        return EXIT_CONFIG
    return cast("int", main())


def run(serving: Coroutine[object, object, bool]) -> int:
    """Run a service and return the exit status.

    Args:
        serving: runs the service; returns whether it has to be restarted.

    Returns:
        0, EXIT_RESTART, EXIT_CONFIG for a missing dependency, or 1 for another error, which is logged.
    """
    for level, priority in ((logging.INFO, 6), (logging.WARNING, 4), (logging.ERROR, 3)):
        logging.addLevelName(level, f"<{priority}>")  # sd-daemon(3): journald strips it and sets PRIORITY=
    logging.basicConfig(format="%(levelname)s%(message)s", level=logging.INFO, stream=sys.stderr)
    status = 1
    try:
        status = EXIT_RESTART if asyncio.run(serving) else 0
    except* Solo5Error as group:
        for error in _leaves(group):
            logging.getLogger(__name__).error("%s", error)  # noqa: TRY400 - an expected error: no traceback
            status = EXIT_CONFIG if isinstance(error, DependencyError) else status
    return status


def _leaves(group: BaseExceptionGroup[Solo5Error]) -> Iterator[Solo5Error]:
    for each in group.exceptions:
        if isinstance(each, BaseExceptionGroup):
            yield from _leaves(each)
        else:
            yield each


def log_about(unit: str, text: str, *, priority: int = 3, message_id: str = "") -> None:
    """Log an error about a unit of systemd, for `journalctl -u` and `systemctl status` of that unit (_UID=0 only).

    `priority`: another one, such as NOTICE.
    """
    identifier = {"SYSLOG_IDENTIFIER": "solo5-systemd", "OBJECT_SYSTEMD_UNIT": unit}
    if message_id:
        identifier["MESSAGE_ID"] = message_id
    with suppress(HostError):
        write_entry({"MESSAGE": text, "PRIORITY": priority, **identifier})


async def serve_with(
    bus: "MessageBus",
    serving: Awaitable[bool],
    *background: Coroutine[object, object, None],
    check: Callable[[], Awaitable[None]] | None = None,
) -> bool:
    """Await `serving` with the watchdog and background tasks, then close the connection; return its result.

    There is no reconnect: systemd restarts the service, with its state.

    Args:
        check: awaited before each WATCHDOG=1; does not return if a part of the service outside the event loop hangs,
            such as a thread.

    Raises:
        ExceptionGroup: the service or a background task failed, or the connection was lost; the others were cancelled.
    """
    async with asyncio.TaskGroup() as tasks:
        steps = (_watchdog(check), _until_disconnected(bus), *background)
        running = [tasks.create_task(each) for each in steps]
        needed = await serving
        for each in running:
            each.cancel()
    bus.disconnect()
    return needed


async def _until_disconnected(bus: "MessageBus") -> None:
    await asyncio.wait((bus.lost,))  # which is not cancelled with this task
    raise HostError("lost the connection to the system bus.")


async def _watchdog(check: Callable[[], Awaitable[None]] | None) -> None:
    """Send WATCHDOG=1 twice per WatchdogSec= (sd_watchdog_enabled(3)), until cancelled."""
    microseconds = int(os.environ.get("WATCHDOG_USEC", "0"))
    while microseconds:
        await asyncio.sleep(microseconds / 2e6)
        if check is not None:
            await check()
        notify("WATCHDOG=1")
