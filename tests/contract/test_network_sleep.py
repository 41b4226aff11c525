"""Tasks that sleep without packets, and are woken by the first one."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.contract.guest import Guest
from tests.contract.netservice import Client, Pid1, Service, nic, pid1, tcp

from solo5_systemd.base.names import TaskName
from solo5_systemd.network.guest_limits import Limits

WEB = TaskName("web")
UNIT = "solo5-task-web.service"
STOP, CONT = (UNIT, int(signal.SIGSTOP)), (UNIT, int(signal.SIGCONT))


class Sleeper(Guest):
    """A guest whose tender a stand-in for PID 1 stops and continues."""

    def stop(self) -> None:
        asyncio.get_running_loop().remove_reader(self.descriptor)

    def go_on(self) -> None:
        asyncio.get_running_loop().add_reader(self.descriptor, self._on_readable)


@asynccontextmanager
async def sleeper(client: Client, manager: Pid1, idle_s: int = 0) -> AsyncIterator[Sleeper]:
    """A guest with an open tap and a published port."""
    limits = Limits(idle_s=idle_s)
    reservation = await client.have("web", tcp(8080), nics=[nic("service", limits=limits)])
    manager.begin(UNIT)
    async with Sleeper(reservation.leases[0]) as guest:
        manager.on_signal = {signal.SIGSTOP: guest.stop, signal.SIGCONT: guest.go_on}
        yield guest
    manager.on_signal = {}


@pytest.fixture
async def client(service: Service) -> AsyncIterator[Client]:
    async with service.running() as client:
        yield client


@pytest.fixture
async def manager(service: Service) -> AsyncIterator[Pid1]:
    async with pid1(service) as manager:
        yield manager


async def asleep(client: Client) -> int:
    record = await client.record(WEB)
    assert record is not None
    return record.asleep


async def get(address: str, port: int = 80) -> bytes:
    """Return the answer of a guest to one TCP request."""
    reader, writer = await asyncio.open_connection(address, port)
    writer.write(b"hello")
    answer = await reader.read(100)
    writer.close()
    return answer


async def test_the_first_packet_wakes(client: Client, manager: Pid1) -> None:
    async with sleeper(client, manager) as guest:
        assert await get(str(guest.ip)) == b"HELLO"
        await client.sleep(WEB)
        assert manager.signals == [STOP]
        assert time.time() - await asleep(client) / 1e6 < 5
        begun = time.monotonic()
        assert await get(str(guest.ip)) == b"HELLO"
        assert time.monotonic() - begun < 0.9, "without a retransmission"
        assert manager.signals == [STOP, CONT]
        assert await asleep(client) == 0
        assert await get(str(guest.ip)) == b"HELLO"
        assert manager.signals == [STOP, CONT]
