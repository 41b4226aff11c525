"""What one task's network costs solo5-networkd beside many.

That is Reserve, Attach and Release, without a unit. The floor is a tap in a namespace that is made, bridged and deleted
by the same messages to the kernel, without leases, rules or D-Bus.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import if_nametoindex

from tests.bench.extent import extent
from tests.bench.figures import Figure, Report, times
from tests.contract.netns import run

from solo5_systemd.base.names import DeviceName, NetworkName, TaskName, task_namespace
from solo5_systemd.bus.connection import system_bus
from solo5_systemd.bus.network_client import Networkd
from solo5_systemd.network import namespaces, taps
from solo5_systemd.network.model import NicRequest, PortRequest, Protocol, Request
from solo5_systemd.network.netlink import NETLINK_ROUTE, NetlinkSocket
from solo5_systemd.network.taps import TaskTap

ROUNDS = extent(40, 2)
CROWDS = extent((1, 100, 1000), (1, 3))
"""Numbers of attached networks of other tasks, ascending."""

NIC = NicRequest(nic=DeviceName("service"), network=NetworkName("wide"))
BRIDGE = "by-hand"
TAP = TaskTap(name="s5-by-hand", mac="02:00:00:00:00:77", namespace=task_namespace(TaskName("by-hand")), bridge=BRIDGE)
SETTINGS = """
[network.wide]
ipv4 = "10.155.0.0/18"
"""
_FILE = Path("/etc/solo5/bench-networks.toml")


async def _attached(report: Report) -> None:
    """Attach and release the network of one task with a published port, beside each crowd, in turns with the floor."""
    _FILE.write_text(SETTINGS)
    others: list[TaskName] = []
    medians: list[float] = []
    async with system_bus() as connection:
        client = Networkd(connection)
        try:
            for crowd in CROWDS:
                while len(others) < crowd:
                    others.append(TaskName(f"bench-other-{len(others)}"))
                    await client.reserve(others[-1], Request(nics=(NIC,)))
                    await client.attach(others[-1])
                with _bridge():
                    ours, floors = await _beside(client)
                name = f"network of a task, reserved, attached and released beside {crowd}"
                report.add(found := times(name, ours, floors, plot="network", tasks=crowd))
                medians.append(found.ours)
        finally:
            for other in others:
                await client.release(other)
                await client.forget(other)
    name = f"the same beside {CROWDS[-1]} (floor: beside {CROWDS[0]})"
    report.add(Figure(name=name, unit="ms", ours=medians[-1], floor=medians[0]))


async def _beside(client: Networkd) -> tuple[list[float], list[float]]:
    """Return the milliseconds of each turn of ours, and of the floor."""
    ours: list[float] = []
    floors: list[float] = []
    task = TaskName("bench-network")
    ports = [PortRequest(nic=NIC.nic, host_port=7654, port=80, protocol=Protocol.TCP)]
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        await client.reserve(task, Request(nics=(NIC,), ports=tuple(ports)))
        await client.attach(task)
        await client.release(task)
        ours.append((time.perf_counter() - begun) * 1000)
        await client.forget(task)
        floors.append(_by_hand())
    return ours, floors


def _by_hand() -> float:
    route = NetlinkSocket(NETLINK_ROUTE)
    try:
        begun = time.perf_counter()
        namespaces.make_task_namespace(TAP.namespace)
        taps.make(route, TAP, uid=0, mtu=1500, alias="")
        taps.delete([if_nametoindex(TAP.name)])
        return (time.perf_counter() - begun) * 1000
    finally:
        route.close()
        namespaces.remove_task_namespace(TAP.namespace)


@contextmanager
def _bridge() -> Iterator[None]:
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "link", "set", BRIDGE, "up")
    try:
        yield
    finally:
        run("ip", "link", "delete", BRIDGE)


def measure(report: Report, _: object) -> None:
    """Add the figures of networks without units."""
    asyncio.run(_attached(report))
