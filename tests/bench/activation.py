"""Tasks that sleep, and tasks without a process: the first byte from outside, and what many of them cost.

In a booted machine, as root:  python3 -m tests.bench.activation

The floor of a first byte is a start of the same unit, until its guest's first answer; beside it, systemd's own socket
activation has systemd-socket-proxyd in front of the same guest.
"""

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.bench import processes
from tests.bench.declared import ETC, masked, reload_ms
from tests.bench.dormant import (
    FIRST,
    NAME,
    NETWORK,
    NO_LIMIT,
    PORT,
    SETTINGS,
    TIMEOUT_S,
    declare,
    declare_network,
    keep,
    state,
    write_declaration,
)
from tests.bench.extent import extent
from tests.bench.figures import Figure, Report, times
from tests.bench.scale import listed
from tests.contract.netns import Outside, run

from solo5_systemd.base.names import INVOCATION_LINK, UNITS, DeviceName, NetworkName, TaskName, prepare_service
from solo5_systemd.bus.connection import Connection, system_bus
from solo5_systemd.bus.manager import Manager
from solo5_systemd.bus.network_client import Networkd
from solo5_systemd.network.lease_files import read_lease_record
from solo5_systemd.network.model import LeaseState, NicRequest, Request
from solo5_systemd.network.remembered_addresses import ADDRESSES

COUNT = extent(int(os.environ.get("BENCH_DORMANT", "1000")), 3)
"""Tasks without a process beside the one that is measured, and tasks that idle."""

IDLE = extent(int(os.environ.get("BENCH_IDLE", "1000")), 3)
SETTLE_S = extent(15.0, 0.5)
ROUNDS = extent(int(os.environ.get("BENCH_ROUNDS", "10")), 1)
WARM = extent(1, 0)
"""Rounds before these, which are not measured: imports, and modules of the kernel."""

WATCHED_S = extent(60.0, 1.0)

SYSTEM = Path("/run/systemd/system")
PLAIN, PROXY = "bench-plain", "bench-proxy"
PLAIN_PORT, PROXY_PORT = 20999, 20998
PROXYD = "/usr/lib/systemd/systemd-socket-proxyd"


class Bench:
    """The tasks of these figures, their clients, and how long they take."""

    def __init__(self, report: Report, outside: Outside, connection: Connection) -> None:
        self._report = report
        self._outside = outside
        self._networkd = Networkd(connection)
        self._units = Manager(connection)

    async def measure(self) -> None:
        """Add all figures."""
        await asyncio.to_thread(_start, f"{FIRST}.socket")  # it has not run before, and is started once
        await self._until(
            lambda: run("systemctl", "show", "--property=ActiveState", "--value", f"{FIRST}.service") == "active\n"
        )
        await self._wait_again()
        await asyncio.to_thread(_start, f"{PLAIN}.service")
        await self._proxy()
        await self._asleep()
        await self._first_bytes(1)
        await self._crowd()
        await self._first_bytes(COUNT)

    # -- the first byte ------------------------------------------------------------------------------------------

    async def _first_bytes(self, crowd: int) -> None:
        """The first byte of a task without a process, of a start, and through systemd's proxy: in turns."""
        ours, starts, proxied, again = [], [], [], 0
        for turn in range(WARM + ROUNDS):
            before = self._retransmitted()
            took = await asyncio.to_thread(self._first_byte, PORT)
            again += self._retransmitted() - before
            await self._wait_again()
            await self._stop_plain()
            begun = time.perf_counter()
            await self._units.ensure_started(f"{PLAIN}.service")
            await asyncio.to_thread(self._first_byte, PLAIN_PORT)
            started = (time.perf_counter() - begun) * 1000
            await self._stop_plain()
            through = await asyncio.to_thread(self._first_byte, PROXY_PORT)
            if turn >= WARM:
                ours.append(took)
                starts.append(started)
                proxied.append(through)
        beside = f"of a dormant task beside {crowd}"
        self._report.add(times(f"first byte {beside} (floor: a start)", ours, starts))
        self._report.add(times(f"first byte {beside} (floor: socket-proxyd)", ours, proxied))
        self._report.add(Figure(name=f"retransmissions for the first byte {beside}", unit="", ours=again))

    async def _asleep(self) -> None:
        """The first byte of a task that sleeps; its floor is the next one."""
        asleep, awake = [], []
        for turn in range(WARM + ROUNDS * 2):
            await self._networkd.sleep(TaskName(PLAIN))
            await asyncio.sleep(0.05)
            found = await asyncio.to_thread(self._first_byte, PLAIN_PORT)
            await asyncio.sleep(0.05)
            floor = await asyncio.to_thread(self._first_byte, PLAIN_PORT)
            if turn >= WARM:
                asleep.append(found)
                awake.append(floor)
        self._report.add(times("first byte of a task that sleeps (floor: awake)", asleep, awake))

    def _first_byte(self, port: int) -> float:
        """Return the milliseconds from the first packet of a client outside until the answer's first byte."""
        with self._outside.entered():
            client = socket.socket(socket.AF_INET)
        with client:
            client.settimeout(30)
            begun = time.perf_counter()
            client.connect((self._outside.host, port))
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert client.recv(1) == b"H"
            return (time.perf_counter() - begun) * 1000

    def _retransmitted(self) -> int:
        with self._outside.entered():
            names, values = [
                line.split()
                for line in Path("/proc/thread-self/net/snmp").read_text().splitlines()
                if line.startswith("Tcp:")
            ]
        return int(values[names.index("RetransSegs")])

    async def _wait_again(self) -> None:
        """End the first task until its next packet, and wait until the kernel holds that."""
        await self._networkd.sleep(TaskName(FIRST))
        record = read_lease_record(TaskName(FIRST))
        assert record is not None
        address = str(record.reservation.leases[0].address)
        await self._until(lambda: state(FIRST) is LeaseState.WAITING and not _active(prepare_service(TaskName(FIRST))))
        await self._until(lambda: "lladdr" not in run("ip", "neigh", "show", address))

    async def _stop_plain(self) -> None:
        """Stop the plain task, and wait until its preparation has cleared up."""
        await asyncio.to_thread(_stop, f"{PROXY}.service", f"{PLAIN}.service")
        await self._until(lambda: not _active(prepare_service(TaskName(PLAIN))))

    async def _proxy(self) -> None:
        """Have the socket unit of systemd's proxy in front of the plain task's guest."""
        record = read_lease_record(TaskName(PLAIN))
        assert record is not None
        _write_proxy(PROXY, PLAIN, PROXY_PORT, str(record.reservation.leases[0].address))
        await self._units.reload()
        await asyncio.to_thread(_start, f"{PROXY}.socket")
        await asyncio.to_thread(self._first_byte, PROXY_PORT)
        memory = processes.memory(_pid(f"{PROXY}.service"))
        self._report.add(Figure(name="memory of socket-proxyd, for each task that runs", unit="MB", ours=memory))

    # -- many ----------------------------------------------------------------------------------------------------

    async def _crowd(self) -> None:
        """Have many more tasks without a process, as after a boot; and as many sockets of systemd's proxy."""
        names = [NAME.format(number) for number in range(1, COUNT + 1)]
        least = await asyncio.to_thread(reload_ms)
        declare(names)
        with masked():
            await self._units.reload()
        declared = await asyncio.to_thread(reload_ms)
        keep(names)
        count, manager, ours = processes.count(), processes.memory(1), self._memory()
        begun = time.perf_counter()
        await asyncio.to_thread(_start, *(f"{name}.socket" for name in names))
        sockets = time.perf_counter() - begun
        await self._until(lambda: all(state(name) is LeaseState.WAITING for name in names))
        waited = time.perf_counter() - begun
        self._add(f"sockets of {COUNT} dormant tasks, from their start until all wait", "s", waited, sockets)
        self._add(f"processes for each of {COUNT} dormant tasks", "", (processes.count() - count) / COUNT)
        each = (self._memory() - ours) * 1024 / COUNT
        self._add(f"memory of solo5-networkd for each of {COUNT} dormant tasks", "KB", each)
        of_ours = (processes.memory(1) - manager) * 1024 / COUNT
        reload = await asyncio.to_thread(reload_ms)
        self._add(f"daemon-reload, {COUNT} dormant tasks (floor: declared only)", "ms", reload, declared)
        self._add(f"daemon-reload, {COUNT} dormant tasks (floor: none)", "ms", reload, least)
        await self._idle(f"{COUNT} dormant tasks")
        begun = time.perf_counter()
        await asyncio.to_thread(run, "systemctl", "kill", "--signal=KILL", "solo5-networkd.service")
        await self._until(lambda: listed("Network", "Leases") >= COUNT)
        self._add(
            f"solo5-networkd, from SIGKILL until it lists {COUNT} dormant tasks", "s", time.perf_counter() - begun
        )
        for number, name in enumerate(names, 1):
            _write_proxy(f"x{name}", PLAIN, PROXY_PORT + 10000 + number, "192.0.2.1")
        await asyncio.to_thread(reload_ms)
        manager = processes.memory(1)
        begun = time.perf_counter()
        await asyncio.to_thread(_start, *(f"x{name}.socket" for name in names))
        self._add(f"start of {COUNT} sockets (floor: of systemd's proxy)", "s", sockets, time.perf_counter() - begun)
        with masked():
            self._add(
                f"daemon-reload, {COUNT} sockets of systemd's proxy more", "ms", await asyncio.to_thread(reload_ms)
            )
        proxies = (processes.memory(1) - manager) * 1024 / COUNT
        self._add("memory of PID 1 for each of them (floor: of systemd's proxy)", "KB", of_ours, proxies)
        await asyncio.to_thread(_stop, *(f"x{name}.socket" for name in names))

    def _add(self, name: str, unit: str, ours: float, floor: float | None = None) -> None:
        self._report.add(Figure(name=name, unit=unit, ours=ours, floor=floor))

    async def _idle(self, what: str) -> None:
        self._add(f"CPU of solo5-networkd, {what}", "ms/min", await self._spent())

    async def _spent(self) -> float:
        pid, begun = _pid("solo5-networkd.service"), time.perf_counter()
        before = processes.ran(pid)
        await asyncio.sleep(WATCHED_S)
        return (processes.ran(pid) - before) * 60 / (time.perf_counter() - begun)

    def _memory(self) -> float:
        return processes.memory(_pid("solo5-networkd.service"))

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not holds():  # noqa: ASYNC110 - of other processes
                await asyncio.sleep(0.02)

    # -- tasks that run ------------------------------------------------------------------------------------------

    async def idle_tasks(self) -> None:
        """The processor time beside many attached networks of tasks with an idle time, which are silent."""
        spent = [await self._attached(idle) for idle in (300, 0)]
        self._add(f"CPU of solo5-networkd, {IDLE} awake tasks with IdleSec= (floor: without)", "ms/min", *spent)

    async def _attached(self, idle_s: int) -> float:
        """Return the milliseconds a minute of solo5-networkd beside attached tasks with this idle time."""
        nic = NicRequest(nic=DeviceName("service"), network=NetworkName(NETWORK))
        request = Request(nics=(nic,), idle_s=idle_s)
        tasks = [TaskName(f"bench-idle-{number}") for number in range(IDLE)]
        links = [Path(UNITS) / f"{INVOCATION_LINK}solo5-task-{task}.service" for task in tasks]
        try:
            for task, link in zip(tasks, links, strict=True):
                await self._networkd.reserve(task, request)
                await self._networkd.attach(task)
                link.symlink_to("0" * 32)  # for solo5-networkd, the task has a run
            await asyncio.sleep(SETTLE_S)
            return await self._spent()
        finally:
            for task, link in zip(tasks, links, strict=True):
                link.unlink(missing_ok=True)
                await self._networkd.release(task)
                await self._networkd.forget(task)


def _write_proxy(name: str, guest: str, port: int, address: str) -> None:
    (SYSTEM / f"{name}.socket").write_text(f"[Socket]\nListenStream={port}\n")
    unit = f"{NO_LIMIT}Requires={guest}.service\nAfter={guest}.service\n"
    (SYSTEM / f"{name}.service").write_text(f"{unit}[Service]\nExecStart={PROXYD} {address}:80\n")


def _active(unit: str) -> bool:
    """Return whether a unit is neither inactive nor failed."""
    return run("systemctl", "show", "--property=ActiveState", "--value", unit).strip() not in ("inactive", "failed")


def _start(*units: str) -> None:
    run("systemctl", "start", *units)


def _stop(*units: str) -> None:
    run("systemctl", "stop", *units)


def _pid(unit: str) -> int:
    return int(run("systemctl", "show", "--property=MainPID", "--value", unit))


@contextmanager
def _declared() -> Iterator[None]:
    """Have the first tasks, and remove all afterwards."""
    declare_network()
    declare([FIRST])
    write_declaration(PLAIN, f"Publish={PLAIN_PORT}:80\nIdleSec=1h\n")
    reload_ms()
    try:
        yield
    finally:
        names = [path.stem for path in ETC.glob("bench*.unikernel")]
        units = [f"{name}.{kind}" for name in names for kind in ("socket", "service")]
        # Some are not loaded, after an error.
        subprocess.run(["systemctl", "stop", *units, f"{PROXY}.socket", f"{PROXY}.service"], stderr=subprocess.DEVNULL)
        for path in (
            SETTINGS,
            *ETC.glob("bench*.unikernel"),
            *ADDRESSES.glob("bench*.json"),
            *SYSTEM.glob("*bench*.socket"),
            *SYSTEM.glob(f"*{PROXY}.service"),
        ):
            path.unlink(missing_ok=True)
        reload_ms()


async def _measure(report: Report) -> None:
    with ExitStack() as stack:
        outside = Outside()
        stack.callback(outside.close)
        outside.ip("route", "add", "default", "via", outside.host)
        stack.enter_context(_declared())
        async with system_bus() as connection:
            bench = Bench(report, outside, connection)
            if COUNT:
                await bench.measure()
            if IDLE:
                await bench.idle_tasks()


def measure(report: Report) -> None:
    """Add the figures."""
    asyncio.run(_measure(report))


if __name__ == "__main__":
    measure(Report())
