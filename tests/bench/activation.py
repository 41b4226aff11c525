"""Tasks that sleep, and tasks without a process: the first byte from outside, and what many of them cost.

The floor of a first byte is a start of the same unit, until its guest's first answer; beside it, systemd's own socket
activation has systemd-socket-proxyd in front of the same guest.
"""

import asyncio
import socket
import time
from contextlib import ExitStack
from pathlib import Path

from tests.bench import processes
from tests.bench.declared import SYSTEM, cleared, masked, reload_ms
from tests.bench.dormant import (
    FIRST,
    NAME,
    NETWORK,
    NO_LIMIT,
    PORT,
    declare,
    declare_network,
    declare_waiting,
    keep,
    state,
    until,
)
from tests.bench.extent import extent
from tests.bench.figures import Figure, Report, times
from tests.bench.scale import killed
from tests.contract.netns import Outside, run

from solo5_systemd.base.names import INVOCATION_LINK, UNITS, DeviceName, NetworkName, TaskName, prepare_service
from solo5_systemd.bus.connection import Connection, system_bus
from solo5_systemd.bus.manager import Manager
from solo5_systemd.bus.network_client import Networkd
from solo5_systemd.network.lease_files import read_lease_record
from solo5_systemd.network.model import LeaseState, NicRequest, Request
from solo5_systemd.networkd.releases import UNIT_CHECK_INTERVAL_S

COUNT = extent(1000, 3)
"""Tasks without a process beside the one that is measured, and tasks that idle."""

SETTLE_S = extent(15.0, 0.5)
ROUNDS = extent(10, 1)
WARM = extent(1, 0)
"""Rounds before these, which are not measured: imports, and modules of the kernel."""

WATCHED_S = extent(60.0, 1.0)
REST_S = extent(UNIT_CHECK_INTERVAL_S + 2.0, 0.0)

PLAIN, PROXY = "bench-plain", "xbench-proxy"
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
        run("systemctl", "start", f"{FIRST}.socket")  # it has not run before, and is started once
        until(lambda: _property(f"{FIRST}.service", "ActiveState") == "active")
        await self._wait_again()
        run("systemctl", "start", f"{PLAIN}.service")
        _write_proxy(PROXY, PROXY_PORT, _address(PLAIN))
        await self._units.reload()
        run("systemctl", "start", f"{PROXY}.socket")
        self._first_byte(PROXY_PORT)
        await self._asleep()
        await self._first_bytes(1)
        await self._crowd()
        await self._first_bytes(COUNT)
        spent = [await self._attached(idle) for idle in (300, 0)]
        self._add(f"CPU of solo5-networkd, {COUNT} awake tasks with IdleSec= (floor: without)", "ms/min", *spent)

    async def _first_bytes(self, crowd: int) -> None:
        """The first byte of a task without a process, of a start, and through systemd's proxy: in turns."""
        ours, starts, proxied, again = [], [], [], 0
        for turn in range(WARM + ROUNDS):
            before = self._retransmitted()
            took = self._first_byte(PORT)
            again += self._retransmitted() - before
            await self._wait_again()
            _stop_plain()
            begun = time.perf_counter()
            await self._units.ensure_started(f"{PLAIN}.service")
            self._first_byte(PLAIN_PORT)
            started = (time.perf_counter() - begun) * 1000
            _stop_plain()
            through = self._first_byte(PROXY_PORT)
            if turn >= WARM:
                ours.append(took)
                starts.append(started)
                proxied.append(through)
        beside = f"of a dormant task beside {crowd}"
        self._report.add(times(f"first byte {beside} (floor: a start)", ours, starts))
        self._report.add(times(f"first byte {beside} (floor: socket-proxyd)", ours, proxied))
        self._add(f"retransmissions for the first byte {beside}", "", again)

    async def _asleep(self) -> None:
        """The first byte of a task that sleeps; its floor is the next one."""
        asleep, awake = [], []
        for turn in range(WARM + ROUNDS * 2):
            await self._networkd.sleep(TaskName(PLAIN))
            await asyncio.sleep(0.05)
            found = self._first_byte(PLAIN_PORT)
            await asyncio.sleep(0.05)
            floor = self._first_byte(PLAIN_PORT)
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
            lines = Path("/proc/thread-self/net/snmp").read_text().splitlines()
        names, values = [line.split() for line in lines if line.startswith("Tcp:")]
        return int(values[names.index("RetransSegs")])

    async def _wait_again(self) -> None:
        """End the first task until its next packet, and wait until the kernel holds that."""
        await self._networkd.sleep(TaskName(FIRST))
        address = _address(FIRST)
        until(lambda: state(FIRST) is LeaseState.WAITING and _is_over(prepare_service(TaskName(FIRST))))
        until(lambda: "lladdr" not in run("ip", "neigh", "show", address))

    async def _crowd(self) -> None:
        """Have many more tasks without a process, as after a boot; and as many sockets of systemd's proxy."""
        names = [NAME.format(number) for number in range(1, COUNT + 1)]
        declare_waiting(names)
        with masked():
            await self._units.reload()
        declared = reload_ms()
        keep(names)
        manager, ours = processes.memory(1), _memory()
        run("systemctl", "start", *(f"{name}.socket" for name in names))
        until(lambda: all(state(name) is LeaseState.WAITING for name in names))
        each = (_memory() - ours) * 1024 / COUNT
        self._add(f"memory of solo5-networkd for each of {COUNT} dormant tasks", "KB", each)
        of_ours = (processes.memory(1) - manager) * 1024 / COUNT
        self._add(f"daemon-reload, {COUNT} dormant tasks (floor: declared only)", "ms", reload_ms(), declared)
        self._add(f"CPU of solo5-networkd, {COUNT} dormant tasks", "ms/min", _spent())
        killed(self._report, "networkd", "Leases", COUNT, "dormant tasks")
        each = (_memory() - ours) * 1024 / COUNT
        self._add(f"memory of solo5-networkd for each of {COUNT} dormant tasks, after its restart", "KB", each)
        for number, name in enumerate(names, 1):
            _write_proxy(f"x{name}", PROXY_PORT + 10000 + number, "192.0.2.1")
        reload_ms()
        manager = processes.memory(1)
        run("systemctl", "start", *(f"x{name}.socket" for name in names))
        proxies = (processes.memory(1) - manager) * 1024 / COUNT
        self._add("memory of PID 1 for each of them (floor: of systemd's proxy)", "KB", of_ours, proxies)
        run("systemctl", "stop", *(f"x{name}.socket" for name in names))

    def _add(self, name: str, unit: str, ours: float, floor: float | None = None) -> None:
        self._report.add(Figure(name=name, unit=unit, ours=ours, floor=floor))

    async def _attached(self, idle_s: int) -> float:
        """Return the milliseconds a minute of solo5-networkd beside attached tasks with this idle time, all silent."""
        nic = NicRequest(nic=DeviceName("service"), network=NetworkName(NETWORK))
        request = Request(nics=(nic,), idle_s=idle_s)
        tasks = [TaskName(f"bench-idle-{number}") for number in range(COUNT)]
        links = [Path(UNITS) / f"{INVOCATION_LINK}solo5-task-{task}.service" for task in tasks]
        try:
            for task, link in zip(tasks, links, strict=True):
                await self._networkd.reserve(task, request)
                await self._networkd.attach(task)
                link.symlink_to("0" * 32)  # for solo5-networkd, the task has a run
            await asyncio.sleep(SETTLE_S)
            return _spent()
        finally:
            for task, link in zip(tasks, links, strict=True):
                link.unlink(missing_ok=True)
                await self._networkd.release(task)
                await self._networkd.forget(task)


def _write_proxy(name: str, port: int, address: str) -> None:
    (SYSTEM / f"{name}.socket").write_text(f"[Socket]\nListenStream={port}\n")
    unit = f"{NO_LIMIT}Requires={PLAIN}.service\nAfter={PLAIN}.service\n"
    (SYSTEM / f"{name}.service").write_text(f"{unit}[Service]\nExecStart={PROXYD} {address}:80\n")


def _stop_plain() -> None:
    """Stop the plain task, and wait until its preparation has cleared up."""
    run("systemctl", "stop", f"{PROXY}.service", f"{PLAIN}.service")
    until(lambda: _is_over(prepare_service(TaskName(PLAIN))))


def _address(name: str) -> str:
    record = read_lease_record(TaskName(name))
    assert record is not None
    return str(record.reservation.leases[0].address)


def _property(unit: str, name: str) -> str:
    return run("systemctl", "show", f"--property={name}", "--value", unit).strip()


def _is_over(unit: str) -> bool:
    return _property(unit, "ActiveState") in ("inactive", "failed")


def _memory() -> float:
    """Return the memory at rest in MB: what is not in use has been returned to the kernel."""
    time.sleep(REST_S)
    return processes.memory(int(_property("solo5-networkd.service", "MainPID")), "Pss_Anon")


def _spent() -> float:
    """Return the milliseconds a minute that solo5-networkd runs."""
    pid, begun = int(_property("solo5-networkd.service", "MainPID")), time.perf_counter()
    before = processes.ran(pid)
    time.sleep(WATCHED_S)
    return (processes.ran(pid) - before) * 60 / (time.perf_counter() - begun)


async def _measure(report: Report) -> None:
    with ExitStack() as stack:
        outside = Outside()
        stack.callback(outside.close)
        outside.ip("route", "add", "default", "via", outside.host)
        stack.enter_context(cleared())
        declare_network()
        declare_waiting([FIRST])
        declare(PLAIN, f"Publish={PLAIN_PORT}:80\nIdleSec=1h\n")
        reload_ms()
        async with system_bus() as connection:
            await Bench(report, outside, connection).measure()


def measure(report: Report, _: object) -> None:
    """Add the figures."""
    asyncio.run(_measure(report))
