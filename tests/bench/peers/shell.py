"""What is started from a shell: `solo5ctl`, a tender by hand, `systemd-run`. A start lasts until its command ends."""

import asyncio
import itertools
import select
import shlex
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.bench import processes
from tests.bench.driver import GUESTS
from tests.bench.peers.subjects import ADDRESS, AT_ONCE, Peer, Subject

BY_HAND = str(Path(__file__).with_name("by_hand.sh"))
FIRST_PORT = 30000
ANSWER_TIMEOUT_S = 10.0

Command = Callable[[int], Sequence[str]]

LEFT_OUT = {"Description", "Type", "ExecStart", "Wants", "Requires", "After", "User"} | {
    "SyslogIdentifier", "LogExtraFields", "NetworkNamespacePath",
}  # fmt: skip
"""What names our task, its other units, its user and the namespace of its taps; everything else is its confinement."""

SPELT = {
    "RestrictNamespaces=0x4000000": "RestrictNamespaces=uts",
    "PrivateTmp=disconnected": "PrivateTmpEx=disconnected",
    "ProtectControlGroups=strict": "ProtectControlGroupsEx=strict",
}
"""Lines that systemd-run reads in another spelling only."""


class Shell:
    """Tasks that two commands start and stop, each with the task's published port as its number."""

    def __init__(self, start: Command, stop: Command) -> None:
        self._start = start
        self._stop = stop
        self._ports = itertools.count(FIRST_PORT)
        self._latest = 0
        self._crowd: list[int] = []

    async def start(self, until: str = "") -> float:
        self._latest = next(self._ports)
        begun = time.perf_counter()
        await executed(self._start(self._latest))
        if until == "port":
            await asyncio.to_thread(answered, self._latest)
        return (time.perf_counter() - begun) * 1000

    async def stop(self) -> float:
        begun = time.perf_counter()
        await executed(self._stop(self._latest))
        return (time.perf_counter() - begun) * 1000

    async def pairs(self, count: int) -> float:
        begun = time.perf_counter()
        await self._several(itertools.islice(self._ports, count), self._start, self._stop)
        return time.perf_counter() - begun

    async def grow(self, count: int) -> None:
        more = list(itertools.islice(self._ports, count - len(self._crowd)))
        self._crowd += more
        await self._several(more, self._start)

    async def clear(self) -> None:
        await self._several(self._crowd, self._stop)
        self._crowd = []

    def harness(self) -> set[int]:
        return set()

    async def _several(self, ports: Iterable[int], *commands: Command) -> None:
        places = asyncio.Semaphore(AT_ONCE)

        async def one(port: int) -> None:
            async with places:
                for command in commands:
                    await executed(command(port))

        async with asyncio.TaskGroup() as group:
            for port in ports:
                group.create_task(one(port))


async def executed(argv: Sequence[str]) -> str:
    """Run a command, and return its output.

    Raises:
        RuntimeError: it failed; its stderr is in the message.
    """
    null, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdin=null, stdout=pipe, stderr=pipe)
    printed, errors = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{shlex.join(argv)[:80]} … exits with {process.returncode}: {errors.decode()[-300:]}")
    return printed.decode()


def answered(port: int) -> None:
    """Send a datagram every millisecond until one is answered, each from a port of its own.

    Connection tracking keeps the way of a flow that began before the port was published.

    Raises:
        TimeoutError: none is answered.
    """
    sent: list[socket.socket] = []
    try:
        end = time.monotonic() + ANSWER_TIMEOUT_S
        while time.monotonic() < end:
            each = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sent = [each, *sent[:500]]
            each.setblocking(False)
            each.connect((ADDRESS, port))
            with suppress(OSError):
                each.send(b"echo")
            if _one_answers(sent, time.monotonic() + 0.001):
                return
    finally:
        for each in sent:
            each.close()
    raise TimeoutError(f"{ADDRESS}:{port} does not answer within {ANSWER_TIMEOUT_S:.0f} s")


def _one_answers(sent: Sequence[socket.socket], until: float) -> bool:
    while (left := until - time.monotonic()) > 0:
        for each in select.select(sent, (), (), left)[0]:
            with suppress(ConnectionRefusedError):
                return bool(each.recv(64))
    return False


def peers() -> list[Peer]:
    return [
        Peer(name="solo5ctl run", caller="shell", prepare=lambda: None, opened=_solo5ctl),
        Peer(name="a tender by hand", caller="shell", prepare=set_up_by_hand, opened=_by_hand),
        Peer(name="systemd-run", caller="shell", prepare=set_up_by_hand, opened=_systemd_run),
    ]


def set_up_by_hand() -> None:
    """Make the bridge and the rules that tasks by hand share, once."""
    if not Path("/sys/class/net/hand0").exists():
        subprocess.run([BY_HAND, "setup"], check=True)


@asynccontextmanager
async def _solo5ctl() -> AsyncIterator[Subject]:
    yield Shell(
        lambda port: ("solo5ctl", "run", "--detach", "--name", f"bench-{port}", *_options(port)),
        lambda port: ("solo5ctl", "rm", "--force", f"bench-{port}"),
    )


@asynccontextmanager
async def _by_hand() -> AsyncIterator[Subject]:
    yield Shell(lambda port: (BY_HAND, "start", str(port)), lambda port: (BY_HAND, "stop", str(port)))


@asynccontextmanager
async def _systemd_run() -> AsyncIterator[Subject]:
    dry = ["solo5ctl", "run", "--dry-run", "--name", "bench", *_options(FIRST_PORT)]
    await executed(("solo5ctl", "run", "--detach", *dry[3:]))  # stores the image, and makes the root directory
    await executed(("solo5ctl", "rm", "--force", "bench"))
    properties, image = confinement(await executed(dry))
    await asyncio.to_thread(processes.end_services)

    def start(port: int) -> Sequence[str]:
        address = f"10.77.{port >> 8}.{port & 255}"
        words = ["systemd-run", "--quiet", "--collect", f"--unit=hand-{port}", "--property=User=nobody"]
        words += ["--service-type=exec", *(f"--property={line}" for line in properties)]
        words += ["/usr/local/bin/solo5-spt", f"--net:service=hand{port}", "--mem=24", "--", image]
        words += [f"--ipv4={address}/16", "--ipv4-gateway=10.77.0.1"]
        return ("sh", "-euc", f"{BY_HAND} up {port}; exec {shlex.join(words)}")

    yield Shell(start, lambda port: ("sh", "-euc", f"systemctl stop hand-{port}; {BY_HAND} down {port}"))


def confinement(printed: str) -> tuple[list[str], str]:
    """Return the lines of a unit that confine it, and the stored image, from the output of `run --dry-run`."""
    sections = [section.splitlines() for section in printed.split("\n\n")]
    unit = next(lines for lines in sections if lines[0].startswith("# solo5-task-"))
    lines = [SPELT.get(line, line) for line in unit[1:] if line.partition("=")[0] not in LEFT_OUT]
    command = next(lines for lines in sections if lines[0] == "# command line")[1]
    words = shlex.split(command)
    return lines, words[words.index("--") + 1]


def _options(port: int) -> tuple[str, ...]:
    image = (f"{GUESTS}/net.spt", "--ipv4={net.service.ipv4_cidr}", "--ipv4-gateway={net.service.gateway4}")
    return ("--publish", f"{ADDRESS}:{port}:7/udp", "--memory", "32M", *image)
