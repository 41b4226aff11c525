"""The idle exit of the service: no call is lost, and no lease is left without the service."""

import asyncio
import random
from collections.abc import Awaitable, Callable

from tests.contract.netservice import NAME, PATH, Service, nic, udp

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import TaskName

TASK = TaskName("a")
REQUEST = (TASK, (nic("service"),), (udp(5353),))
EXIT_RESTART = 75
SOON = ("--idle", "0.1")

_CALLED_ON_THE_WAY_OUT = """
import subprocess, sys
from solo5_systemd.dbus import service
from solo5_systemd.networkd import main as program

def notify(message):
    if message == "STOPPING=1":
        subprocess.run({command!r}, check=True)

service.notify = notify
sys.exit(program.main())
"""
"""The service, with a call between STOPPING=1 and the release of its bus name."""


def _called_on_the_way_out(service: Service, *call: str) -> int:
    """Run the service with such a call and return its exit status."""
    bus = ("busctl", f"--address={service.bus.address}", "--expect-reply=no", "call", NAME, PATH, NAME)
    service.start(*SOON, program=("-c", _CALLED_ON_THE_WAY_OUT.format(command=[*bus, *call])))
    return service.wait(10)


async def test_what_is_given_on_the_way_out_is_looked_after_by_the_next(service: Service) -> None:
    reserve = ("Reserve", "sa{sv}", TASK, "1", "nics", "aa{sv}", "1", "1", "nic", "s", "service")
    assert await asyncio.to_thread(_called_on_the_way_out, service, *reserve) == EXIT_RESTART
    async with service.running(None, *SOON) as client:
        assert await client.reservation(TASK) is not None
        await client.attach(TASK)


async def test_a_release_during_the_exit_needs_no_restart(service: Service) -> None:
    assert await asyncio.to_thread(_called_on_the_way_out, service, "Release", "s", TASK) == 0


async def test_calls_around_each_exit_are_answered_and_leave_nothing(service: Service) -> None:
    """The calls arrive shortly before or after the exit, some of them during it."""
    chance = random.Random(5)

    async def insist(call: Callable[[], Awaitable[object]]) -> None:
        """Retry, in place of D-Bus activation: a call to an exited service waits for its next start."""
        while True:
            try:
                await call()
            except HostError:
                leases = len(await client.reservations())
                assert await asyncio.to_thread(service.wait, 5) == (EXIT_RESTART if leases else 0)
                await service.restart(*SOON)
            else:
                return

    await service.restart(*SOON)
    async with service.client() as client:
        for _ in range(6):
            await asyncio.sleep(0.1 + chance.uniform(-0.004, 0.004))
            await insist(lambda: client.reserve(*REQUEST))
            await insist(lambda: client.attach(TASK))
            await insist(lambda: client.release(TASK))
    assert await asyncio.to_thread(service.wait, 5) == 0
