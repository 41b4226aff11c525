"""Consoles as a log collector uses them: two FIFOs per task, written by the relay."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from tests.machine.conftest import eventually, ok, unit_property
from tests.machine.fifos import Reader

from solo5_systemd.base.names import TaskName, task_name, task_service
from solo5_systemd.bus.connection import system_bus
from solo5_systemd.bus.relay_client import Relay
from solo5_systemd.journal.sync import synchronize
from solo5_systemd.nomad.logs import open_fifo

T = TypeVar("T")

UNLIMITED = ("LogRateLimitIntervalSec=1s", "LogRateLimitBurst=10000000")
"""No rate limit of journald. (An interval of 0 in a unit would mean journald's default.)"""


class Consoles:
    """Creates FIFOs, forwards consoles to them, and drains those that the test has not drained."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._forwarded: list[str] = []
        self._readers: list[Reader] = []

    def reader(self, name: str, stream: str, *, reads: bool = True) -> Reader:
        reader = Reader(self._directory / f"{name}.{stream}.fifo")
        self._readers.append(reader)
        if reads:
            reader.start()
        return reader

    def forward(self, name: str, *, reads: bool = True, namespace: str = "") -> tuple[Reader, Reader]:
        stdout, stderr = (self.reader(name, stream, reads=reads) for stream in ("stdout", "stderr"))
        self.hand_over(name, stdout, stderr, namespace=namespace)
        return stdout, stderr

    def hand_over(self, name: str, stdout: Reader, stderr: Reader, *, namespace: str = "") -> None:
        self._forwarded.append(name)
        called(lambda relay: forward(relay, task_name(name), stdout, stderr, namespace=namespace))

    def drain(self, name: str) -> None:
        eventually(lambda: called(lambda relay: relay.drain(task_name(name))) is None, f"{name} is drained")

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
            reader.path.unlink(missing_ok=True)  # so that the rest is not waited for
        for name in self._forwarded:
            self.drain(name)


def called(call: Callable[[Relay], Awaitable[T]]) -> T:
    async def connected() -> T:
        async with system_bus() as connection:
            return await call(Relay(connection, synchronize))

    return asyncio.run(connected())


async def forward(relay: Relay, task: TaskName, stdout: Reader, stderr: Reader, *, namespace: str = "") -> None:
    since = time.time_ns() // 1000
    fds = [await open_fifo(str(reader.path)) for reader in (stdout, stderr)]
    try:
        await relay.forward(task, task_service(task), since, *fds, namespace=namespace)
    finally:
        for fd in fds:
            os.close(fd)


def numbers(flood: bytes) -> list[int]:
    """Return the numbers in the lines of the guest `flood`."""
    return [int(line.split()[1]) for line in flood.splitlines() if line.startswith(b"line ")]


def relay_pid() -> int:
    return int(unit_property("solo5-relay.service", "MainPID"))


def shell_task(name: str, script: str, *properties: str) -> None:
    """Start a unit with the name of a task whose shell script writes the console.

    One process should write all of it: if a later process ends with its unit before journald has read its lines,
    journald does not find the unit's rate limit.
    """
    options = [f"--property={each}" for each in ("SyslogFacility=local5", "User=solo5", *properties)]
    ok("systemd-run", "--quiet", "--collect", "--unit", task_service(TaskName(name)), *options, "sh", "-c", script)
