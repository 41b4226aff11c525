"""A job's pattern delays no RPC of another task, whatever it costs to search for it."""

import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median

import grpc
import msgpack
import pytest
from tests.fast.nomad.values import task_config
from tests.machine.conftest import GUESTS, Machine, eventually, sh
from tests.machine.plugin import PLUGIN, configure, environment, method

from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.workload import name_of

COSTLY = "(?:(?=.*+)){400}[0-9]{9}"
"""Half a minute for a line of 4 KiB: repeated and possessive, of which libpcre2 counts no steps."""

RATIO = 20
TIMES = 20


class Driver:
    def __init__(self, socket: str) -> None:
        self._channel = grpc.insecure_channel(f"unix:{socket}")
        configure(self._channel, {"image_paths": [str(GUESTS)], "allow_missing_controllers": True})

    def start(self, number: int, image: str, *args: str, **options: object) -> wire.StartTaskResponse:
        config = task_config(memory_mb=32)
        config.id, config.name = task_id(number), f"task{number}"
        config.msgpack_driver_config = msgpack.packb({"unikernel": f"{GUESTS}/{image}", "args": args, **options})
        call = method(self._channel, "StartTask", wire.StartTaskRequest, wire.StartTaskResponse)
        answer = call(wire.StartTaskRequest(task=config), timeout=300)
        assert isinstance(answer, wire.StartTaskResponse)
        return answer

    def inspect(self, number: int) -> float:
        call = method(self._channel, "InspectTask", wire.InspectTaskRequest, wire.InspectTaskResponse)
        return _timed(lambda: call(wire.InspectTaskRequest(task_id=task_id(number)), timeout=60))

    def stop(self, number: int) -> float:
        call = method(self._channel, "StopTask", wire.StopTaskRequest, wire.StopTaskResponse)
        return _timed(lambda: call(wire.StopTaskRequest(task_id=task_id(number), signal="SIGTERM"), timeout=60))

    def destroy(self, number: int) -> None:
        call = method(self._channel, "DestroyTask", wire.DestroyTaskRequest, wire.DestroyTaskResponse)
        call(wire.DestroyTaskRequest(task_id=task_id(number), force=True), timeout=60)

    def close(self) -> None:
        self._channel.close()


def task_id(number: int) -> str:
    return f"3fa85f64-5717-4562-b3fc-2c963f66afa6/task{number}/9c1185a5"


def said(task: str) -> str:
    """Return a task's console; empty before it has one."""
    return sh("solo5ctl", "logs", task).stdout


def _timed(call: Callable[[], object]) -> float:
    begun = time.monotonic()
    call()
    return time.monotonic() - begun


@contextmanager
def plugin() -> Iterator[Driver]:
    with subprocess.Popen([PLUGIN], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout
        driver = Driver(process.stdout.readline().decode().split("|")[3])
        try:
            yield driver
        finally:
            driver.close()
            process.kill()


@pytest.mark.timeout(400)
def test_a_costly_pattern_delays_no_other_task_and_fails_its_own_start(machine: Machine) -> None:
    """RPCs of other tasks during the search take as long as before, by a ratio of medians."""
    quiet, costly = (1, 2, 3, 4), 5
    with plugin() as driver, ThreadPoolExecutor() as pool:
        try:
            for number in quiet:
                driver.start(number, "sleeper.spt")
            inspected = median(driver.inspect(1) for _ in range(TIMES))
            stopped = min(driver.stop(number) for number in (1, 2))
            starting = pool.submit(
                driver.start,
                costly,
                "flood.spt",
                "lines=40",
                "bytes=4096",
                "for=300",
                ready={"console": COSTLY, "deadline": "5m"},
            )
            eventually(lambda: "line 40 " in said(name_of(task_id(costly))), "its lines are in the journal")
            assert median(driver.inspect(3) for _ in range(TIMES)) < RATIO * inspected
            assert min(driver.stop(number) for number in (3, 4)) < RATIO * stopped
            assert not starting.done()
            with pytest.raises(grpc.RpcError, match="was ended after 5 s of processor time"):
                starting.result()
        finally:
            for number in (*quiet, costly):
                driver.destroy(number)
    assert sh("pgrep", "--exact", "grep").returncode == 1
