"""What statistics cost the driver: a sample a second of each task, from cgroups that are files in memory.

Those of the kernel lack most controllers where the host's are of version 1. `python3 -m tests.bench.sampling WHAT`
prints the milliseconds of processor time that one sample takes a server of its own, whose streams are

* `idle`: the driver's, of guests that wait: such a one's files stay as they are, to the byte;
* `busy`: the driver's, of guests whose processor time goes on;
* `beat`: the same bytes again and again, all at the same moment: the least that gRPC takes.
"""

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import grpc.aio
from google.protobuf.duration_pb2 import Duration
from tests.bench.extent import extent

from solo5_systemd.base.names import TaskName, task_service
from solo5_systemd.cgroup import cgroupfs
from solo5_systemd.cgroup.cgroupfs import CgroupFs
from solo5_systemd.goplugin.rpc import service_handler
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.service import DriverPlugin
from solo5_systemd.nomad.stats import StatsStreams, Ticker
from solo5_systemd.nomad.tasks import TaskEntry
from solo5_systemd.unit.state import ActiveState, UnitState

if TYPE_CHECKING:
    from solo5_systemd.nomad.engine import EngineSession

TASKS = 500
WARM, WATCHED = extent((5.0, 10.0), (0.5, 1.5))
"""Seconds."""

FILES = {
    "memory.current": "17850368\n",
    "memory.peak": "18104320\n",
    "memory.swap.current": "0\n",
    "memory.stat": "anon 151552\nfile 17137664\nkernel 376832\nkernel_stack 32768\npagetables 122880\n"
    "sec_pagetables 0\npercpu 1440\nsock 0\nvmalloc 0\nshmem 16838656\n"
    + "".join(f"workingset_counter_{number} 4567\n" for number in range(47)),
    "cpu.stat": "usage_usec 123456789\nuser_usec 100000000\nsystem_usec 23456789\nnice_usec 0\n"
    "nr_periods 0\nnr_throttled 0\nthrottled_usec 0\nnr_bursts 0\nburst_usec 0\n",
}
"""As long as a running guest's, under Linux 6.12."""

METHOD = "/hashicorp.nomad.plugins.drivers.proto.Driver/TaskStats"


RUN = UnitState(task=TaskName("any"), unit="solo5-task-any.service", active=ActiveState.ACTIVE, log_fields={})


class Session:
    """As much of session, engine and backends as statistics need."""

    def __init__(self, root: Path) -> None:
        self.engine = self.backends = self
        cgroupfs.MOUNT = root
        self.usages = CgroupFs()


class Streams(DriverPlugin):
    def __init__(self, what: str, root: Path) -> None:
        self._what = what
        self._statistics = StatsStreams(cast("EngineSession", Session(root)))
        self._beats = Ticker()

    def task_stats(self, request: wire.TaskStatsRequest) -> AsyncIterator[bytes]:
        never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        known = TaskEntry(
            config=wire.TaskConfig(id=request.task_id),
            state=cast("Any", None),
            run=replace(RUN, control_group=_control_group(request.task_id)),
            network=None,
            ended=cast("Any", never),
            end=cast("Any", never),
        )
        samples = self._statistics.samples(known, 1.0, 2500.0)
        return self._again(samples) if self._what == "beat" else samples

    async def _again(self, samples: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        first = await anext(samples)
        while True:
            yield first
            await self._beats.next(1.0, lambda: None)


def cost(what: str) -> float:
    """Milliseconds of processor time for one sample, by a process of its own."""
    argv = [sys.executable, "-m", "tests.bench.sampling", what]
    return float(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)


def _control_group(task_id: str) -> str:
    return f"/solo5.slice/{task_service(TaskName(task_id))}"


def _make_cgroups(root: Path) -> None:
    (root / "cgroup.procs").touch()
    for task in range(TASKS):
        directory = root / _control_group(str(task)).lstrip("/")
        directory.mkdir(parents=True)
        for name, text in FILES.items():
            (directory / name).write_text(text)


async def _serve(what: str) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        root, socket = Path(directory, "cgroup"), f"unix:{directory}/socket"
        root.mkdir()
        _make_cgroups(root)
        service = wire.DESCRIPTOR.services_by_name["Driver"]
        server = grpc.aio.server(handlers=[service_handler(service, Streams(what, root), lambda _: None)])
        server.add_insecure_port(socket)
        await server.start()
        others = ["-m", "tests.bench.sampling", "work" if what == "busy" else "watch", socket, str(root)]
        watcher = await asyncio.create_subprocess_exec(sys.executable, *others)
        try:
            spent = await _watched()
            assert watcher.returncode is None, "the streams have ended"
            print(spent, flush=True)
        finally:
            watcher.kill()
            await watcher.wait()
    os._exit(0)  # gRPC's own end may take for ever


async def _watched() -> float:
    await asyncio.sleep(WARM)
    before = resource.getrusage(resource.RUSAGE_SELF)
    await asyncio.sleep(WATCHED)
    after = resource.getrusage(resource.RUSAGE_SELF)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent * 1000 / (TASKS * WATCHED)


async def _work(root: Path) -> None:
    """Processor time goes on."""
    groups = [root / _control_group(str(task)).lstrip("/") / "cpu.stat" for task in range(TASKS)]
    while True:
        await asyncio.sleep(1.0)
        spent = time.monotonic_ns() // 1000
        for file in groups:
            file.write_text(FILES["cpu.stat"].replace("123456789", str(spent)))


async def _watch(socket: str, working: Path | None = None) -> None:
    """Have the streams open as an agent does, beside guests that work or wait; it is ended from outside."""
    async with grpc.aio.insecure_channel(socket) as channel:
        call: Any = channel.unary_stream(METHOD, request_serializer=wire.TaskStatsRequest.SerializeToString)
        requests = (
            wire.TaskStatsRequest(task_id=str(task), collection_interval=Duration(seconds=1)) for task in range(TASKS)
        )
        work = [_work(working)] if working else []
        await asyncio.gather(*(_discard(call(request)) for request in requests), *work)


async def _discard(stream: Any) -> None:
    async for _ in stream:
        pass


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["watch", socket, _]:
            asyncio.run(_watch(socket))
        case ["work", socket, root]:
            asyncio.run(_watch(socket, Path(root)))
        case _:
            asyncio.run(_serve(sys.argv[1]))
