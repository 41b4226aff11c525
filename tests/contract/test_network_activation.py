"""Tasks that wait without a process, and are started for their first packet."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator

import pytest
from tests.contract.guest import Guest
from tests.contract.netns import link, run
from tests.contract.netservice import Client, Pid1, Service, nic, pid1, tcp, until
from tests.contract.test_network_sleep import UNIT, WEB, get

from solo5_systemd.network.guest_limits import Limits
from solo5_systemd.network.model import LeaseState, Reservation

WAITS = Limits(idle_s=5, idle_stops=True)


class Socket:
    """The FIFO of a socket unit, as PID 1 has it."""

    def __init__(self, service: Service) -> None:
        self.path = service.waiting / WEB
        os.mkfifo(self.path)
        self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)

    def taken(self) -> bytes:
        """Return what is in the FIFO, and empty it."""
        return os.read(self._fd, 100)

    def close(self) -> None:
        os.close(self._fd)
        self.path.unlink()


@pytest.fixture
async def client(service: Service) -> AsyncIterator[Client]:
    async with service.running() as client:
        yield client


@pytest.fixture
async def manager(service: Service) -> AsyncIterator[Pid1]:
    async with pid1(service) as manager:
        yield manager


@pytest.fixture
def fifo(service: Service) -> Socket:
    return Socket(service)


async def state(client: Client) -> LeaseState | None:
    record = await client.record(WEB)
    return record.state if record else None


async def waiting(client: Client, manager: Pid1) -> Reservation:
    """Run a task, end it, and wait until it waits."""
    reservation = await client.have("web", tcp(8080), nics=[nic("service", limits=WAITS)])
    manager.begin(UNIT)
    async with Guest(reservation.leases[0]) as guest:
        assert await get(str(guest.ip)) == b"HELLO"
    manager.end(UNIT)
    async with asyncio.timeout(5):
        while await state(client) is not LeaseState.WAITING:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.02)
    await until(lambda: not link(reservation.leases[0].tap))
    return reservation


async def test_the_first_packet_starts_the_task_and_is_answered(client: Client, manager: Pid1, fifo: Socket) -> None:
    reservation = await waiting(client, manager)
    lease = reservation.leases[0]
    begun = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        answer = tasks.create_task(get(str(lease.address)))
        await until(lambda: fifo.taken() != b"")
        assert await client.have("web", tcp(8080), nics=[nic("service", limits=WAITS)]) == reservation
        manager.begin(UNIT)
        async with Guest(lease):
            assert await asyncio.wait_for(answer, 5) == b"HELLO"
            assert time.monotonic() - begun < 0.9, "without a retransmission"
            assert fifo.taken() == b"", "once"
    fifo.close()


async def test_without_its_socket_unit_the_network_is_released(client: Client, manager: Pid1, fifo: Socket) -> None:
    await waiting(client, manager)
    fifo.close()
    await until(lambda: "solo5" not in run("nft", "list", "tables"), 30)
    assert await client.record(WEB) is None


async def test_an_idle_task_is_ended(client: Client, manager: Pid1, fifo: Socket) -> None:
    reservation = await client.have("web", nics=[nic("service", limits=WAITS)])
    manager.begin(UNIT)
    async with Guest(reservation.leases[0]):
        await until(lambda: (UNIT, int(signal.SIGTERM)) in manager.signals, 10)
    manager.end(UNIT)
    await until(lambda: not link(reservation.leases[0].tap))
    assert await state(client) is LeaseState.WAITING
    fifo.close()
