"""solo5-networkd: started by D-Bus at the first call, gone when no lease is left."""

import argparse
import pwd
from pathlib import Path

from solo5_systemd.daemon import fdstore, process
from solo5_systemd.errors import HostError
from solo5_systemd.network.lease_files import STATE, LeaseStore
from solo5_systemd.network.links import Links
from solo5_systemd.network.nft_tables import Tables
from solo5_systemd.networkd.held_ports import HeldPorts
from solo5_systemd.networkd.service import IDLE_SECONDS, Networkd
from solo5_systemd.networkd.state import Keeper
from solo5_systemd.settings_files import ETC, read_settings
from solo5_systemd.users.registry import uid_of


def main() -> int:
    """Serve; the exit status."""
    return process.run(_serve(_options().parse_args()))


def _options() -> argparse.ArgumentParser:
    about = "The network service of Solo5 unikernels."
    parser = process.options("solo5-networkd", about, state=STATE, holds="leases", idle=IDLE_SECONDS)
    parser.add_argument(
        "--owner", default="solo5", metavar="USER", help="owner of the taps of a task without a user (%(default)s)"
    )
    parser.add_argument("--settings", default=ETC, type=Path, metavar="DIR", help="*.toml (%(default)s)")
    shared = "let other programs change our nftables; what they change is put back"
    parser.add_argument("--shared-tables", action="store_true", help=shared)
    return parser


async def _serve(options: argparse.Namespace) -> bool:
    owner = _user_id(options.owner)
    restored = fdstore.restored()

    def make_keeper() -> Keeper:
        return Keeper(
            store=LeaseStore(options.state),
            links=Links(lambda task: uid_of(task) or owner),
            tables=Tables(owned=not options.shared_tables),
            ports=HeldPorts(restored),
            settings=lambda: read_settings(options.settings),
        )

    bus = await process.connected()
    networkd = Networkd(bus, make_keeper, idle=options.idle)
    needed = await process.beside(
        networkd.serve(process.tell_ready, process.tell_stopping),
        # systemd's watchdog is told of our life only when the writer's thread has come round as well
        process.watchdog(networkd.breathe),
        process.until_lost(bus),
    )
    bus.disconnect()
    return needed


def _user_id(name: str) -> int:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError as error:
        raise HostError(
            f"user {name} does not exist: expected it to own taps.",
            "The package's /usr/lib/sysusers.d/solo5-systemd.conf makes it: `systemd-sysusers`.",
        ) from error
