"""The process of solo5-networkd, which D-Bus activates and which exits when no lease is left."""

import asyncio
import pwd
from contextlib import closing

from solo5_systemd.base.concurrency import SerialThread
from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import TaskName
from solo5_systemd.dbus import fdstore, process
from solo5_systemd.dbus.message_bus import connect
from solo5_systemd.network.links import Links
from solo5_systemd.networkd.dhcp import DhcpServers
from solo5_systemd.networkd.held_ports import HeldPorts
from solo5_systemd.networkd.namespaces import Core, Namespaces
from solo5_systemd.networkd.service import Networkd
from solo5_systemd.networkd.state import NetworkState
from solo5_systemd.networkd.task_units import TaskUnits
from solo5_systemd.networkd.watches import Watches
from solo5_systemd.settings.files import CachedSettings
from solo5_systemd.settings.solo5_toml import of_namespace
from solo5_systemd.users.registry import Registry

IDLE_TIMEOUT_S = 10.0

OWNER = "solo5"
"""The owner of the taps of tasks without a user: one as which nothing runs."""


def main() -> int:
    """Run the service and return its exit status."""
    return process.run(_serve())


async def _serve() -> bool:
    try:
        owner = pwd.getpwnam(OWNER).pw_uid
    except KeyError as error:
        raise HostError(
            f"user {OWNER} does not exist: expected the owner of taps.",
            "The package's /usr/lib/sysusers.d/solo5-systemd.conf creates it: `systemd-sysusers`.",
        ) from error
    ports = HeldPorts(fdstore.restored())
    watches = Watches(asyncio.get_running_loop())

    def owner_of(task: TaskName) -> int:
        return Registry().uid(task) or owner

    def make_state() -> Namespaces:
        settings = CachedSettings()
        host = NetworkState(Links(owner_of), settings, ports, watches.report)

        def make_other(namespace: str) -> NetworkState:
            links = Links(owner_of)
            routes = links.routes
            return NetworkState(
                links,
                lambda: of_namespace(settings(), routes.uplink_mtu(), ipv6=routes.uplink_has_ipv6()),
                HeldPorts({}),
                watches.report,
                namespace,
                lambda: (*host.links.routes.ranges(ours=()), *settings().ranges),
            )

        return Namespaces(host, make_other, watches)

    async def serve() -> bool:
        with closing(TaskUnits(bus)) as units:
            core = Core(state=await writer.run(make_state), writer=writer, units=units, watches=watches)
            servers = DhcpServers(bus, core.state.host.dhcp, writer)
            return await Networkd(bus, core, servers, idle=IDLE_TIMEOUT_S).serve()

    async def check_writer() -> None:
        await writer.run(int)

    bus, writer = await connect(), SerialThread("writer")  # the only user of the sockets of the state
    # WATCHDOG=1 is sent only after the writer thread has run a job: the event loop alone would hide its hang.
    return await process.serve_with(bus, serve(), check=check_writer)
