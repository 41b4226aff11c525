"""solo5-relay on a private bus: replies, errors, and when it exits."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.contract.netservice import PrivateBus

import solo5_systemd
from solo5_systemd.base.errors import HostError, InvalidRequestError
from solo5_systemd.base.names import TaskName, task_service
from solo5_systemd.bus.connection import Connection, system_bus
from solo5_systemd.bus.relay_client import Relay
from solo5_systemd.dbus.interfaces import RELAY1

TASK = TaskName("web")
CALL = (RELAY1.name, RELAY1.path, RELAY1.name)
EXIT_RESTART = 75

_DBUS = ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus")

_FORWARD = f"""
import asyncio, sys
from dbus_next import BusType, Message, MessageFlag
from dbus_next.aio import MessageBus

async def main():
    bus = await MessageBus(bus_type=BusType.SYSTEM, negotiate_unix_fd=True).connect()
    body = ["", "{TASK}", "{task_service(TASK)}", 0, 0, 0]
    await bus.send(Message(
        destination="{RELAY1.name}", path="{RELAY1.path}", interface="{RELAY1.name}", member="Forward",
        signature="sssthh", body=body, unix_fds=[int(sys.argv[1])], flags=MessageFlag.NO_REPLY_EXPECTED,
    ))
    await bus.introspect("org.freedesktop.DBus", "/org/freedesktop/DBus")  # and so the bus has the call

asyncio.run(main())
"""

_RELAY = f"""
import subprocess, sys
from pathlib import Path
from solo5_systemd.dbus import service
from solo5_systemd.relay import main as program

program.STATE_DIRECTORY, program.IDLE_TIMEOUT_S = Path(sys.argv[1]), float(sys.argv[2])
for fd in sys.argv[3:]:
    call = [sys.executable, "-c", {_FORWARD!r}, fd]
    service.notify = lambda text: text == "STOPPING=1" and subprocess.run(call, check=True, pass_fds=[int(fd)])
sys.exit(program.main())
"""
"""The relay; with a descriptor among its arguments, called after STOPPING=1 and before it releases its bus name."""


class Daemon:
    """The relay's process, and connections to it."""

    def __init__(self, bus: PrivateBus, directory: Path) -> None:
        self.bus, self.state = bus, directory / "state"
        self.state.mkdir()
        self._log = directory / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *fds: int, idle: str = "60") -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "DBUS_SYSTEM_BUS_ADDRESS": self.bus.address,
            "PYTHONPATH": str(Path(solo5_systemd.__file__).parents[1]),
        }
        command = [sys.executable, "-c", _RELAY, str(self.state), idle, *map(str, fds)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stderr=log, pass_fds=fds)
        return self.process

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def descriptors(self) -> int:
        assert self.process is not None
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Connection]:
        async with system_bus(self.bus.address) as connection, asyncio.timeout(10):
            while not (await connection.call(*_DBUS, "NameHasOwner", "s", [RELAY1.name]))[0]:
                assert self.process is not None
                assert self.process.poll() is None, self._log.read_text()
                await asyncio.sleep(0.02)
            yield connection

    def client(self, connection: Connection) -> Relay:
        return Relay(connection, _nothing, self.state)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        assert "Traceback" not in self._log.read_text()


async def _nothing(_: TaskName, namespace: str) -> None:
    """Do nothing: there is no journald to synchronize."""


@pytest.fixture
def daemon(bus: PrivateBus, tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(bus, tmp_path)
    yield daemon
    daemon.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe2(os.O_NONBLOCK)
    yield ends
    for end in ends:
        os.close(end)


async def tasks(connection: Connection) -> list[str]:
    (names,) = await connection.call(*CALL, "List")
    return list(names)


async def test_a_task_is_forwarded_until_drain_and_after_a_kill(daemon: Daemon, pipe: tuple[int, int]) -> None:
    daemon.start()
    async with daemon.connected() as connection:
        client = daemon.client(connection)
        await client.forward(TASK, task_service(TASK), 0, pipe[1], pipe[1])
        assert await client.open_tasks() == {TASK}
        daemon.kill()
    daemon.start()
    async with daemon.connected() as connection:
        assert await daemon.client(connection).open_tasks() == frozenset(), "without systemd, there is no fd store"
        assert [path.name for path in daemon.state.iterdir()] == [f"{TASK}.json"]
        assert await daemon.client(connection).drain(TASK) is None
    assert list(daemon.state.iterdir()) == []


async def test_an_invalid_call_is_refused_and_leaves_no_descriptor(daemon: Daemon, pipe: tuple[int, int]) -> None:
    daemon.start()
    async with daemon.connected() as connection:
        before = daemon.descriptors()
        with pytest.raises(InvalidRequestError, match=r"task name '\.\./x' is not usable"):
            await connection.call(*CALL, "Forward", "sssthh", ["", "../x", "u", 0, 0, 0], pipe[1:])
        with pytest.raises(InvalidRequestError, match="journal namespace '../x' is not usable"):
            await connection.call(*CALL, "Forward", "sssthh", ["../x", TASK, "u", 0, 0, 0], pipe[1:])
        with pytest.raises(InvalidRequestError, match="descriptor index 7"):
            await connection.call(*CALL, "Forward", "sssthh", ["", TASK, "u", 0, 0, 7], pipe[1:])
        with pytest.raises(InvalidRequestError, match="Forward was called with signature 'ss': expected 'sssthh'"):
            await connection.call(*CALL, "Forward", "ss", [TASK, "u"])
        with (daemon.state / "x").open("wb") as file, pytest.raises(InvalidRequestError, match="is not a FIFO"):
            await connection.call(*CALL, "Forward", "sssthh", ["", TASK, "u", 0, 0, 0], (file.fileno(),))
        assert daemon.descriptors() == before
        assert await tasks(connection) == []


async def test_descriptors_are_closed_when_the_task_is_drained(daemon: Daemon, pipe: tuple[int, int]) -> None:
    daemon.start()
    async with daemon.connected() as connection:
        before = daemon.descriptors()
        client = daemon.client(connection)
        for _ in range(3):
            await client.forward(TASK, task_service(TASK), 0, pipe[1], pipe[1])
        assert daemon.descriptors() == before + 5  # two FIFOs, two pipes that lead to them, and the record
        assert await client.drain(TASK) is None
        assert daemon.descriptors() == before


async def test_the_interface_is_introspectable(daemon: Daemon) -> None:
    daemon.start()
    async with daemon.connected() as connection:
        introspect = (RELAY1.name, RELAY1.path, "org.freedesktop.DBus.Introspectable", "Introspect")
        (xml,) = await connection.call(*introspect)
    assert '<method name="Forward"><arg name="namespace" type="s" direction="in"/>' in xml
    assert '<arg name="stderr" type="h" direction="in"/></method>' in xml


def test_a_call_while_it_is_stopping_causes_a_restart(daemon: Daemon, pipe: tuple[int, int]) -> None:
    assert daemon.start(pipe[1], idle="0.1").wait(10) == EXIT_RESTART
    assert [path.name for path in daemon.state.iterdir()] == [f"{TASK}.json"]


async def test_drain_of_an_unknown_task_starts_no_relay(bus: PrivateBus, tmp_path: Path) -> None:
    async with system_bus(bus.address) as connection:
        assert await Relay(connection, _nothing, tmp_path).drain(TASK) is None
        bus_itself = ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus")
        assert not (await connection.call(*bus_itself, "NameHasOwner", "s", ["org.solo5.Relay1"]))[0]


async def test_a_relay_that_is_not_installed_is_an_error(
    bus: PrivateBus, tmp_path: Path, pipe: tuple[int, int]
) -> None:
    async with system_bus(bus.address) as connection:
        with pytest.raises(HostError, match="solo5-relay is not installed"):
            await Relay(connection, _nothing, tmp_path).forward(TASK, task_service(TASK), 0, pipe[1], pipe[1])
