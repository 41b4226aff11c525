"""What one task's network costs solo5-networkd beside many: Reserve, Attach and Release, without a unit.

The floor is a tap that is made, bridged and deleted by the same messages to the kernel, without leases, rules or D-Bus.
"""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from socket import if_nametoindex

from tests.bench.driver import CONFIG, OURS, TASK, Driver, Plugin, driver
from tests.bench.figures import Report, times
from tests.contract.netns import run

from solo5_systemd.bus.connection import system_bus
from solo5_systemd.bus.network_client import Networkd
from solo5_systemd.names import DeviceName, TaskName
from solo5_systemd.network.model import NicRequest, PortRequest, Protocol
from solo5_systemd.network.taps import BridgePort, Taps, delete

ROUNDS = 40
NIC = NicRequest(nic=DeviceName("service"))
BRIDGE = "by-hand"
PORT = BridgePort(mac="02:00:00:00:00:77", isolated=False)
APART = "apart"
"""A network whose tasks have namespaces of their own; see `SETTINGS`."""

SETTINGS = f'[network.{APART}]\nipv4 = "10.154.0.0/18"\ntask_namespace = true\n'
"""A file of /etc/solo5."""


async def attached(report: Report, tasks: int) -> None:
    """Attach and release the network of one task with a published port, beside so many, in turns with the floor."""
    ours: list[float] = []
    floors: list[float] = []
    async with system_bus() as connection:
        client, task = Networkd(connection), TaskName("bench-network")
        ports = [PortRequest(nic=NIC.nic, host_port=7654, port=80, protocol=Protocol.TCP)]
        with _bridge():
            for _ in range(ROUNDS):
                begun = time.perf_counter()
                await client.reserve(task, [NIC], ports)
                await client.attach(task)
                await client.release(task)
                ours.append((time.perf_counter() - begun) * 1000)
                await client.forget(task)
                floors.append(_by_hand())
    name = f"network of a task, reserved, attached and released beside {tasks}"
    report.add(times(name, ours, floors, plot="network", tasks=tasks))


def _by_hand() -> float:
    taps = Taps()
    try:
        begun = time.perf_counter()
        taps.make("by-hand-tap", uid=0, bridge=BRIDGE, mtu=1500, alias="", port=PORT)
        delete([if_nametoindex("by-hand-tap")])
        return (time.perf_counter() - begun) * 1000
    finally:
        taps.close()


@contextmanager
def _bridge() -> Iterator[None]:
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "link", "set", BRIDGE, "up")
    try:
        yield
    finally:
        run("ip", "link", "delete", BRIDGE)


async def namespaces(report: Report, rounds: int) -> None:
    """Starts and pairs of tasks with a network namespace of their own, in turns with those without."""
    ours: list[float] = []
    floors: list[float] = []
    rates: tuple[list[float], list[float]] = ([], [])
    async with driver(OURS) as without, _apart() as apart:
        for subject in (without, apart):
            await subject.starts(2, 4)
        for _ in range(4):
            for subject, single, rate in ((without, floors, rates[1]), (apart, ours, rates[0])):
                single += await subject.starts(max(3, rounds // 4), 1)
                took = await subject.pairs(48, 16)
                rate.append(48 / took.seconds)
    report.add(times("StartTask with a namespace of its own (floor: without)", ours, floors))
    report.add(times("pairs with a namespace of their own, 16 at a time (floor: without)", *rates, unit="/s"))


@asynccontextmanager
async def _apart() -> AsyncIterator[Driver]:
    config: dict[str, object] = {**CONFIG, "nic": {"service": {"network": APART}}}
    plugin = Plugin(config=OURS.config, task=TASK | {"config": config, "job": "apart"})
    async with driver(plugin) as subject:
        yield subject
