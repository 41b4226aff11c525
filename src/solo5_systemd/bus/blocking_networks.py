"""The networks of solo5-networkd for a verb that only reads, which calls the service without an event loop."""

from typing import TYPE_CHECKING

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.event_loop import on_a_loop
from solo5_systemd.base.names import TaskName
from solo5_systemd.bus.network_reader import NetworkReader
from solo5_systemd.bus.peers import Call, RemoteError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from solo5_systemd.bus.blocking import BlockingBus
    from solo5_systemd.network.use import NetworkUse

_SERVICE, _PATH = "org.solo5.Network1", "/org/solo5/Network1"


class BlockingNetworks(NetworkReader):
    """The network service's state, without an event loop."""

    def __init__(self, bus: "Callable[[], BlockingBus]") -> None:
        self._bus = bus

    async def awake_because(self, task: TaskName) -> str:  # noqa: D102 - as in NetworkReader
        try:
            return str(self._bus().call(_SERVICE, Call(_PATH, _SERVICE, "Awake", (task,))))
        except RemoteError:  # it does not run
            return ""

    async def networks(self) -> "Sequence[NetworkUse]":  # noqa: D102 - as in NetworkReader
        from solo5_systemd.network.use import NetworkUse
        from solo5_systemd.settings.records import record

        try:
            networks = self._bus().call(_SERVICE, Call(_PATH, _SERVICE, "Networks"))
        except RemoteError:  # another client finds out why the service was not activated
            return await on_a_loop(_networks())

        class Reply(Fields):
            """A table of pystemd, which returns an empty list for an empty array of any type."""

            def table(self, key: str) -> "Reply":
                return Reply(self.having(key).get(key) or {}, self.path(key))

        return tuple(record(NetworkUse, Reply(row)) for row in dict(networks).values())


async def _networks() -> "Sequence[NetworkUse]":
    from solo5_systemd.bus.connection import system_bus
    from solo5_systemd.bus.network_client import Networkd

    async with system_bus() as connection:
        return await Networkd(connection).networks()
