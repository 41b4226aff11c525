"""solo5-relay: started by D-Bus with the first console to forward, gone when none is left."""

import argparse
import asyncio
import os
import stat
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from weakref import WeakValueDictionary

from solo5_systemd.daemon import fdstore, process
from solo5_systemd.daemon.service import Handler, Service
from solo5_systemd.dbus_api.relay1 import INTERFACE
from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.journal.export import Stream
from solo5_systemd.names import TaskName, log_namespace, task_name
from solo5_systemd.relay.forwarder import Forwarder
from solo5_systemd.relay.state_files import STATE, Records

# The methods of org.solo5.Relay1, on a forwarder.


class Methods:
    """Wire values in, wire values out; one call at a time for one task."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder
        self._turns: WeakValueDictionary[TaskName, asyncio.Lock] = WeakValueDictionary()

    @property
    def handlers(self) -> Mapping[str, Handler]:
        return {
            "Forward": partial(self._forward, ""),
            "ForwardFrom": self._forward,
            "Drain": self._drain,
            "List": self._list,
        }

    async def _forward(
        self, namespace: str, name: str, unit: str, since: int, stdout: int, stderr: int
    ) -> Sequence[object]:
        task = task_name(name)
        if namespace:
            log_namespace(namespace)
        for fd in (stdout, stderr):
            if not stat.S_ISFIFO(os.fstat(fd).st_mode):
                raise InvalidRequestError(f"what the console of task {task} is to be written to is not a FIFO.")
        async with self._turn(task):
            self._forwarder.forward(task, unit, since, {Stream.STDOUT: stdout, Stream.STDERR: stderr}, namespace)
        return []

    async def _drain(self, name: str) -> Sequence[object]:
        task = task_name(name)
        async with self._turn(task):
            return [await self._forwarder.drain(task)]

    async def _list(self) -> Sequence[object]:
        return [list(self._forwarder.tasks)]

    @asynccontextmanager
    async def _turn(self, task: TaskName) -> AsyncIterator[None]:
        lock = self._turns.setdefault(task, asyncio.Lock())
        async with lock:
            yield


IDLE_SECONDS = 10.0


def main() -> int:
    """Serve; the exit status."""
    about = "The console relay of Solo5 unikernels."
    options = process.options("solo5-relay", about, state=STATE, holds="positions", idle=IDLE_SECONDS)
    return process.run(_serve(options.parse_args()))


async def _serve(options: argparse.Namespace) -> bool:
    bus = await process.connected()
    forwarder = Forwarder(Records(options.state))
    forwarder.restore(fdstore.restored())
    service = Service(bus, INTERFACE, Methods(forwarder).handlers, lambda: forwarder.is_needed)
    needed = await process.beside(
        service.serve(options.idle, process.tell_ready, process.tell_stopping),
        process.watchdog(),
        process.until_lost(bus),
        forwarder.run(),
        _tell_gaps(forwarder, service),
    )
    forwarder.close()
    bus.disconnect()
    return needed


async def _tell_gaps(forwarder: Forwarder, service: Service) -> None:
    """For ever."""
    while True:
        gap = await forwarder.gaps.get()
        await service.tell("Gap", [gap.task, gap.lines])
