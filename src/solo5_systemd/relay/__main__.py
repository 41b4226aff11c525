"""solo5-relay: started by D-Bus with the first console to forward, gone when none is left."""

import argparse
import asyncio
import sys
from pathlib import Path

from solo5_systemd.daemon import fdstore, process
from solo5_systemd.daemon.service import Service
from solo5_systemd.relay.forward import Forwarder
from solo5_systemd.relay.interface import INTERFACE
from solo5_systemd.relay.methods import Methods
from solo5_systemd.relay.records import STATE, Records

IDLE_SECONDS = 10.0


def main() -> int:
    """Serve; the exit status."""
    return process.run(_serve(_options().parse_args()))


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="solo5-relay", description="The console relay of Solo5 unikernels.")
    parser.add_argument("--state", default=STATE, type=Path, metavar="DIR", help="positions (%(default)s)")
    parser.add_argument(
        "--idle",
        default=IDLE_SECONDS,
        type=float,
        metavar="SECONDS",
        help="leave after these without work (%(default)s)",
    )
    return parser


async def _serve(options: argparse.Namespace) -> bool:
    bus = await process.connected()
    forwarder = Forwarder(Records(options.state))
    forwarder.restore(fdstore.restored())
    service = Service(bus, INTERFACE, Methods(forwarder).handlers, lambda: forwarder.is_needed)
    async with asyncio.TaskGroup() as tasks:
        work = (process.watchdog(), process.until_lost(bus), forwarder.run(), _tell_gaps(forwarder, service))
        companions = [tasks.create_task(each) for each in work]
        needed = await service.serve(options.idle, process.tell_ready, process.tell_stopping)
        for companion in companions:
            companion.cancel()
    forwarder.close()
    bus.disconnect()
    return needed


async def _tell_gaps(forwarder: Forwarder, service: Service) -> None:
    """For ever."""
    while True:
        gap = await forwarder.gaps.get()
        await service.tell("Gap", [gap.task, gap.lines])


if __name__ == "__main__":
    sys.exit(main())
