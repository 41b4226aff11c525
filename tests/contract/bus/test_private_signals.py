"""Signals of a local user, which the policy of the system bus allows: unicasts, and others in the name of PID 1."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from tests.contract.bus.fake_systemd import FakeSystemd, Report, pid1
from tests.contract.bus.given import PROMPT, UNIT, service, stop

from solo5_systemd.bus.connection import Connection
from solo5_systemd.bus.manager import Manager
from solo5_systemd.bus.peers import MANAGER, MANAGER_PATH, SYSTEMD
from solo5_systemd.dbus.message_bus import BUS, BUS_PATH, MessageBus, connect
from solo5_systemd.dbus.messages import Message

JOB = f"{MANAGER_PATH}/job/1"
MOST = 16
"""Descriptors of one message; dbus-daemon passes as many."""


@pytest.fixture
async def stranger(address: str) -> AsyncIterator[MessageBus]:
    bus = await connect(address)
    yield bus
    bus.disconnect()


async def forge(
    bus: MessageBus, to: str | None, body: Sequence[object] = (), signature: str = "", fds: Sequence[int] = ()
) -> None:
    """Send JobRemoved, and wait until the bus has passed it on."""
    message = Message.new_signal(MANAGER_PATH, MANAGER, "JobRemoved", signature, list(body))
    message.destination, message.unix_fds = to, list(fds)
    bus.send(message)
    await bus.call(Message(destination=BUS, path="/", interface=f"{BUS}.Peer", member="Ping"))


async def call_bus(connection: Connection, member: str, *body: str) -> None:
    """Call the bus, whose reply comes after all signals so far."""
    await connection.call(BUS, BUS_PATH, BUS, member, "s" * len(body), body)


async def test_descriptors_of_a_strangers_signals_are_closed(
    connection: Connection, stranger: MessageBus, tmp_path: Path
) -> None:
    name = (await connection.connect()).unique_name
    file = tmp_path / "file"
    file.touch()
    for _ in range(20):
        fds = [os.open(file, os.O_RDONLY) for _ in range(MOST)]
        await forge(stranger, name, range(MOST), "h" * MOST, fds)
        for fd in fds:
            os.close(fd)
    await call_bus(connection, "GetId")
    assert [fd for fd in Path("/proc/self/fd").iterdir() if fd.resolve() == file] == []


async def test_a_strangers_signal_reaches_no_listener_and_its_body_is_not_read(
    connection: Connection, stranger: MessageBus
) -> None:
    seen: list[object] = []
    connection.listen((SYSTEMD, MANAGER, "JobRemoved"), seen.append)
    name = (await connection.connect()).unique_name
    await call_bus(connection, "AddMatch", f"type='signal',interface='{MANAGER}'")  # as no part of the program does
    numbers = list(range(10_000))
    for body, signature in ([], ""), (["x"], "s"), ([1, JOB, "u"], "uos"), ([1, JOB, "b", "done"], "uoss"):
        await forge(stranger, name, body, signature)
    await forge(stranger, name, [numbers], "ai")
    await forge(stranger, None, [numbers[:9]], "ai")  # to all: the rule lets it through
    await call_bus(connection, "GetId")
    assert seen == [[numbers[:9]]]


@pytest.mark.parametrize("alone", [True, False], ids=["to us alone", "to all"])
async def test_a_strangers_jobs_end_does_not_count(
    systemd: FakeSystemd, manager: Manager, connection: Connection, stranger: MessageBus, alone: bool
) -> None:
    systemd.units[UNIT] = service()
    systemd.report = Report.NEVER
    stopping = asyncio.ensure_future(stop(manager))
    await systemd.until_called("StopUnit")
    to = (await connection.connect()).unique_name if alone else None
    await forge(stranger, to, [1, JOB, UNIT, "done"], "uoss")
    await manager.states()  # its answer comes after the forged signal
    assert not stopping.done()
    systemd.finish(JOB)
    async with asyncio.timeout(PROMPT):
        await stopping


async def test_the_later_owner_of_the_name_counts_and_the_earlier_does_not(
    systemd: FakeSystemd, manager: Manager, address: str
) -> None:
    """A re-execution of PID 1 opens another connection."""
    systemd.units[UNIT] = service()
    systemd.report = Report.NEVER
    stopping = asyncio.ensure_future(stop(manager))
    await systemd.until_called("StopUnit")
    await systemd.bus.release_name(SYSTEMD)
    async with pid1(address, systemd.units) as later:
        await forge(systemd.bus, None, [1, JOB, UNIT, "failed"], "uoss")
        await manager.states()
        assert not stopping.done()
        later.finish(JOB)
        async with asyncio.timeout(PROMPT):
            await stopping
