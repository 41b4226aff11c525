"""How long a guest's line takes to Nomad's log, and what the relay spends on lines.

The floor of a line is one that is written by hand into the FIFO that Nomad's collector reads. The collector writes its
file ten times a second, and `nomad alloc logs -f` looks there four times a second: most of those two figures is Nomad's
own. So a line is timed to a FIFO that is read here, as well.
"""

import contextlib
import os
import random
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.bench import processes
from tests.bench.extent import extent
from tests.bench.figures import Figure, Report, times
from tests.machine.conftest import GUESTS, Outside, cable, eventually
from tests.machine.consoles import UNLIMITED, Consoles, relay_pid, shell_task
from tests.machine.nomad.agent import DATA, NODE_ADDRESS, Agent
from tests.machine.nomad.jobs import NEVER_AGAIN, Jobs, hcl, says

PORT = 7007
TALKER = (
    f'unikernel = "{GUESTS}/net.spt"\n'
    'args = ["--verbose", "--ipv4={net.service.ipv4_cidr}", "--ipv4-gateway={net.service.gateway4}"]'
)
ECHO = f'network {{\n  port "echo" {{\n    static = {PORT}\n    to = 7\n  }}\n}}\n'

FLOOD = extent(100_000, 2_000)
"""Lines, of 80 bytes each."""

LOOK = 0.0005
"""Seconds between two looks at what has come."""

Came = Callable[[], bytes]


class Follower:
    """`nomad alloc logs -f`, and what it has printed."""

    def __init__(self, alloc: str) -> None:
        self._process = subprocess.Popen(["nomad", "alloc", "logs", "-f", alloc, "guest"], stdout=subprocess.PIPE)
        self._printed = bytearray()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def printed(self) -> bytes:
        return bytes(self._printed)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        while data := os.read(self._process.stdout.fileno(), 1 << 16):
            self._printed += data


class Line:
    """One kind of line: how it is caused, and its milliseconds to each place that it comes to."""

    def __init__(self, cause: Callable[[int], bytes]) -> None:
        self._cause = cause
        self.took: dict[str, list[float]] = {}

    def time(self, number: int, places: dict[str, Came]) -> None:
        """Cause a line, and wait until it has come everywhere; the place that it comes to last is the last one."""
        time.sleep(random.random() * 0.3)
        before = time.monotonic()
        text = self._cause(number)
        for name, came in places.items():
            while text not in came():
                time.sleep(LOOK)
            self.took.setdefault(name, []).append((time.monotonic() - before) * 1000)


def to_nomad(report: Report, rounds: int) -> None:
    """From a datagram, of which the guest says how long it was, to what an operator sees."""
    with talker() as alloc, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outside:
        outside.connect((NODE_ADDRESS, PORT))
        logs = DATA / "alloc" / alloc / "alloc" / "logs"
        fifo = os.open(logs / ".guest.stdout.fifo", os.O_WRONLY)

        def said(number: int) -> bytes:
            outside.send(b"x" * number)
            return b"to port 7, %d bytes\n" % number

        def written(number: int) -> bytes:
            text = b"by hand: %d\n" % number
            os.write(fifo, text)
            return text

        with contextlib.closing(Follower(alloc)) as follower:
            places = {"log file": (logs / "guest.stdout.0").read_bytes, "`nomad alloc logs -f`": follower.printed}
            ours, floor = Line(said), Line(written)
            for number in range(1, rounds + 1):
                floor.time(number, places)
                ours.time(number, places)
        os.close(fifo)
    for place in places:
        report.add(times(f"line to {place}", ours.took[place], floor.took[place]))


@contextlib.contextmanager
def talker() -> Iterator[str]:
    """An agent with a guest that says what datagrams it gets."""
    with cable(Outside()):
        agent, jobs = Agent(), Jobs()
        try:
            agent.install()
            eventually(lambda: agent.driver().get("Healthy"), "the driver works")
            [alloc] = jobs.run(hcl("talker", TALKER, group=NEVER_AGAIN + ECHO))
            says(alloc, "serving")
            yield alloc
            jobs.purge()
        finally:
            agent.remove()


def to_fifo(report: Report, rounds: int) -> None:
    """From a process in a task's place to a FIFO that is read here, and the same without the journal and the relay."""
    with tempfile.TemporaryDirectory() as directory, contextlib.closing(Consoles(Path(directory))) as consoles:
        stdout, _ = consoles.forward("bench")
        by_hand = consoles.reader("floor", "stdout")
        go, fifo = Path(directory, "go"), os.open(by_hand.path, os.O_WRONLY)
        os.mkfifo(go, 0o666)
        Path(directory).chmod(0o755)
        shell_task("bench", f"exec cat {go}", *UNLIMITED)
        cat = os.open(go, os.O_WRONLY)
        ours, floor = Line(partial(_write, cat)), Line(partial(_write, fifo))
        for number in range(1, rounds + 1):
            floor.time(number, {"": lambda: by_hand.got})
            ours.time(number, {"": lambda: stdout.got})
        os.close(cat)
        os.close(fifo)
    report.add(times("line to a FIFO", ours.took[""], floor.took[""]))


def _write(fd: int, number: int) -> bytes:
    text = b"line %d\n" % number
    os.write(fd, text)
    return text


def flood(report: Report) -> None:
    """What the relay spends on many lines, and how fast it is with them."""
    with tempfile.TemporaryDirectory() as directory, contextlib.closing(Consoles(Path(directory))) as consoles:
        stdout, _ = consoles.forward("bench")
        before, began = processes.used(relay_pid()).cpu, time.monotonic()
        shell_task("bench", f"exec seq -f 'line %09.0f {'.' * 65}' {FLOOD}", *UNLIMITED)
        eventually(lambda: len(stdout.got) >= FLOOD * 80, "all lines have come")
        took, spent = time.monotonic() - began, (processes.used(relay_pid()).cpu - before) / 1000
    report.add(Figure(name="lines through journal and relay", unit="/s", ours=FLOOD / took))
    report.add(Figure(name="lines per second of the relay's core", unit="/s", ours=FLOOD / spent))
    report.add(Figure(name=f"CPU of the relay for {FLOOD} lines", unit="s", ours=spent))


def consoles(report: Report, rounds: int) -> None:
    to_fifo(report, rounds * 3)
    flood(report)
    to_nomad(report, rounds * 2)
