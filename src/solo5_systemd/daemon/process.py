"""The process around a service: its log, its bus, its watchdog, its end."""

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress

from dbus_next import BusType
from dbus_next.aio import MessageBus
from pystemd.daemon import notify

from solo5_systemd.errors import HostError, Solo5Error

NEEDED_AGAIN = 75
"""The exit status after which systemd starts us again (RestartForceExitStatus=): EX_TEMPFAIL of sysexits(3)."""


def run(serving: Coroutine[object, object, bool]) -> int:
    """Run a service to its end, which says whether it is needed again; the exit status."""
    _log_to_journal()
    status = 1
    try:
        status = NEEDED_AGAIN if asyncio.run(serving) else 0
    except* Solo5Error as group:
        for error in group.exceptions:
            logging.getLogger(__name__).error("%s", error)  # noqa: TRY400 - a sentence, not a traceback
    return status


def _log_to_journal() -> None:
    for level, priority in ((logging.INFO, 6), (logging.WARNING, 4), (logging.ERROR, 3)):
        logging.addLevelName(level, f"<{priority}>")  # sd-daemon(3): the journal takes it off again
    logging.basicConfig(format="%(levelname)s%(message)s", level=logging.INFO, stream=sys.stderr)


async def connected() -> MessageBus:
    """The system bus.

    Raises:
        HostError: it cannot be reached.
    """
    try:
        return await MessageBus(bus_type=BusType.SYSTEM, negotiate_unix_fd=True).connect()
    except (OSError, EOFError) as error:
        raise HostError(f"the system bus cannot be reached: {error}.") from error


async def until_lost(bus: MessageBus) -> None:
    """End the service with its bus: systemd starts it again, and it carries on from what is kept elsewhere.

    Raises:
        HostError: that is how it ends.
    """
    with suppress(OSError, EOFError):
        await bus.wait_for_disconnect()
    raise HostError("the connection to the system bus broke.")


async def watchdog(breathe: Callable[[], Awaitable[None]] | None = None) -> None:
    """Tell systemd of our life at twice the rate that it asks for (sd_watchdog_enabled(3)).

    Args:
        breathe: returns when what the loop does not show lives, too, such as a thread that works for it.
    """
    microseconds = int(os.environ.get("WATCHDOG_USEC", "0"))
    while microseconds:
        await asyncio.sleep(microseconds / 2e6)
        if breathe is not None:
            await breathe()
        notify(False, watchdog=1)


def tell_ready() -> None:
    notify(False, ready=1)


def tell_stopping() -> None:
    notify(False, stopping=1)
