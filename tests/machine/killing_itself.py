"""The engine in a process that ends itself with SIGKILL at a chosen step: `python3 -m tests.machine.killing_itself …`.

A step is one call of a backend; the engine and its backends are those of the package, and know nothing of it. What was
done until then, one name a line, is written to stdout.
"""

import asyncio
import inspect
import json
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import Any, cast

from tests.machine.conftest import GUESTS

from solo5_systemd.base.names import DeviceName, TaskName, task_service
from solo5_systemd.bus.relay_client import Relay
from solo5_systemd.engine.backends import Backends, host_backends
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.nomad.logs import open_fifo
from solo5_systemd.settings import files
from solo5_systemd.storage.model import DiskRequest
from solo5_systemd.task.workload import MIB, Publish, Workload

UNDER_WAY = 0.002
"""Seconds after which a call has been sent, and is being acted upon or just has been."""


class Moment(StrEnum):
    """Of a step. Before one is after the last one."""

    DURING = "during"
    AFTER = "after"


@dataclass(frozen=True, kw_only=True)
class Life:
    """A task with one of everything that can be left behind: a NIC, a port, a disk, and a console that is relayed."""

    name: str
    port: int
    disk: str
    stdout: str
    stderr: str

    @property
    def task(self) -> TaskName:
        return TaskName(self.name)

    @property
    def workload(self) -> Workload:
        return Workload(
            name=self.task,
            image=str(GUESTS / "netdisk.spt"),
            arguments=("--ipv4={net.service.ipv4_cidr}",),
            memory=16 * MIB,
            publish=(Publish(host_port=self.port, port=7),),
            disks=(DiskRequest(disk=DeviceName("storage"), path=self.disk),),
        )

    async def start(self, engine: Runtime, relay: Relay) -> None:
        ends = [await open_fifo(self.stdout), await open_fifo(self.stderr)]
        try:
            await relay.forward(self.task, task_service(self.task), time.time_ns() // 1000, *ends)
        finally:
            for end in ends:
                os.close(end)
        await engine.start(self.workload)

    async def stop(self, engine: Runtime, relay: Relay) -> None:
        await engine.discard(self.task)
        await relay.drain(self.task)


class Steps:
    """Counts calls, and ends this process at the one that was chosen; None: at none."""

    def __init__(self, number: int | None, moment: Moment) -> None:
        self.taken: list[str] = []
        self._number = number
        self._moment = moment

    async def call(self, name: str, call: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
        number = self._begin(name)
        if number == self._number and self._moment is Moment.DURING:
            await asyncio.wait([asyncio.ensure_future(call(*args, **options))], timeout=UNDER_WAY)
            _die()
        result = await call(*args, **options)
        self._end(number)
        return result

    async def stream(
        self, name: str, stream: Callable[..., AsyncGenerator[Any, None]], *args: Any, **options: Any
    ) -> AsyncGenerator[Any, None]:
        """A stream is a step until its first item."""
        number = self._begin(name)
        async with aclosing(stream(*args, **options)) as items:
            async for item in items:
                self._end(number)
                yield item

    def _begin(self, name: str) -> int:
        self.taken.append(name)
        print(name, flush=True)
        return len(self.taken) - 1

    def _end(self, number: int) -> None:
        if number == self._number:
            _die()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Stepwise:
    """A backend, or all of them, whose every awaited call is a step."""

    def __init__(self, steps: Steps, inner: object, path: str = "") -> None:
        self._steps = steps
        self._inner = inner
        self._path = path

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        path = f"{self._path}.{name}".removeprefix(".")
        if inspect.isasyncgenfunction(found):
            return partial(self._steps.stream, path, found)
        if inspect.iscoroutinefunction(found):
            return partial(self._steps.call, path, found)
        return found if callable(found) else Stepwise(self._steps, found, path)


async def live(act: str, life: Life, number: int | None, moment: Moment) -> None:
    async with host_backends(files.read_settings) as machine:
        stepwise = Stepwise(Steps(number, moment), machine)
        engine = Runtime(cast(Backends, stepwise))
        await (life.start if act == "start" else life.stop)(engine, stepwise.relay)


def order(act: str, life: Life, number: int | None, moment: Moment) -> str:
    """What this program is told."""
    return json.dumps({"act": act, "life": asdict(life), "number": number, "moment": moment})


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    asyncio.run(live(told["act"], Life(**told["life"]), told["number"], Moment(told["moment"])))
