"""The host's side of the conversation with a machine."""

import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .channel import CHUNK, Channel, Frame, Kind
from .errors import MachineError, MachineGoneError, MachineTimeoutError

_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "USER": "root",
    "LOGNAME": "root",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
}
_T = TypeVar("_T")
Meanwhile = Callable[[socket.socket, float | None], None]
_LEFT_OUT = ("__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A file or directory to carry between host and machine."""

    host: Path
    guest: Path


def _pass_on(kind: Kind, data: bytes) -> None:
    stream = sys.stdout.buffer if kind is Kind.STDOUT else sys.stderr.buffer
    stream.write(data)
    stream.flush()


class Session:
    """One connected machine. Every wait ends at a deadline."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._deadline: float | None = None
        self._late = ""
        self.channel = Channel(self._read, self._write)

    def within(self, seconds: float | None, what: str) -> None:
        """Let *what* follows take at most *seconds* altogether; None is without end."""
        self._late = f"{what} did not end within {seconds} s"
        self._deadline = None if seconds is None else time.monotonic() + seconds

    def _remaining(self) -> float | None:
        if self._deadline is None:
            return None
        if (left := self._deadline - time.monotonic()) <= 0:
            raise MachineTimeoutError(self._late)
        return left

    def _read(self, size: int) -> bytes:
        return self._bounded(lambda: self._connection.recv(size))

    def _write(self, data: bytes) -> int:
        return self._bounded(lambda: self._connection.send(data))

    def _bounded(self, act: Callable[[], _T]) -> _T:
        self._connection.settimeout(self._remaining())
        try:
            return act()
        except TimeoutError:
            raise MachineTimeoutError(self._late) from None
        except ConnectionError as error:
            raise MachineGoneError("the machine ended before the command did") from error

    def receive(self) -> Frame:
        try:
            return self.channel.receive()
        except EOFError:
            raise MachineGoneError("the machine ended before the command did") from None

    def ready(self) -> dict[str, Any]:
        frame = self.receive()
        if frame.kind is not Kind.READY:
            raise MachineError(f"the machine began with {frame.kind.name} instead of READY")
        state: dict[str, Any] = frame.json()
        return state

    def put(self, copies: list[Copy]) -> None:
        """Copy files and directories into the machine."""
        with tarfile.open(fileobj=_FrameFile(self.channel), mode="w|", bufsize=CHUNK) as archive:  # type: ignore[call-overload]
            for copy in copies:
                archive.add(copy.host.resolve(), arcname=str(copy.guest).lstrip("/"), filter=_wanted)
        self.channel.send(Kind.ARCHIVE_END)

    def run(
        self, argv: list[str], backend: str, *, window: tuple[int, int] | None = None,
        output: Callable[[Kind, bytes], None] = _pass_on, meanwhile: Meanwhile | None = None,
    ) -> int:  # fmt: skip
        """Run *argv*, copying its output to ours as it comes; return its exit status as a shell would.

        Args:
            backend: the machine's kind, for the command's environment.
            window: rows and columns of a terminal for the command; without, it has none.
            meanwhile: what is done while nothing comes, with the connection to watch and the seconds that are left.
        """
        self.channel.send_json(Kind.RUN, _command(argv, backend, window))
        while True:
            if meanwhile:
                meanwhile(self._connection, self._remaining())
            if (frame := self.receive()).kind is Kind.EXIT:
                return int(frame.json())
            output(frame.kind, frame.data)

    def reboot(self) -> dict[str, Any]:
        """Have the machine boot again with the disk that it has; return the state of the system after the boot."""
        self.channel.send_json(Kind.RUN, _command(["systemctl", "reboot"], ""))
        while (frame := self.receive()).kind is not Kind.READY:
            pass  # the end of this command, or of nothing: the machine is on its way down
        state: dict[str, Any] = frame.json()
        return state

    def fetch(self, copy: Copy) -> None:
        """Copy a file or directory out of the machine; the host's path is the copy, not the folder it goes in."""
        copy.host.parent.mkdir(parents=True, exist_ok=True)
        self.channel.send_json(Kind.FETCH, str(copy.guest))
        with tempfile.TemporaryDirectory(dir=copy.host.parent, prefix=".boot-") as folder:
            self._unpack(Path(folder), copy.guest)
            _replace(Path(folder) / copy.guest.name, copy.host)

    def _unpack(self, folder: Path, wanted: Path) -> None:
        with subprocess.Popen(
            ["tar", "--extract", "--no-same-owner", f"--directory={folder}"], stdin=subprocess.PIPE
        ) as tar:
            assert tar.stdin
            while (frame := self.receive()).kind is Kind.PIECE:
                tar.stdin.write(frame.data)
        if complaint := frame.json():
            raise MachineError(f"{wanted} could not be copied out of the machine: {complaint}")


def _command(argv: list[str], backend: str, window: tuple[int, int] | None = None) -> dict[str, Any]:
    return {
        "argv": argv,
        "env": {**_ENVIRONMENT, "TERM": os.environ.get("TERM", "dumb"), "TEST_MACHINE": backend},
        "cwd": "/srv/tests",
        "clock": time.time(),
        "window": window,
    }


class _FrameFile:
    """What tarfile writes to: each block becomes a frame."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def write(self, data: bytes) -> int:
        self._channel.send(Kind.ARCHIVE, data)
        return len(data)


def _wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if Path(member.name).name in _LEFT_OUT else member


def _replace(new: Path, target: Path) -> None:
    if target.is_dir() and new.is_dir():
        shutil.rmtree(target)
    new.replace(target)


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    path.unlink(missing_ok=True)  # of the machine's boot before
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(1)
        yield server


def accept(server: socket.socket, process: "subprocess.Popen[bytes]", seconds: float) -> Session:
    """Wait for the machine that *process* runs to connect.

    Raises:
        MachineGoneError: the process ended first.
        MachineTimeoutError: nothing came within *seconds*.
    """
    deadline = time.monotonic() + seconds
    server.settimeout(0.1)
    while time.monotonic() < deadline:
        try:
            return Session(server.accept()[0])
        except TimeoutError:
            if process.poll() is not None:
                raise MachineGoneError(f"the machine ended with status {process.returncode} while booting") from None
    raise MachineTimeoutError(f"the machine did not come up within {seconds:.0f} s")
