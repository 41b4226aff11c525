"""solo5-networkd on a private bus, in a private network namespace."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.contract.forked import Forked
from tests.contract.netns import run
from tests.contract.placed import of_clients
from tests.support.nft_listing import settled

import solo5_systemd
from solo5_systemd.base.descriptors import FD_SETSIZE
from solo5_systemd.base.names import NETWORK_NAMESPACES, TaskName, device_name, network_name
from solo5_systemd.bus.connection import Connection, system_bus
from solo5_systemd.bus.network_client import Networkd
from solo5_systemd.dbus.message_bus import connect
from solo5_systemd.dbus.messages import Message, Variant
from solo5_systemd.network import namespaces
from solo5_systemd.network.lease_files import REPAIRS
from solo5_systemd.network.model import (
    NO_LIMITS,
    Lease,
    Limits,
    NicRequest,
    PortRequest,
    Protocol,
    Request,
    Reservation,
    mac_address,
)
from solo5_systemd.settings.addresses import host_address, ipv4_address

NAME = "org.solo5.Network1"
PATH = "/org/solo5/Network1"
UNTOLD = ("--units", "/nonexistent")
"""Options of a service that hears of no end of a unit, and looks for changes each second instead of each 20."""

POLICY = Path("units/org.solo5.Network1.conf")
_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path={socket}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/> <allow own="*"/> <allow send_destination="*"/> <allow receive_sender="*"/>
    <allow send_requested_reply="true"/> <allow receive_requested_reply="true"/>
  </policy>
  <include>{policy}</include>
  <servicedir>{services}</servicedir>
  <limit name="service_start_timeout">{wait_ms}</limit>
  <limit name="max_pending_service_starts">{pending}</limit>
</busconfig>
"""


class PrivateBus:
    """A private dbus-daemon in place of the system bus, with the package's policy."""

    def __init__(self, directory: Path) -> None:
        self.address = f"unix:path={directory}/bus"
        config = directory / "bus.conf"
        policy = next(
            path
            for path in (Path(__file__).parents[2] / POLICY, Path("/usr/share/dbus-1/system.d", POLICY.name))
            if path.exists()
        )
        self._config, self._socket, self._policy = config, directory / "bus", policy
        self._services = directory / "services"
        self._services.mkdir()
        self._configure(25_000)
        self.open()

    def activate(self, name: str, program: Path, wait_ms: int, pending: int = 512) -> None:
        """Activate *program* for calls to *name*, with a timeout of *wait_ms* milliseconds, *pending* at a time."""
        (self._services / f"{name}.service").write_text(f"[D-BUS Service]\nName={name}\nExec={program}\n")
        self._configure(wait_ms, pending)
        reload = ("call", "org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "ReloadConfig")
        subprocess.run(["busctl", f"--address={self.address}", *reload], check=True)  # SIGHUP would return before

    def _configure(self, wait_ms: int, pending: int = 512) -> None:
        paths = {"socket": self._socket, "policy": self._policy, "services": self._services}
        self._config.write_text(_CONFIG.format(**paths, wait_ms=wait_ms, pending=pending))

    def open(self) -> None:
        self._process = subprocess.Popen(
            ["dbus-daemon", f"--config-file={self._config}", "--nofork", "--nopidfile", "--print-address"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline()
        self._socket.chmod(0o666)

    def close(self) -> None:
        if self._process.returncode is None:
            self._process.terminate()
            self._process.communicate()


class Service:
    """The service process, started and killed by tests."""

    def __init__(self, directory: Path, bus: PrivateBus) -> None:
        self.directory = directory
        self.settings, self.state = directory / "etc", directory / "state"
        self.settings.mkdir()
        self.addresses = directory / "addresses"
        self.units = directory / "units"
        self.units.mkdir()
        self.waiting = directory / "waiting"
        self.waiting.mkdir()
        self.log = directory / "log"
        self.bus = bus
        self._process: subprocess.Popen[bytes] | Forked | None = None

    def start(self, *options: str, change: str = "", within: Sequence[str] = ()) -> None:
        """Start the service.

        Args:
            options: of `placed.py`.
            change: lines of Python that its process executes before it.
            within: a command with which it is executed.
        """
        assert self._process is None
        environment = {
            **os.environ,
            "DBUS_SYSTEM_BUS_ADDRESS": self.bus.address,
            "PYTHONPATH": f"{Path(__file__).parents[2]}:{Path(solo5_systemd.__file__).parents[1]}",
        }
        words = [str(self.directory), *options]
        with self.log.open("ab") as log:
            if change or within:
                command = [*within, sys.executable, "-m", "tests.contract.placed", change, *words]
                self._process = subprocess.Popen(command, env=environment, stderr=log)
            else:
                self._process = Forked(words, environment, log)

    async def ready(self) -> None:
        async with asyncio.timeout(10), self.connected() as connection:
            while not (await connection.call(*_DBUS, "NameHasOwner", "s", [NAME]))[0]:
                assert self._process is not None
                assert self._process.poll() is None, self.log.read_text()
                await asyncio.sleep(0.02)

    async def restart(self, *options: str, change: str = "", within: Sequence[str] = ()) -> None:
        self.start(*options, change=change, within=within)
        await self.ready()

    def configure(self, settings: str) -> None:
        """Write `solo5.toml`."""
        (self.settings / "solo5.toml").write_text(settings)

    @asynccontextmanager
    async def running(
        self, settings: str | None = None, *options: str, change: str = "", within: Sequence[str] = ()
    ) -> "AsyncIterator[Client]":
        """Write `solo5.toml`, start the service, and give a client; at the end, no task waits, and all are released."""
        if settings is not None:
            self.configure(settings)
        await self.restart(*options, change=change, within=within)
        async with self.client() as client:
            yield client
            for fifo in self.waiting.iterdir():
                fifo.unlink()
            for each in await client.reservations():
                await client.drop(each.task)

    def kill(self) -> None:
        """Kill the process with SIGKILL and wait for its end."""
        self.end(signal.SIGKILL)

    def end(self, number: int = signal.SIGTERM) -> int:
        assert self._process is not None
        process, self._process = self._process, None
        process.send_signal(number)
        return process.wait(10)

    def send(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def processor_time(self) -> float:
        """The seconds of processor time of the process."""
        assert self._process is not None
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime of proc(5)

    def low_descriptors(self) -> int:
        """Return the number of descriptors of the process that select(2) can have."""
        assert self._process is not None
        return sum(int(each.name) < FD_SETSIZE for each in Path(f"/proc/{self._process.pid}/fd").iterdir())

    def wait(self, seconds: float) -> int:
        """Wait for the process to exit and return its exit status."""
        assert self._process is not None
        process, self._process = self._process, None
        return process.wait(seconds)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Connection]:
        async with system_bus(self.bus.address) as connection:
            yield connection

    @asynccontextmanager
    async def client(self) -> "AsyncIterator[Client]":
        async with self.connected() as connection:
            yield Client(connection)


P = TypeVar("P", bound="Pid1")


class Pid1:
    """A stand-in for PID 1 on the bus of a service, and for its links.

    Attributes:
        signals: sent so far, each with its unit.
        on_signal: called for a signal.
        processor_time: of each unit, in nanoseconds.
    """

    def __init__(self, service: Service, active: Iterable[str] = ()) -> None:
        self._links = service.units
        self.active = set(active)
        self.jobs: set[str] = set()
        self.calls = 0
        self.signals: list[tuple[str, int]] = []
        self.on_signal: dict[int, Callable[[], None]] = {}
        self.processor_time = 0

    def begin(self, unit: str) -> None:
        """Begin a run."""
        self.active.add(unit)
        new = self._links / "new"
        new.symlink_to("5" * 32)
        new.rename(self._links / f"invocation:{unit}")

    def end(self, unit: str) -> None:
        """End a run."""
        self.active.discard(unit)
        (self._links / f"invocation:{unit}").unlink()

    def answer(self, message: Message) -> Message | None:
        """Reply to ListUnitsByNames, KillUnit and Get."""
        if message.member == "KillUnit":
            unit, _, number = message.body
            self.signals.append((unit, number))
            self.on_signal.get(number, lambda: None)()
            return Message.new_method_return(message)
        if message.member == "Get":
            return Message.new_method_return(message, "v", [Variant("t", self.processor_time)])
        if message.member != "ListUnitsByNames":
            return None
        self.calls += 1
        rows = [
            [name, "", "loaded", state, "", "", "/", name in self.jobs, "", "/"]
            for name in message.body[0]
            for state in ["active" if name in self.active else "inactive"]
        ]
        return Message.new_method_return(message, "a(ssssssouso)", [rows])


class Socket:
    """The FIFO of the socket unit of task `web`, as PID 1 has it."""

    def __init__(self, service: Service) -> None:
        self._path = service.waiting / "web"
        os.mkfifo(self._path)
        self._file = os.fdopen(os.open(self._path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0)

    def taken(self) -> bytes:
        """Return what is in the FIFO, and empty it."""
        return self._file.read(100) or b""  # None: a writer has opened it, and not written yet

    def close(self) -> None:
        if not self._file.closed:
            self._file.close()
            self._path.unlink(missing_ok=True)


@asynccontextmanager
async def pid1(service: Service, manager: P) -> AsyncIterator[P]:
    """Give the bus a stand-in for PID 1."""
    bus = await connect(service.bus.address)
    bus.handler = manager.answer
    await bus.request_name("org.freedesktop.systemd1")
    try:
        yield manager
    finally:
        bus.disconnect()


class Client(Networkd):
    """The engine's client, with short methods for tests."""

    async def reserve(  # type: ignore[override]
        self, task: TaskName, nics: Sequence[NicRequest], ports: Sequence[PortRequest], **more: Any
    ) -> Reservation:
        return await super().reserve(task, Request(nics=tuple(nics), ports=tuple(ports), **more))

    async def preview(  # type: ignore[override]
        self, task: TaskName, nics: Sequence[NicRequest], ports: Sequence[PortRequest]
    ) -> tuple[Reservation, str]:
        return await super().preview(task, Request(nics=tuple(nics), ports=tuple(ports)))

    async def have(
        self, task: str, *ports: PortRequest, nics: Sequence[NicRequest] = (), idle_s: int = 0, idle_stops: bool = False
    ) -> Reservation:
        nics = nics or (nic("service"),)
        reservation = await self.reserve(TaskName(task), nics, ports, idle_s=idle_s, idle_stops=idle_stops)
        await self.attach(TaskName(task))
        return reservation

    async def lease(self, task: str, *ports: PortRequest, network: str = "default", **of: Any) -> Lease:
        """Have a task with one NIC; `of`: as of `nic`."""
        return (await self.have(task, *ports, nics=(nic("service", network, **of),))).leases[0]

    async def reservations(self) -> Sequence[Reservation]:
        return tuple(each.reservation for each in await self.records())

    async def drop(self, task: str) -> None:
        await self.release(TaskName(task))


_DBUS = ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus")


def nic(
    name: str, network: str = "default", ip: str | None = None, mac: str | None = None, limits: Limits = NO_LIMITS
) -> NicRequest:
    return NicRequest(
        nic=device_name(name),
        network=network_name(network),
        ipv4=ipv4_address(ip) if ip else None,
        mac=mac_address(mac) if mac else None,
        limits=limits,
    )


def udp(host_port: int, port: int = 53, host_ip: str | None = None, nic_name: str = "service") -> PortRequest:
    return _port(Protocol.UDP, host_port, port, host_ip, nic_name)


def tcp(host_port: int, port: int = 80, host_ip: str | None = None, nic_name: str = "service") -> PortRequest:
    return _port(Protocol.TCP, host_port, port, host_ip, nic_name)


def _port(protocol: Protocol, host_port: int, port: int, host_ip: str | None, nic_name: str) -> PortRequest:
    return PortRequest(
        nic=device_name(nic_name),
        host_ip=host_address(host_ip) if host_ip else None,
        host_port=host_port,
        port=port,
        protocol=protocol,
    )


def host_state() -> tuple[str, ...]:
    """Return all state of this namespace that the service may change."""
    links = sorted(name for _, name in socket.if_nameindex())
    forwarding = " ".join(file.read_text() for file in sorted(Path("/proc/sys/net/ipv4/conf").glob("*/forwarding")))
    # Without their flags: whether a route is "linkdown" changes by itself.
    lines = [line.split() for line in Path("/proc/thread-self/net/route").read_text().splitlines()[1:]]
    routes = " ".join(f"{link} {to}/{mask} {gateway}" for link, to, gateway, *_, mask, _, _, _ in lines)
    return (*links, settled(run("nft", "--stateless", "list", "ruleset")), routes, forwarding)


@contextmanager
def leaving_nothing(directory: Path, bus: PrivateBus) -> Iterator[Service]:
    """The service, not yet started; in the end, with all tasks released, nothing of it is left."""
    before = host_state()
    service = Service(directory, bus)
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in of_clients(directory):
            patch.setattr(module, name, value)
        yield service
    if service.is_alive:
        service.end()
    for path in Path(NETWORK_NAMESPACES).glob("solo5-*"):  # they have the life of the units, which have none here
        namespaces.remove_task_namespace(str(path))
    assert host_state() == before
    # A request has the life of its task's unit, which has none here.
    files = (path for path in service.state.rglob("*") if path.is_file() and path.name != REPAIRS)
    assert [path for path in files if path.parent.name != "requests"] == []
    assert "Traceback" not in service.log.read_text()


async def until(holds: Callable[[], bool], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - what another process does is looked at, not told
            await asyncio.sleep(0.02)
