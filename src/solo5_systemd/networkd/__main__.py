"""solo5-networkd: started by D-Bus at the first call, gone when no lease is left."""

import argparse
import asyncio
import logging
import os
import pwd
import sys
from contextlib import suppress
from pathlib import Path

from dbus_next import BusType
from dbus_next.aio import MessageBus
from pystemd.daemon import notify

from solo5_systemd.errors import HostError, Solo5Error
from solo5_systemd.etc import ETC, read_settings
from solo5_systemd.network.leases import STATE, LeaseStore
from solo5_systemd.network.netlink import Links
from solo5_systemd.network.nft import Tables
from solo5_systemd.networkd.keeper import Keeper
from solo5_systemd.networkd.service import IDLE_SECONDS, Service

NEEDED_AGAIN = 75
"""The exit status after which systemd starts us again (RestartForceExitStatus=): EX_TEMPFAIL of sysexits(3)."""


def main() -> int:
    """Serve; the exit status."""
    _log_to_journal()
    options = _options().parse_args()
    status = 1
    try:
        status = NEEDED_AGAIN if asyncio.run(_serve(options)) else 0
    except* Solo5Error as group:
        for error in group.exceptions:
            logging.getLogger(__name__).error("%s", error)  # noqa: TRY400 - a sentence, not a traceback
    return status


def _log_to_journal() -> None:
    for level, priority in ((logging.INFO, 6), (logging.WARNING, 4), (logging.ERROR, 3)):
        logging.addLevelName(level, f"<{priority}>")  # sd-daemon(3): the journal takes it off again
    logging.basicConfig(format="%(levelname)s%(message)s", level=logging.INFO, stream=sys.stderr)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="solo5-networkd", description="The network service of Solo5 unikernels.")
    parser.add_argument("--owner", default="solo5", metavar="USER", help="who may attach to taps (%(default)s)")
    parser.add_argument("--settings", default=ETC, type=Path, metavar="DIR", help="*.toml (%(default)s)")
    parser.add_argument("--state", default=STATE, type=Path, metavar="DIR", help="leases (%(default)s)")
    parser.add_argument(
        "--idle",
        default=IDLE_SECONDS,
        type=float,
        metavar="SECONDS",
        help="leave after these without work (%(default)s)",
    )
    return parser


async def _serve(options: argparse.Namespace) -> bool:
    owner = _user_id(options.owner)

    def make_keeper() -> Keeper:
        return Keeper(
            store=LeaseStore(options.state),
            links=Links(owner),
            tables=Tables(),
            settings=lambda: read_settings(options.settings),
        )

    bus = await _connected()
    service = Service(bus, make_keeper, idle=options.idle)
    async with asyncio.TaskGroup() as tasks:
        companions = [tasks.create_task(_watchdog(service)), tasks.create_task(_until_lost(bus))]
        needed = await service.serve(lambda: notify(False, ready=1), lambda: notify(False, stopping=1))
        for companion in companions:
            companion.cancel()
    bus.disconnect()
    return needed


async def _connected() -> MessageBus:
    try:
        return await MessageBus(bus_type=BusType.SYSTEM).connect()
    except (OSError, EOFError) as error:
        raise HostError(f"the system bus cannot be reached: {error}.") from error


async def _until_lost(bus: MessageBus) -> None:
    """End the service with its bus: systemd starts it again, and it carries on from what is in /run and the kernel."""
    with suppress(OSError, EOFError):
        await bus.wait_for_disconnect()
    raise HostError("the connection to the system bus broke.")


async def _watchdog(service: Service) -> None:
    """Tell systemd of our life at twice the rate that it asks for (sd_watchdog_enabled(3))."""
    microseconds = int(os.environ.get("WATCHDOG_USEC", "0"))
    while microseconds:
        await asyncio.sleep(microseconds / 2e6)
        await service.breathe()
        notify(False, watchdog=1)


def _user_id(name: str) -> int:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError as error:
        raise HostError(
            f"user {name} does not exist: expected it to own taps.",
            "The package's /usr/lib/sysusers.d/solo5.conf makes it: `systemd-sysusers`.",
        ) from error


if __name__ == "__main__":
    sys.exit(main())
