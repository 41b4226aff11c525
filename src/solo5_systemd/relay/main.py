"""solo5-relay: started by D-Bus with the first console to forward, gone when none is left."""

import argparse

from solo5_systemd.daemon import fdstore, process
from solo5_systemd.daemon.service import Service
from solo5_systemd.dbus_api.relay1 import INTERFACE
from solo5_systemd.relay.forward import Forwarder
from solo5_systemd.relay.methods import Methods
from solo5_systemd.relay.records import STATE, Records

IDLE_SECONDS = 10.0


def main() -> int:
    """Serve; the exit status."""
    about = "The console relay of Solo5 unikernels."
    options = process.options("solo5-relay", about, state=STATE, holds="positions", idle=IDLE_SECONDS)
    return process.run(_serve(options.parse_args()))


async def _serve(options: argparse.Namespace) -> bool:
    bus = await process.connected()
    forwarder = Forwarder(Records(options.state))
    forwarder.restore(fdstore.restored())
    service = Service(bus, INTERFACE, Methods(forwarder).handlers, lambda: forwarder.is_needed)
    needed = await process.beside(
        service.serve(options.idle, process.tell_ready, process.tell_stopping),
        process.watchdog(),
        process.until_lost(bus),
        forwarder.run(),
        _tell_gaps(forwarder, service),
    )
    forwarder.close()
    bus.disconnect()
    return needed


async def _tell_gaps(forwarder: Forwarder, service: Service) -> None:
    """For ever."""
    while True:
        gap = await forwarder.gaps.get()
        await service.tell("Gap", [gap.task, gap.lines])
