"""The process around a service: its options, its log, its bus, its watchdog, its end."""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path

from dbus_next import BusType
from pystemd.daemon import notify

from solo5_systemd.dependencies import LACKING, advice
from solo5_systemd.errors import DependencyError, HostError, Solo5Error
from solo5_systemd.messagebus import MessageBus

SOCKET = "/run/dbus/system_bus_socket"
"""Of the system bus (systemd's dbus.socket)."""

NEEDED_AGAIN = 75
"""The exit status after which systemd starts us again (RestartForceExitStatus=): EX_TEMPFAIL of sysexits(3)."""


def options(service: str, about: str, *, state: Path, holds: str, idle: float) -> argparse.ArgumentParser:
    """The options that every service has.

    Args:
        service: its name.
        about: its purpose, in a sentence.
        state: the directory where it keeps what it needs after a restart.
        holds: what that is, in a word.
        idle: seconds.
    """
    parser = argparse.ArgumentParser(prog=service, description=about)
    parser.add_argument("--state", default=state, type=Path, metavar="DIR", help=f"{holds} (%(default)s)")
    leave = "leave after these without work (%(default)s)"
    parser.add_argument("--idle", default=idle, type=float, metavar="SECONDS", help=leave)
    return parser


def run(serving: Coroutine[object, object, bool]) -> int:
    """Run a service to its end, which says whether it is needed again; the exit status."""
    _log_to_journal()
    status = 1
    try:
        status = NEEDED_AGAIN if asyncio.run(serving) else 0
    except* Solo5Error as group:
        for error in _leaves(group):
            logging.getLogger(__name__).error("%s", error)  # noqa: TRY400 - a sentence, not a traceback
            status = LACKING if isinstance(error, DependencyError) else status
    return status


def _leaves(group: BaseExceptionGroup[Solo5Error]) -> Iterator[Solo5Error]:
    """What failed, wherever in a group of groups it is."""
    for each in group.exceptions:
        if isinstance(each, BaseExceptionGroup):
            yield from _leaves(each)
        else:
            yield each


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
        reason = f"{SOCKET}: {error.strerror}" if isinstance(error, OSError) and error.strerror else error
        raise HostError(f"the system bus cannot be reached: {reason}.", advice(SOCKET)) from error


async def beside(serving: Awaitable[bool], *companions: Coroutine[object, object, None]) -> bool:
    """Serve to the end, with what runs for ever beside it; what fails of either ends all of it.

    Raises:
        ExceptionGroup: what failed.
    """
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each) for each in companions]
        needed = await serving
        for each in running:
            each.cancel()
    return needed


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
