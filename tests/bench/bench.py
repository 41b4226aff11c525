"""How fast it is, beside what the machine could do at best, measured in one run: run on a booted machine as root.

Each figure has a floor, and the two are taken in turn, so that a machine that slows down slows down both. The ratio
is what to quote.

| figure | floor |
|---|---|
| `solo5ctl ps`, with 0, 10 and 100 tasks | `python3 -I -c 'import dbus_next.aio'` |
| a start through the engine: one NIC, two ports | that unit over D-Bus, its network unit /usr/bin/true |
| the same with no NIC | the same unit straight over D-Bus |
| the same with 16 at a time, of each the time to its own end | 16 such units at a time |
| a start and its undoing, 16 at a time: time for each pair | start and stop of such a unit |
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass, replace
from ipaddress import IPv4Address
from pathlib import Path

from solo5_systemd.bus.connection import system_bus
from solo5_systemd.bus.manager import Manager
from solo5_systemd.etc import read_settings
from solo5_systemd.names import TaskName
from solo5_systemd.network.plan import Protocol
from solo5_systemd.runtime import Runtime
from solo5_systemd.unit.properties import Property, TransientUnit
from solo5_systemd.unit.start import UnitFiles
from solo5_systemd.wiring import connect
from solo5_systemd.workload import MIB, Publish, Workload

GUESTS = Path("/srv/guests")
AT_ONCE = 16
FLOOR_NETWORK = Path("/run/systemd/system/solo5-bench-network@.service")
FLOOR_UNIT = """\
[Unit]
DefaultDependencies=no
StopWhenUnneeded=yes
[Service]
Type=oneshot
RemainAfterExit=yes
Slice=solo5.slice
ExecStart=/usr/bin/true
ExecStop=/usr/bin/true
"""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Milliseconds: of ours, of the floor's, and ours over the floor's."""

    name: str
    ours: float
    p95: float
    floor: float

    @property
    def ratio(self) -> float:
        return self.ours / self.floor


def figure(name: str, ours: list[float], floor: list[float]) -> Figure:
    return Figure(
        name=name,
        ours=statistics.median(ours) * 1000,
        p95=sorted(ours)[int(len(ours) * 0.95)] * 1000,
        floor=statistics.median(floor) * 1000,
    )


def whole_process(*argv: str) -> float:
    begun = time.perf_counter()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def bench_ps(tasks: int, rounds: int) -> Figure:
    ours, floor = [], []
    for _ in range(rounds):
        ours.append(whole_process("solo5ctl", "ps"))
        floor.append(whole_process("python3", "-I", "-c", "import dbus_next.aio"))
    return figure(f"solo5ctl ps, {tasks} tasks", ours, floor)


async def timed(doing: Awaitable[object]) -> float:
    begun = time.perf_counter()
    await doing
    return time.perf_counter() - begun


def workload(name: str, *, nic: bool, number: int = 0) -> Workload:
    guest = "net.spt" if nic else "sleeper.spt"
    publish: tuple[Publish, ...] = ()
    if nic:
        publish = (
            Publish(host_port=18080 + number, port=80),
            Publish(host_ip=IPv4Address("127.0.0.1"), host_port=17007 + number, port=7, protocol=Protocol.UDP),
        )
    arguments = ("--ipv4={net.service.ipv4_cidr}",) if nic else ()
    return Workload(
        name=TaskName(name), image=str(GUESTS / guest), memory=32 * MIB, publish=publish, arguments=arguments
    )


async def floor_unit(engine: Runtime, name: str, *, nic: bool) -> TransientUnit:
    """The unit that the engine would start, its network unit exchanged for one that does nothing."""
    unit = (await engine.preview(workload(name, nic=nic))).unit
    network = f"solo5-bench-network@{name}.service"
    properties = [
        Property(p.name, p.signature, [network]) if p.name in ("Requires", "After") else p for p in unit.properties
    ]
    if nic:  # a tender without its tap would end at once; what is compared is the start
        sleeper = await engine.preview(workload(name, nic=False))
        properties = [
            next(q for q in sleeper.unit.properties if q.name == p.name)
            if p.name in ("ExecStart", "BindReadOnlyPaths")
            else p
            for p in properties
        ]
    return replace(unit, properties=tuple(properties))


async def bench_start(engine: Runtime, manager: Manager, *, nic: bool, rounds: int) -> Figure:
    ours, floor = [], []
    for i in range(rounds):
        name = f"bench-floor-{i}"
        unit = await floor_unit(engine, name, nic=nic)
        floor.append(await timed(manager.start(unit, UnitFiles())))
        await engine.discard(TaskName(name))
        name = f"bench-ours-{i}"
        ours.append(await timed(engine.start(workload(name, nic=nic))))
        await engine.discard(TaskName(name))
    return figure("start, one NIC and two ports" if nic else "start, no NIC", ours, floor)


async def start_floor(manager: Manager, unit: TransientUnit) -> None:
    await manager.start(unit, UnitFiles())


async def stop_floor(manager: Manager, unit: TransientUnit) -> None:
    """As little as leaves nothing: the unit, and the target that would keep it."""
    await manager.stop(unit.name)
    await manager.stop(str(unit.value("Wants")[0]))  # type: ignore[index] # a list of one
    await manager.forget([unit.name])


async def bench_burst(engine: Runtime, manager: Manager, *, rounds: int) -> Figure:
    ours, floor = [], []
    for _ in range(rounds):
        units = [await floor_unit(engine, f"bench-floor-{i}", nic=True) for i in range(AT_ONCE)]
        floor += await asyncio.gather(*(timed(start_floor(manager, unit)) for unit in units))
        await asyncio.gather(*(stop_floor(manager, unit) for unit in units))
        loads = [workload(f"bench-ours-{i}", nic=True, number=i) for i in range(AT_ONCE)]
        ours += await asyncio.gather(*(timed(engine.start(load)) for load in loads))
        await asyncio.gather(*(engine.discard(load.name) for load in loads))
    return figure(f"start, {AT_ONCE} at a time", ours, floor)


async def bench_pairs(engine: Runtime, manager: Manager, *, pairs: int) -> Figure:
    units = iter([await floor_unit(engine, f"bench-floor-{i}", nic=True) for i in range(pairs)])
    loads = iter([workload(f"bench-ours-{i}", nic=True, number=i) for i in range(pairs)])

    async def floor() -> None:
        for unit in units:
            await start_floor(manager, unit)
            await stop_floor(manager, unit)

    async def ours() -> None:
        for load in loads:
            await engine.start(load)
            await engine.discard(load.name)

    seconds = [await timed(asyncio.gather(*(worker() for _ in range(AT_ONCE)))) / pairs for worker in (floor, ours)]
    return figure(f"start and end, {AT_ONCE} at a time", [seconds[1]], [seconds[0]])


@contextlib.contextmanager
def floor_network() -> Iterator[None]:
    FLOOR_NETWORK.write_text(FLOOR_UNIT)
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    try:
        yield
    finally:
        FLOOR_NETWORK.unlink()
        subprocess.run(["systemctl", "daemon-reload"], check=True)


@contextlib.asynccontextmanager
async def running(engine: Runtime, count: int) -> AsyncIterator[None]:
    names = [f"bench-crowd-{i}" for i in range(count)]
    for name in names:
        await engine.start(workload(name, nic=False))
    try:
        yield
    finally:
        for name in names:
            await engine.discard(TaskName(name))


async def everything(rounds: int, report: Callable[[Figure], None]) -> None:
    async with connect(read_settings()) as engine, system_bus() as connection:
        for tasks in (0, 10, 100):
            async with running(engine, tasks):
                report(await asyncio.to_thread(bench_ps, tasks, rounds))
        with floor_network():
            manager = Manager(connection)
            for nic in (False, True):
                report(await bench_start(engine, manager, nic=nic, rounds=rounds))
            report(await bench_burst(engine, manager, rounds=-(-rounds // AT_ONCE)))
            report(await bench_pairs(engine, manager, pairs=rounds * 5))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    arguments = parser.parse_args()
    figures: list[Figure] = []

    def report(each: Figure) -> None:
        figures.append(each)
        print(f"{each.name:34} {each.ours:9.1f} {each.p95:9.1f} {each.floor:9.1f} {each.ratio:7.2f}", flush=True)

    print(
        f"{'median of ' + str(arguments.rounds) + ' rounds, in ms':34} {'ours':>9} {'p95':>9} {'floor':>9} {'ratio':>7}"
    )
    asyncio.run(everything(arguments.rounds, report))
    if arguments.json:
        rows = [asdict(each) | {"ratio": each.ratio} for each in figures]
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
