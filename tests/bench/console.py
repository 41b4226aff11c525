"""How long a guest's line takes to Nomad's log, and what the relay spends on lines.

The floor of a line is one that is written by hand into the FIFO that Nomad's collector reads. The collector writes its
file ten times a second: most of the figure is Nomad's own. So a line is timed to a FIFO that is read here, as well.
"""

import contextlib
import os
import random
import socket
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.bench import processes
from tests.bench.extent import extent
from tests.bench.figures import Figure, Report, times
from tests.machine.conftest import Outside, cable, eventually
from tests.machine.consoles import UNLIMITED, Consoles, relay_pid, shell_task
from tests.machine.nomad.agent import DATA, NODE_ADDRESS, Agent
from tests.machine.nomad.jobs import ECHO, NEVER_AGAIN, TALKER, Jobs, hcl

PORT = 7007

FLOOD = extent(100_000, 2_000)
"""Lines, of 80 bytes each."""

LOOK = 0.0005
"""Seconds between two looks at what has come."""


def timed(cause: Callable[[int], bytes], number: int, came: Callable[[], bytes]) -> float:
    """Cause a line, and return the milliseconds until it has come."""
    time.sleep(random.random() * 0.3)
    before = time.monotonic()
    text = cause(number)
    while text not in came():
        time.sleep(LOOK)
    return (time.monotonic() - before) * 1000


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

        came = (logs / "guest.stdout.0").read_bytes
        took = [(timed(written, number, came), timed(said, number, came)) for number in range(1, rounds + 1)]
        os.close(fifo)
    report.add(times("line to log file", [ours for _, ours in took], [floor for floor, _ in took]))


@contextlib.contextmanager
def talker() -> Iterator[str]:
    """An agent with a guest that says what datagrams it gets."""
    with cable(Outside()):
        agent, jobs = Agent(), Jobs()
        try:
            agent.install()
            eventually(lambda: agent.driver().get("Healthy"), "the driver works")
            [alloc] = jobs.run(hcl("talker", TALKER, group=NEVER_AGAIN + ECHO))
            alloc.says("serving")
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
        ours, floor = [], []
        for number in range(1, rounds + 1):
            floor.append(timed(partial(_write, fifo), number, lambda: by_hand.got))
            ours.append(timed(partial(_write, cat), number, lambda: stdout.got))
        os.close(cat)
        os.close(fifo)
    report.add(times("line to a FIFO", ours, floor))


def _write(fd: int, number: int) -> bytes:
    text = b"line %d\n" % number
    os.write(fd, text)
    return text


def flood(report: Report) -> None:
    """What the relay spends on many lines, and how fast it is with them."""
    with tempfile.TemporaryDirectory() as directory, contextlib.closing(Consoles(Path(directory))) as consoles:
        stdout, _ = consoles.forward("bench")
        before, began = processes.used(relay_pid()), time.monotonic()
        shell_task("bench", f"exec seq -f 'line %09.0f {'.' * 65}' {FLOOD}", *UNLIMITED)
        eventually(lambda: len(stdout.got) >= FLOOD * 80, "all lines have come")
        took, spent = time.monotonic() - began, (processes.used(relay_pid()) - before) / 1000
    report.add(Figure(name="lines through journal and relay", unit="/s", ours=FLOOD / took))
    report.add(Figure(name="lines per second of the relay's core", unit="/s", ours=FLOOD / spent))
    report.add(Figure(name=f"CPU of the relay for {FLOOD} lines", unit="s", ours=spent))


def measure(report: Report, options: Namespace) -> None:
    """Add all figures."""
    to_fifo(report, options.rounds * 3)
    flood(report)
    to_nomad(report, options.rounds * 2)
