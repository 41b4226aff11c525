"""The driver as Nomad's own code calls it: `driver-client bench` holds one plugin, told what to do by lines."""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

GUESTS = "/srv/guests"
CLIENT = "/usr/local/bin/driver-client"
ANSWER = 1 << 24
"""Bytes that the longest answer may have."""

TASK = {
    "name": "guest",
    "job": "bench",
    "config": {
        "unikernel": f"{GUESTS}/net.spt",
        "args": ["--ipv4={net.service.ipv4_cidr}", "--ipv4-gateway={net.service.gateway4}"],
        "ports": ["http/tcp", "dns/udp"],
    },
    "memory": 32,
    "ports": [{"label": "http", "to": 80}, {"label": "dns", "to": 7}],
}
"""One NIC and two ports."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Milliseconds of each operation, seconds of all of them together, and the plugin's process."""

    milliseconds: Sequence[float]
    seconds: float
    pid: int


class Driver:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def do(self, what: str, *, count: int = 0, at_once: int = 1, ping: bool = False) -> Answer:
        """One operation of `driver-client bench`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"do": what, "count": count, "concurrency": at_once, "ping": ping}
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
        config = json.dumps({"image_paths": [GUESTS], "allow_missing_controllers": True})
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            CLIENT, "bench", "--task", str(task), "--config", config, stdin=pipe, stdout=pipe, limit=ANSWER
        )
        try:
            yield Driver(process)
        finally:
            await process.communicate()
