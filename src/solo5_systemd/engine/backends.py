"""The backends of the engine: the only file of `engine/` that imports what touches the machine.

Each backend is imported at its first use: imports are most of the run time of a short verb. Every method of one raises
only errors of `solo5_systemd.base.errors`. tests/support/fakes has the implementations of the tests.
"""

import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache, cached_property
from typing import TYPE_CHECKING

from solo5_systemd.base.dependencies import dependency_error

if TYPE_CHECKING:
    from solo5_systemd.bus.blocking import BlockingBus
    from solo5_systemd.bus.connection import Connection
    from solo5_systemd.bus.manager import Manager
    from solo5_systemd.bus.network_client import Networkd
    from solo5_systemd.bus.network_reader import NetworkReader
    from solo5_systemd.bus.relay_client import Relay
    from solo5_systemd.bus.unit_reader import UnitReader
    from solo5_systemd.cgroup.cgroupfs import CgroupFs
    from solo5_systemd.host.resolvers import HostResolvers
    from solo5_systemd.host.tenders import TenderPath
    from solo5_systemd.image.store import ImageStore
    from solo5_systemd.journal.console import Journal
    from solo5_systemd.settings.node_limits import Node, Space
    from solo5_systemd.settings.solo5_toml import Settings
    from solo5_systemd.storage.backing_files import ImageFiles
    from solo5_systemd.storage.disk_space import DiskSpace
    from solo5_systemd.users.allocation import Users


class KernelReads:
    """The backends that read what the kernel has of tasks: the same with and without an event loop."""

    @cached_property
    def usages(self) -> "CgroupFs":
        from solo5_systemd.cgroup.cgroupfs import CgroupFs

        return CgroupFs()

    @cached_property
    def disk_space(self) -> "DiskSpace":
        from solo5_systemd.storage.disk_space import DiskSpace

        return DiskSpace()


class QueryBackends(KernelReads):
    """The backends of this host for reads, without an event loop.

    The connection to the system bus is made at its first use.
    """

    def __init__(self) -> None:
        self._bus: BlockingBus | None = None

    def bus(self) -> "BlockingBus":
        """Return the connection to the system bus; raises HostError if it cannot be reached."""
        if self._bus is None:
            from solo5_systemd.bus.blocking import BlockingBus

            self._bus = BlockingBus()
        return self._bus

    def close(self) -> None:
        if self._bus is not None:
            self._bus.close()

    @cached_property
    def units(self) -> "UnitReader":
        from solo5_systemd.bus.unit_reader import BlockingReader

        return BlockingReader(self.bus)

    @cached_property
    def networks(self) -> "NetworkReader":
        from solo5_systemd.bus.blocking_networks import BlockingNetworks

        return BlockingNetworks(self.bus)

    @cached_property
    def console(self) -> "Journal":
        from solo5_systemd.journal.console import Journal

        return Journal(str)  # no task is started


class Backends(KernelReads):
    """The backends of this host, over one connection to the system bus.

    The settings are read for a start only: an invalid one must not prevent inspecting or stopping tasks.
    """

    def __init__(self, connection: "Connection", settings: "Callable[[], Settings]") -> None:
        self._connection = connection
        self._settings = settings

    @cached_property
    def units(self) -> "Manager":
        from solo5_systemd.bus.manager import Manager

        return Manager(self._connection)

    @cached_property
    def images(self) -> "ImageStore":
        from solo5_systemd.image.store import ImageStore

        def room() -> int:
            space = _unpromised()
            return space.free - self._settings().limits.reserve(space.size)

        return ImageStore(quota=lambda: self._settings().image_store_mb << 20, room=room)

    @cached_property
    def tenders(self) -> "TenderPath":
        from solo5_systemd.host.tenders import TenderPath

        return TenderPath(self._settings().tender_paths)

    @cached_property
    def disks(self) -> "ImageFiles":
        from solo5_systemd.storage.backing_files import ImageFiles
        from solo5_systemd.storage.quotas import DiskClaims
        from solo5_systemd.users.registry import Registry

        return ImageFiles(DiskClaims(self._settings, Registry().copies))

    @cached_property
    def users(self) -> "Users":
        from solo5_systemd.users.allocation import Users

        return Users(lambda: self._settings().task_uids, node=lambda: _node(self._settings()))

    @cached_property
    def networks(self) -> "Networkd":
        from solo5_systemd.bus.network_client import Networkd

        return Networkd(self._connection)

    @cached_property
    def console(self) -> "Journal":
        from solo5_systemd.journal.console import Journal

        return Journal(lambda: self._settings().log_namespace)

    @cached_property
    def relay(self) -> "Relay":
        from solo5_systemd.bus.relay_client import Relay

        return Relay(self._connection, self.console.sync)

    @cached_property
    def resolvers(self) -> "HostResolvers":
        from solo5_systemd.host.resolvers import HostResolvers

        return HostResolvers(self._settings)


def _node(settings: "Settings") -> "Node":
    """Return what this host has for tasks."""
    from solo5_systemd.settings.node_limits import Node

    return Node(
        limits=settings.limits.copying(settings.disk_copy_mb << 20),
        capacity=cache(lambda: _capacity(settings)),
        copies=lambda: _unpromised(but_copies=True),
    )


def _capacity(settings: "Settings") -> Mapping[str, int]:
    from pathlib import Path

    from solo5_systemd.network.ipam import addresses_of
    from solo5_systemd.network.request_checks import HELD_MAX
    from solo5_systemd.settings.node_limits import SOCKETS_PER_PORT, Resource
    from solo5_systemd.storage.model import COPIES
    from solo5_systemd.storage.quotas import space_of

    networks = {each.name: addresses_of(each) for each in settings.networks}
    return {
        Resource.TASKS: len(settings.task_uids),
        Resource.PORTS: HELD_MAX // SOCKETS_PER_PORT,
        Resource.COPIES: space_of(Path(COPIES)).size,
        Resource.ARCHIVES: os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        Resource.IMAGES: settings.image_store_mb << 20,
        **{f"{Resource.ADDRESSES}/{name}": count for name, count in networks.items() if count},
    }


def _unpromised(*, but_copies: bool = False) -> "Space":
    """Return the file system of /var/lib/solo5, without what disks and, unless `but_copies`, copies may still take."""
    from solo5_systemd.settings.node_limits import Space
    from solo5_systemd.storage.quotas import STATE, DiskClaims, space_of
    from solo5_systemd.users.registry import Registry

    space, copies = space_of(STATE), 0 if but_copies else Registry().copies()
    return Space(size=space.size, free=space.free - DiskClaims().unwritten(STATE) - copies)


@asynccontextmanager
async def host_backends(settings: "Callable[[], Settings]") -> AsyncGenerator[Backends, None]:
    """Yield the backends of this host, over one connection.

    Raises:
        DependencyError: a Python module is missing.
        HostError: the system bus cannot be reached.
    """
    try:
        from solo5_systemd.bus.connection import system_bus
    except ImportError as error:
        raise dependency_error(error) from error
    async with system_bus() as connection:
        yield Backends(connection, settings)
