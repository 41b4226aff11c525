"""The command line of solo5-networkd, which D-Bus activates and which exits when no lease is left."""

import argparse
import pwd
from pathlib import Path

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import UNITS, TaskName
from solo5_systemd.dbus import fdstore, process
from solo5_systemd.dbus.message_bus import connect
from solo5_systemd.network.lease_files import STATE, LeaseStore
from solo5_systemd.network.links import Links
from solo5_systemd.network.nft_tables import Tables
from solo5_systemd.network.remembered_addresses import ADDRESSES, RememberedAddresses
from solo5_systemd.networkd.dhcp_files import DIRECTORY, DhcpFiles
from solo5_systemd.networkd.dhcp_servers import DhcpServers
from solo5_systemd.networkd.dormant_tasks import FIFOS
from solo5_systemd.networkd.held_ports import HeldPorts, UnheldPorts
from solo5_systemd.networkd.namespaces import Namespaces
from solo5_systemd.networkd.parts import Parts
from solo5_systemd.networkd.service import Networkd
from solo5_systemd.networkd.state import NetworkState
from solo5_systemd.networkd.task_units import TaskUnits
from solo5_systemd.networkd.watches import Watches
from solo5_systemd.settings.files import ETC, CachedSettings
from solo5_systemd.settings.solo5_toml import of_namespace
from solo5_systemd.users.registry import Registry

IDLE_TIMEOUT_S = 10.0


def main() -> int:
    """Run the service and return its exit status."""
    return process.run(_serve(_options().parse_args()))


def _options() -> argparse.ArgumentParser:
    parser = process.argument_parser(
        "solo5-networkd",
        "The network service of Solo5 unikernels.",
        state=STATE,
        state_help="directory of the lease records",
        idle_timeout=IDLE_TIMEOUT_S,
    )
    parser.add_argument(
        "--owner", default="solo5", metavar="USER", help="owner of the taps of tasks without a user (%(default)s)"
    )
    parser.add_argument("--settings", default=ETC, type=Path, metavar="DIR", help="directory of *.toml (%(default)s)")
    parser.add_argument(
        "--units",
        default=Path(UNITS),
        type=Path,
        metavar="DIR",
        help="directory of links of units (%(default)s)",
    )
    parser.add_argument(
        "--addresses",
        default=ADDRESSES,
        type=Path,
        metavar="DIR",
        help="directory of the addresses that declared tasks had last (%(default)s)",
    )
    parser.add_argument(
        "--waiting", default=FIFOS, type=Path, metavar="DIR", help="directory of FIFOs of tasks that wait (%(default)s)"
    )
    shared = "create nftables tables without an owner; changes of other programs are reverted"
    parser.add_argument("--shared-tables", action="store_true", help=shared)
    return parser


async def _serve(options: argparse.Namespace) -> bool:
    owner = _user_id(options.owner)
    ports = HeldPorts(fdstore.restored())

    def owner_of(task: TaskName) -> int:
        return Registry().uid(task) or owner

    def make_state(watches: Watches) -> Namespaces:
        settings = CachedSettings(options.settings)
        store, links = LeaseStore(options.state), Links(owner_of)
        parts = Parts(
            store=store,
            links=links,
            tables=Tables(owned=not options.shared_tables),
            settings=settings,
            remembered=RememberedAddresses(options.addresses),
        )
        dhcp = DhcpFiles(options.state / DIRECTORY)
        host = NetworkState(parts, ports=ports, dhcp=dhcp, fifos=options.waiting)

        def make_other(namespace: str) -> NetworkState:
            others = Links(owner_of)
            routes = others.routes
            parts = Parts(
                store=LeaseStore(options.state, namespace),
                links=others,
                tables=Tables(owned=not options.shared_tables),
                settings=lambda: of_namespace(settings(), routes.uplink_mtu(), ipv6=routes.uplink_has_ipv6()),
                reserved=lambda: (
                    *links.routes.ranges(ours=()),
                    *settings().ranges,
                    *links.routes.prefixes(ours=()),
                    *settings().prefixes,
                ),
                namespace=namespace,
            )
            dhcp = DhcpFiles(options.state / "namespaces" / DIRECTORY)  # remains empty: these networks have no DHCP
            return NetworkState(parts, ports=UnheldPorts(), dhcp=dhcp)

        return Namespaces(host, store, make_other, watches)

    bus = await connect()
    networkd = Networkd(
        bus, make_state, TaskUnits(bus, options.units), DhcpServers(bus, options.units), idle=options.idle
    )
    needed = await process.serve_with(
        networkd.serve(),
        # WATCHDOG=1 is sent only after the writer thread has run a job: the event loop alone would hide its hang.
        process.watchdog(networkd.check_writer),
        process.until_disconnected(bus),
    )
    bus.disconnect()
    return needed


def _user_id(name: str) -> int:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError as error:
        raise HostError(
            f"user {name} does not exist: expected the owner of taps.",
            "The package's /usr/lib/sysusers.d/solo5-systemd.conf creates it: `systemd-sysusers`.",
        ) from error
