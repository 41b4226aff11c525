"""The calls of Nomad's agent to the driver, by short names."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from google.protobuf.duration_pb2 import Duration
from tests.fast.nomad.values import TASK_ID, packed, task_config

from solo5_systemd.nomad.base_plugin import BasePlugin
from solo5_systemd.nomad.events import SETTLE_TIMEOUT_S
from solo5_systemd.nomad.proto import base_pb2 as base
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.service import DriverPlugin


class Agent:
    def __init__(self, background: asyncio.TaskGroup) -> None:
        self.base = BasePlugin("1.2.3")
        self.driver = DriverPlugin(self.base, background)

    async def configure(self, **keys: object) -> None:
        await self.base.set_config(base.SetConfigRequest(msgpack_config=packed(**keys)))

    def fingerprints(self) -> AsyncGenerator[wire.FingerprintResponse, None]:
        return self.driver.fingerprint(wire.FingerprintRequest())

    async def start(self, task: wire.TaskConfig) -> wire.StartTaskResponse:
        return await self.driver.start_task(wire.StartTaskRequest(task=task))

    async def recover(self, handle: wire.TaskHandle) -> None:
        await self.driver.recover_task(wire.RecoverTaskRequest(handle=handle))

    async def wait(self, task_id: str = TASK_ID) -> wire.WaitTaskResponse:
        return await self.driver.wait_task(wire.WaitTaskRequest(task_id=task_id))

    async def stop(self, task_id: str = TASK_ID, *, signal: str = "", seconds: int = 5) -> None:
        await self.driver.stop_task(
            wire.StopTaskRequest(task_id=task_id, signal=signal, timeout=Duration(seconds=seconds))
        )

    async def destroy(self, task_id: str = TASK_ID, *, force: bool = True) -> None:
        await self.driver.destroy_task(wire.DestroyTaskRequest(task_id=task_id, force=force))

    async def signal(self, signal: str, task_id: str = TASK_ID) -> None:
        await self.driver.signal_task(wire.SignalTaskRequest(task_id=task_id, signal=signal))

    async def inspect(self, task_id: str = TASK_ID) -> wire.InspectTaskResponse:
        return await self.driver.inspect_task(wire.InspectTaskRequest(task_id=task_id))

    async def messages(self) -> list[str]:
        """The events that are waiting, in order; the next call gives later ones."""
        found: list[str] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * SETTLE_TIMEOUT_S):
                async for event in self.driver.events.stream():
                    found += [event.message]
        return found


@asynccontextmanager
async def agent(**plugin: object) -> AsyncGenerator[Agent, None]:
    """An agent and a plugin of its own, configured with `plugin`; at the end the plugin dies, and its tasks go on."""
    grouped: asyncio.Future[asyncio.TaskGroup] = asyncio.get_running_loop().create_future()
    living = asyncio.ensure_future(_live(grouped))
    nomad = Agent(await grouped)
    if plugin:
        await nomad.configure(**plugin)
    try:
        yield nomad
    finally:
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)


@asynccontextmanager
async def agent_of_a_task() -> AsyncGenerator[Agent, None]:
    """An agent that has started a task."""
    async with agent() as nomad:
        await nomad.start(task_config())
        yield nomad


async def _live(grouped: "asyncio.Future[asyncio.TaskGroup]") -> None:
    async with asyncio.TaskGroup() as group:
        grouped.set_result(group)
        await asyncio.Event().wait()
