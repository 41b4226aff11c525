"""The implementations of the backends of reads, without an event loop.

Each is imported at its first use: imports are most of the run time of a short verb.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from solo5_systemd.base.event_loop import on_a_loop
from solo5_systemd.bus.lease_reader import NetworkReader
from solo5_systemd.engine.queries import Queries

if TYPE_CHECKING:
    from solo5_systemd.base.names import TaskName
    from solo5_systemd.bus.blocking import BlockingBus
    from solo5_systemd.bus.unit_reader import BlockingReader
    from solo5_systemd.cgroup.cgroupfs import CgroupFs
    from solo5_systemd.journal.console import Journal
    from solo5_systemd.network.model import NetworkOverview
    from solo5_systemd.storage.disk_space import DiskSpace

_SERVICE, _PATH = "org.solo5.Network1", "/org/solo5/Network1"


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


class QueryMachine(KernelReads):
    """The backends of this host for reads, without an event loop; implements `backends.QueryBackends`.

    The connection to the system bus is made at its first use.
    """

    def __init__(self) -> None:
        self._bus: BlockingBus | None = None

    def bus(self) -> "BlockingBus":
        """Return the connection to the system bus.

        Raises:
            HostError: the bus cannot be reached.
        """
        if self._bus is None:
            from solo5_systemd.bus.blocking import BlockingBus

            self._bus = BlockingBus()
        return self._bus

    def close(self) -> None:
        if self._bus is not None:
            self._bus.close()

    @cached_property
    def units(self) -> "BlockingReader":
        from solo5_systemd.bus.unit_reader import BlockingReader

        return BlockingReader(self.bus)

    @cached_property
    def networks(self) -> "BlockingNetworks":
        return BlockingNetworks(self.bus)

    @cached_property
    def console(self) -> "Journal":
        from solo5_systemd.journal.console import Journal

        return Journal(str)  # no task is started


class BlockingNetworks(NetworkReader):
    """The network service's state, without an event loop.

    Args:
        bus: returns the connection to the system bus.
    """

    def __init__(self, bus: "Callable[[], BlockingBus]") -> None:
        self._bus = bus

    async def awake_because(self, task: "TaskName") -> str:
        from solo5_systemd.bus.peers import Call, RemoteError

        try:
            return str(self._bus().call(_SERVICE, Call(_PATH, _SERVICE, "Awake", (task,))))
        except RemoteError:  # it does not run, or is of an earlier release
            return ""

    async def networks(self) -> "Sequence[NetworkOverview]":
        from solo5_systemd.base.decode import Fields
        from solo5_systemd.bus.peers import Call, RemoteError
        from solo5_systemd.network.model import NetworkOverview
        from solo5_systemd.settings.records import record

        try:
            networks = self._bus().call(_SERVICE, Call(_PATH, _SERVICE, "Networks"))
        except RemoteError:
            return await on_a_loop(_networks())  # which finds out why it was not activated

        class Reply(Fields):
            """A table of pystemd, which returns an empty list for an empty array of any type."""

            def table(self, key: str) -> "Reply":
                return Reply(self.having(key).get(key) or {}, self.path(key))

        return tuple(record(NetworkOverview, Reply(row)) for row in dict(networks).values())


async def _networks() -> "Sequence[NetworkOverview]":
    from solo5_systemd.bus.connection import system_bus
    from solo5_systemd.bus.network_client import Networkd

    async with system_bus() as connection:
        return await Networkd(connection).networks()


@contextmanager
def queries() -> Iterator[Queries]:
    """Yield the reading part of the engine on this host, without an event loop."""
    backends = QueryMachine()
    try:
        yield Queries(backends)
    finally:
        backends.close()
