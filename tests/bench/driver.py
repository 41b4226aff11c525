"""The driver as Nomad's own code calls it: `driver-client bench` holds one plugin, told what to do by lines."""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench import processes

GUESTS = "/srv/guests"
CLIENT = "/usr/local/bin/driver-client"
BINARY = "/usr/lib/nomad/plugins/solo5"
SETTINGS = """
[network.default]
ipv4 = "10.153.0.0/18"
[limits]
job = { percent = 100 }
namespace = { percent = 100 }
"""
"""A file of /etc/solo5: a network with room for all tasks, which are of one job."""

ANSWER = 1 << 24
"""Bytes that the longest answer may have."""

CONFIG = {
    "unikernel": f"{GUESTS}/net.spt",
    "args": ["--ipv4={net.service.ipv4_cidr}", "--ipv4-gateway={net.service.gateway4}"],
    "ports": ["http/tcp", "dns/udp"],
}
TASK = {
    "name": "guest",
    "job": "bench",
    "config": CONFIG,
    "memory": 32,
    "ports": [{"label": "http", "to": 80}, {"label": "dns", "to": 7}],
}
"""One NIC and two ports."""

PLUGIN = {"image_paths": [GUESTS], "allow_missing_controllers": True}
"""Configuration of the plugin."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Milliseconds of each operation, seconds of all of them together, and the plugin's process."""

    milliseconds: Sequence[float]
    seconds: float
    pid: int


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Tasks that were started, stopped and removed.

    Attributes:
        milliseconds: of each start; empty if they were not timed.
        seconds: of all of them together.
        cpu: microseconds of CPU time of all of them together, by process or cgroup.
    """

    milliseconds: Sequence[float] = ()
    seconds: float
    cpu: Mapping[str, int]


class Driver:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._grown = 0

    @property
    def grown(self) -> int:
        """How many tasks `grow` has started."""
        return self._grown

    async def starts(self, rounds: int, at_once: int, *, until: str = "") -> Sequence[float]:
        """Start `at_once` tasks and destroy them, `rounds` times; return the milliseconds of each start.

        Args:
            until: what a start lasts until: its reply, or a `ping` that is answered.
        """
        took: list[float] = []
        for _ in range(rounds):
            took += (await self.do("start", count=at_once, until=until)).milliseconds
            await self.do("drop")
        return took

    async def pairs(self, count: int, at_once: int) -> Pairs:
        """Start, stop and destroy `count` tasks."""
        pids = {"plugin": (await self.do("drop")).pid, "client": self._process.pid}
        before = processes.spent(pids)
        took = await self.do("pairs", count=count, at_once=at_once)
        return Pairs(seconds=took.seconds, cpu=processes.difference(processes.spent(pids), before, also={}))

    async def grow(self, count: int) -> None:
        """Start tasks until `count` run."""
        self._grown = max(self._grown, count)
        await self.do("grow", count=self._grown)

    async def clear(self, at_once: int) -> None:
        """Stop and destroy the tasks of `grow`."""
        await self.do("clear", at_once=at_once)
        self._grown = 0

    async def kill_plugin(self) -> None:
        """Kill the plugin with SIGKILL; its tasks continue."""
        await self.do("kill")

    async def relaunch_plugin(self) -> None:
        """Launch the plugin, recover its tasks, and open the streams that an agent has open."""
        await self.do("replace")
        await self.do("recover", at_once=16)
        await self.do("watch")

    async def do(self, what: str, *, count: int = 0, at_once: int = 1, until: str = "") -> Answer:
        """One operation of `driver-client bench`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"do": what, "count": count, "concurrency": at_once, "until": until}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        line = await self._process.stdout.readline()
        if not line.endswith(b"}\n"):  # the error that ends it takes several lines
            raise RuntimeError(f"{what}: {(line + await self._process.stdout.read()).decode()}")
        found = json.loads(line)
        return Answer(milliseconds=found["milliseconds"] or (), seconds=found["seconds"], pid=found["pid"])


@contextlib.asynccontextmanager
async def driver() -> AsyncIterator[Driver]:
    """A driver that is launched and configured, and ends with all its tasks."""
    with tempfile.TemporaryDirectory() as directory:
        task = Path(directory, "task.json")
        task.write_text(json.dumps(TASK))
        words = ("bench", "--task", str(task), "--plugin", BINARY, "--config", json.dumps(PLUGIN))
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(CLIENT, *words, stdin=pipe, stdout=pipe, limit=ANSWER)
        try:
            yield Driver(process)
        finally:
            await process.communicate(b"")  # Python 3.11 closes stdin only after input
