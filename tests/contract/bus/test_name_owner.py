"""A signal counts only from the present owner of org.freedesktop.systemd1: the bus checks a rule's sender."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.contract.bus.fake_systemd import FakeSystemd, Report, pid1
from tests.contract.bus.given import PROMPT, UNIT, service, stop

from solo5_systemd.bus.connection import Connection
from solo5_systemd.bus.manager import Manager
from solo5_systemd.bus.peers import MANAGER, MANAGER_PATH, SYSTEMD
from solo5_systemd.dbus.message_bus import MessageBus, connect
from solo5_systemd.dbus.messages import Message, MessageType

JOB = f"{MANAGER_PATH}/job/1"


@pytest.fixture
async def stranger(address: str) -> AsyncIterator[MessageBus]:
    bus = await connect(address)
    yield bus
    bus.disconnect()


async def forge(bus: MessageBus, member: str, signature: str, body: list[object], to: str | None = None) -> None:
    message = Message.new_signal(MANAGER_PATH, MANAGER, member, signature, body)
    message.destination = to
    bus.send(message)
    call = Message(destination="org.freedesktop.DBus", path="/", interface="org.freedesktop.DBus.Peer", member="Ping")
    reply = await bus.call(call)  # the bus has passed on all that came before
    assert reply.message_type is not MessageType.SIGNAL


@pytest.mark.parametrize("alone", [True, False], ids=["to us alone", "to all"])
async def test_a_strangers_jobs_end_does_not_count(
    systemd: FakeSystemd, manager: Manager, connection: Connection, stranger: MessageBus, alone: bool
) -> None:
    systemd.units[UNIT] = service()
    systemd.report = Report.NEVER
    to = (await connection.connect()).unique_name if alone else None
    stopping = asyncio.ensure_future(stop(manager))
    await systemd.until_called("StopUnit")
    await forge(stranger, "JobRemoved", "uoss", [1, JOB, UNIT, "done"], to)
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
        await forge(systemd.bus, "JobRemoved", "uoss", [1, JOB, UNIT, "failed"])
        await manager.states()
        assert not stopping.done()
        later.finish(JOB)
        async with asyncio.timeout(PROMPT):
            await stopping
