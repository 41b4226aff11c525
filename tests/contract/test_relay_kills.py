"""The relay, killed before and after every call that moves a byte or saves a position.

Each run of it is a process with the relay's own code. Between two runs, the test keeps what systemd and the kernel
keep: descriptors, the journal, the state files.
"""

import asyncio
import fcntl
import os
import random
import signal
import socket
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.fakes.journal import Journal

from solo5_systemd.base.names import TaskName, task_service
from solo5_systemd.dbus import fdstore
from solo5_systemd.journal.lines import Stream
from solo5_systemd.journal.reader import PollTimer
from solo5_systemd.relay.forwarder import Forwarder
from solo5_systemd.relay.state_files import StateFiles

TASK = TaskName("web")
PAGE = 4096
MOMENT = 0.02
"""Seconds in which a relay without a reader has nothing left to do."""

OUTLIVING = [(os, "write"), (os, "pwrite"), (os, "splice"), (os, "read"), (fdstore, "notify")]
"""The calls whose effect outlives the process."""


class Systemd:
    """A fd store, like PID 1's, with a notify socket."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(str(path))
        self.address = str(path)
        self.kept: dict[str, int] = {}

    def take_in(self) -> None:
        with suppress(BlockingIOError):
            while True:
                data, fds, _, _ = socket.recv_fds(self._socket, PAGE, 1)
                words = dict(line.split("=", 1) for line in data.decode().splitlines())
                with suppress(KeyError):
                    os.close(self.kept.pop(words["FDNAME"]))
                self.kept.update(dict.fromkeys([words["FDNAME"]] if fds else [], *fds))

    def close(self) -> None:
        for fd in self.kept.values():
            os.close(fd)
        self._socket.close()


class Fifo:
    """A FIFO of one page, so that most chunks are split."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe2(os.O_NONBLOCK)
        fcntl.fcntl(self.write_end, fcntl.F_SETPIPE_SZ, PAGE)
        self.got = b""

    def read(self, most: int) -> None:
        """Read the content, at most `most` bytes."""
        with suppress(BlockingIOError):
            self.got += os.read(self.read_end, most)


class World:
    """Everything that outlives a relay process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.systemd = Systemd(directory / "notify")
        self.state = directory / "state"
        self.state.mkdir()
        self.journal = Journal()
        self.fifos = {stream: Fifo() for stream in Stream}
        self.forwarded = self.drained = False
        self._answers = os.pipe2(os.O_NONBLOCK)

    def write(self, count: int) -> None:
        """Write lines of a task: mostly to one stream, of many lengths."""
        for _ in range(count):
            number = len(self.journal.lines)
            stream = Stream.STDERR if number % 5 == 0 else Stream.STDOUT
            self.journal.write(f"line {number} ".ljust(number * 37 % 900, ".") + "\n", stream=stream)

    def read(self, most: int) -> None:
        for fifo in self.fifos.values():
            fifo.read(most)

    def life(self, fatal: int, speaks: int = 0, reads: int = 0, *, ends: bool = False) -> bool:
        """Run a relay.

        Args:
            fatal: the call at which it is killed: before the first, after the first, before the second and so on; a
                negative number: none.
            speaks: how many lines the task writes meanwhile, beside as many before.
            reads: how many bytes the readers take at a time meanwhile; 0 for none.
            ends: whether the task has ended.
        """
        self.write(speaks)
        relay = os.fork()
        if relay == 0:
            self._be_the_relay(fatal, speaks, ends=ends)
        while (ended := os.waitpid(relay, os.WNOHANG if reads else 0)) == (0, 0):
            self.read(reads)
        self.write(speaks)
        self.systemd.take_in()
        with suppress(BlockingIOError):
            answers = os.read(self._answers[0], 100)
            self.forwarded |= b"forwarded" in answers
            self.drained |= b"drained" in answers
        killed = os.WIFSIGNALED(ended[1])
        assert killed or os.WEXITSTATUS(ended[1]) == 0, "the relay has failed: see above"
        return killed

    def _be_the_relay(self, fatal: int, speaks: int, *, ends: bool) -> None:
        try:
            for fifo in self.fifos.values():
                os.close(fifo.read_end)
            os.environ["NOTIFY_SOCKET"] = self.systemd.address
            answer = os.write
            _kill_at(fatal)
            asyncio.run(self._serve(speaks, lambda text: answer(self._answers[1], text), ends=ends))
            os._exit(0)
        except BaseException:  # noqa: BLE001 - nothing of it may go on in the tests' process
            traceback.print_exc()
            os._exit(1)

    async def _serve(self, speaks: int, answer: Callable[[bytes], object], *, ends: bool) -> None:
        forwarder = Forwarder(StateFiles(self.state), lambda *_: None, self.journal.open, PollTimer(0.001, 0.001))
        forwarder.restore({name: fdstore.carried(fd) for name, fd in self.systemd.kept.items()})
        if not self.forwarded:
            fds = {stream: fifo.write_end for stream, fifo in self.fifos.items()}
            forwarder.forward(TASK, task_service(TASK), 0, fds)
            answer(b"forwarded")
        async with asyncio.TaskGroup() as tasks:
            run = tasks.create_task(forwarder.run())
            await asyncio.sleep(MOMENT / 2)
            self.write(speaks)
            await asyncio.sleep(MOMENT / 2)
            if ends:
                await _drained(forwarder)
                answer(b"drained")
            run.cancel()

    def check(self) -> None:
        """Assert that each byte was delivered once and in order, and that nothing is left over."""
        for stream, fifo in self.fifos.items():
            os.close(fifo.write_end)
            fifo.write_end = -1
            fifo.read(1 << 20)
            assert fifo.got == b"".join(line.data for line in self.journal.lines if line.stream is stream)
            assert os.read(fifo.read_end, 1) == b"", "the FIFO is closed"
        assert self.systemd.kept == {}
        assert list(self.state.iterdir()) == []

    def close(self) -> None:
        self.systemd.close()
        for fifo in self.fifos.values():
            os.close(fifo.read_end)
            if fifo.write_end >= 0:
                os.close(fifo.write_end)
        for end in self._answers:
            os.close(end)


async def _drained(forwarder: Forwarder) -> None:
    done = False
    while not done:
        done = await forwarder.drain(TASK)
        await asyncio.sleep(0.001)


def _kill_at(fatal: int) -> None:
    """Kill this process before or after one of the calls."""
    left = [fatal]

    def passed() -> None:
        left[0] -= 1
        if left[0] == -1:
            os.kill(os.getpid(), signal.SIGKILL)

    def deadly(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            passed()
            result = call(*arguments)
            passed()
            return result

        return called

    for place, name in OUTLIVING:
        setattr(place, name, deadly(getattr(place, name)))


def killed_at(fatal: int, directory: Path, *, first: bool) -> bool:
    """Kill the first or a restarted relay at one of its calls; return whether it made that many calls."""
    directory.mkdir()
    with closing(World(directory)) as world:
        if not first:
            world.life(-1, speaks=8)
            world.read(1000)
        killed = world.life(fatal, speaks=8, reads=0 if first else 700)
        world.read(1000)
        world.life(-1, speaks=4)
        world.life(-1, speaks=1, reads=500, ends=True)
        world.check()
    return killed


@pytest.mark.parametrize("which", ["first", "second"])
def test_no_byte_is_lost_or_duplicated_wherever_it_is_killed(tmp_path: Path, which: str) -> None:
    fatal = 0
    while killed_at(fatal, tmp_path / str(fatal), first=which == "first"):
        fatal += 1
    assert fatal > 15, "the relay makes calls at which it can be killed"


def test_no_byte_is_lost_or_duplicated_if_it_is_killed_repeatedly(tmp_path: Path) -> None:
    chance = random.Random(0)
    with closing(World(tmp_path)) as world:
        for _ in range(40):
            world.life(chance.randrange(60), speaks=chance.randrange(4))
            world.read(chance.choice([0, 1, 100, PAGE]))
        while not world.drained:
            world.life(chance.randrange(200), reads=chance.choice([100, PAGE]), ends=True)
        world.check()
