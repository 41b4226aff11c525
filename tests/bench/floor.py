"""The least that a start can take: the unit of such a task, its network unit exchanged for one that runs /usr/bin/true.

It is started straight through D-Bus, from StartTransientUnit until its job is removed.
"""

import asyncio
import contextlib
import itertools
import os
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

from tests.bench.driver import GUESTS

from solo5_systemd.bus.connection import system_bus
from solo5_systemd.bus.jobs import Jobs
from solo5_systemd.bus.manager import Manager
from solo5_systemd.dbus_api.messages import Variant
from solo5_systemd.engine.backends import Images, Users
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.names import TaskName
from solo5_systemd.network.model import Protocol
from solo5_systemd.nomad.workload.convert import SHARED_SLICE
from solo5_systemd.settings.files import read_settings
from solo5_systemd.unit.properties import Property, TransientUnit
from solo5_systemd.wiring import machine
from solo5_systemd.workload import MIB, Publish, Workload

NETWORK = Path("/run/systemd/system/solo5-bench-network@.service")
NETWORK_UNIT = """\
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
SETTINGS = Path("/etc/solo5/bench.toml")
ROOMY = '[network.default]\nipv4 = "10.153.0.0/22"\n'
"""Addresses for a thousand guests."""


class Floor:
    """Starts and stops such units; each call returns milliseconds."""

    def __init__(self, engine: Runtime, images: Images, users: Users, jobs: Jobs, manager: Manager) -> None:
        self._engine = engine
        self._images = images
        self._users = users
        self._held: dict[TaskName, int] = {}
        self._jobs = jobs
        self._manager = manager
        self._running: list[TransientUnit] = []
        self._names = (f"bench-floor-{number}" for number in itertools.count())  # of one, its network may still stop

    async def start(self, count: int) -> Sequence[float]:
        """So many at the same time."""
        self._running = await self._units(count)
        return await asyncio.gather(*(_timed(self._start(unit)) for unit in self._running))

    async def drop(self) -> None:
        """Stop those of the last start."""
        await asyncio.gather(*map(self._stop, self._running))
        await self._free_users()

    async def pairs(self, count: int, at_once: int) -> float:
        """Start and stop so many; the seconds that it took in all."""
        units = iter(await self._units(count))

        async def work() -> None:
            for unit in units:
                await self._start(unit)
                await self._stop(unit)

        seconds = await _timed(asyncio.gather(*(work() for _ in range(at_once)))) / 1000
        await self._free_users()
        return seconds

    async def listing(self) -> float:
        """The seconds that PID 1, the bus and its library take to list every task's unit, and nothing of them."""
        return await _timed(self._manager.names()) / 1000

    async def _start(self, unit: TransientUnit) -> None:
        properties = [[p.name, Variant(p.signature, _lists(p.value))] for p in unit.properties]
        result = await self._jobs.run("StartTransientUnit", "ssa(sv)a(sa(sv))", [unit.name, "fail", properties, []])
        assert result == "done", f"{unit.name}: {result}"

    async def _stop(self, unit: TransientUnit) -> None:
        """As little as leaves nothing: the unit, and the target that would keep it."""
        await self._manager.stop(unit.name)
        await self._manager.stop(str(unit.value("Wants")[0]))  # type: ignore[index] # a list of one
        await self._manager.reset_failed([unit.name])

    async def _units(self, count: int) -> list[TransientUnit]:
        return [await self._unit(name) for name in itertools.islice(self._names, count)]

    async def _unit(self, name: str) -> TransientUnit:
        unit = (await self._engine.preview(_workload(name, "net.spt"))).unit
        # A tender without its tap would end at once, so another guest runs; what is compared is the start.
        workload = _workload(name, "sleeper.spt")
        await self._images.take(workload.image, (), None)  # a preview leaves the store as it is
        sleeper = (await self._engine.preview(workload)).unit
        network = [f"solo5-bench-network@{name}.service"]
        other = {
            "User": str(await self._user(TaskName(name))),
            "Requires": network,
            "After": network,
            "ExecStart": sleeper.value("ExecStart"),
            "BindReadOnlyPaths": sleeper.value("BindReadOnlyPaths"),
            "NoExecPaths": sleeper.value("NoExecPaths"),
        }
        properties = [Property(p.name, p.signature, other.get(p.name, p.value)) for p in unit.properties]
        return replace(unit, properties=tuple(properties))

    async def _user(self, name: TaskName) -> int:
        """Allocate the user without which PID 1 refuses the unit, before anything is timed."""
        held = await self._users.acquire(name)
        self._held[name] = held.descriptor
        return held.uid

    async def _free_users(self) -> None:
        while self._held:
            name, descriptor = self._held.popitem()
            os.close(descriptor)
            await self._users.release(name)


@contextlib.asynccontextmanager
async def floor() -> AsyncIterator[Floor]:
    with _files({NETWORK: NETWORK_UNIT, SETTINGS: ROOMY}):
        async with machine(read_settings) as backends, system_bus() as connection:
            yield Floor(Runtime(backends), backends.images, backends.users, Jobs(connection), Manager(connection))


def whole_process(*argv: str) -> float:
    """Milliseconds from its start to its end."""
    begun = time.perf_counter()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - begun) * 1000


def _workload(name: str, guest: str) -> Workload:
    """What the driver makes of the task that it is measured with, as far as a unit shows it."""
    publish = (
        Publish(host_port=18080, port=80),
        Publish(host_ip=IPv4Address("127.0.0.1"), host_port=17007, port=7, protocol=Protocol.UDP),
    )
    return Workload(
        name=TaskName(name),
        image=f"{GUESTS}/{guest}",
        arguments=("--ipv4={net.service.ipv4_cidr}",) if guest == "net.spt" else (),
        memory=32 * MIB,
        publish=publish if guest == "net.spt" else (),
        slice=SHARED_SLICE,
        log_fields=(("NOMAD_JOB_NAME", "bench"), ("NOMAD_TASK_NAME", name)),
    )


@contextlib.contextmanager
def _files(contents: Mapping[Path, str]) -> Iterator[None]:
    """The machine's configuration with these files."""
    for path, text in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    try:
        yield
    finally:
        for path in contents:
            path.unlink()
        subprocess.run(["systemctl", "daemon-reload"], check=True)


async def _timed(doing: Awaitable[object]) -> float:
    begun = time.perf_counter()
    await doing
    return (time.perf_counter() - begun) * 1000


def _lists(value: object) -> object:
    """D-Bus structs as the library wants them."""
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value
