"""Inside the machine: wait until the system is up, then do what the host asks over the channel."""

import fcntl
import os
import pty
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from .channel import CHUNK, Channel, Frame, Kind

SOCKET = Path("/run/host-channel")
PORT = Path("/dev/virtio-ports/host-channel")
CLOCK_SLACK = 2.0  # seconds
LINGER = 1.0  # seconds that output of processes left behind by the command may still take


def connect() -> Channel:
    """Open whichever way to the host this machine has."""
    if SOCKET.exists():
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(str(SOCKET))
        return Channel(peer.recv, peer.send)
    port = os.open(PORT, os.O_RDWR | os.O_CLOEXEC)
    return Channel(lambda size: _read_port(port, size), lambda data: os.write(port, data))


def _read_port(port: int, size: int) -> bytes:
    """Read a virtio port, which answers "end of file" for as long as the host has not connected."""
    while not (data := os.read(port, size)):
        time.sleep(0.05)
    return data


def system_state() -> dict[str, Any]:
    """Wait for the end of the boot; give its verdict and the units that failed."""
    state = _systemctl("is-system-running", "--wait")
    failed = [line.split()[0] for line in _systemctl("--failed", "--plain", "--no-legend").splitlines()]
    return {"state": state, "failed": failed}


def _systemctl(*words: str) -> str:
    return subprocess.run(["systemctl", *words], capture_output=True, text=True, check=False).stdout.strip()


class Runner:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._unpacking: subprocess.Popen[bytes] | None = None
        self._terminal = -1

    def serve(self) -> None:
        self._channel.send_json(Kind.READY, system_state())
        while True:
            self._handle(self._channel.receive())

    def _handle(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.ARCHIVE:
                self._unpack(frame.data)
            case Kind.ARCHIVE_END:
                self._unpacked()
            case Kind.RUN:
                self._start(frame.json())
            case Kind.INPUT:
                with suppress(OSError):  # the shell may have ended while this was under way
                    os.write(self._terminal, frame.data)
            case Kind.WINDOW:
                self._resize(*frame.json())
            case Kind.FETCH:
                self._fetch(Path(frame.json()))
            case _:
                raise ValueError(f"a frame {frame.kind.name} does not travel to the machine")

    def _unpack(self, data: bytes) -> None:
        if self._unpacking is None:
            self._unpacking = subprocess.Popen(
                ["tar", "--extract", "--no-same-owner", "--directory=/"], stdin=subprocess.PIPE
            )
        assert self._unpacking.stdin
        self._unpacking.stdin.write(data)

    def _unpacked(self) -> None:
        unpacking, self._unpacking = self._unpacking, None
        if unpacking:
            unpacking.communicate()

    def _start(self, wanted: dict[str, Any]) -> None:
        if abs(wanted["clock"] - time.time()) > CLOCK_SLACK:  # a snapshot wakes up at the time when it was taken
            time.clock_settime(time.CLOCK_REALTIME, wanted["clock"])
        wait = self._on_terminal(wanted) if wanted["window"] else lambda: self._on_pipes(wanted)
        threading.Thread(target=self._finish, args=(wanted["argv"][0], wait), daemon=True).start()

    def _finish(self, program: str, wait: Callable[[], int]) -> None:
        try:
            status = wait()
        except OSError as error:
            self._channel.send(Kind.STDERR, f"boot: {program}: {error.strerror}\n".encode())
            status = 127 if isinstance(error, FileNotFoundError) else 126
        self._channel.send_json(Kind.EXIT, status)

    def _on_pipes(self, wanted: dict[str, Any]) -> int:
        process = subprocess.Popen(
            wanted["argv"], env=wanted["env"], cwd=wanted["cwd"], start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout
        assert process.stderr
        pumps = [
            threading.Thread(target=self._pump, args=(stream.fileno(), kind), daemon=True)
            for stream, kind in ((process.stdout, Kind.STDOUT), (process.stderr, Kind.STDERR))
        ]
        for pump in pumps:
            pump.start()
        status = _shell_status(process.wait())
        for pump in pumps:
            pump.join(LINGER)
        return status

    def _on_terminal(self, wanted: dict[str, Any]) -> Callable[[], int]:
        child, self._terminal = pty.fork()
        if child == 0:
            os.chdir(wanted["cwd"])
            os.execvpe(wanted["argv"][0], wanted["argv"], wanted["env"])
        self._resize(*wanted["window"])

        def wait() -> int:
            self._pump(self._terminal, Kind.STDOUT)
            return _shell_status(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

        return wait

    def _resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _pump(self, source: int, kind: Kind) -> None:
        while data := _read_or_end(source):
            self._channel.send(kind, data)

    def _fetch(self, path: Path) -> None:
        tar = subprocess.Popen(
            ["tar", "--create", f"--directory={path.parent}", path.name],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert tar.stdout
        self._pump(tar.stdout.fileno(), Kind.PIECE)
        complaint = tar.communicate()[1].decode(errors="replace").strip()
        self._channel.send_json(Kind.PIECE_END, complaint if tar.returncode else None)


def _read_or_end(source: int) -> bytes:
    try:
        return os.read(source, CHUNK)
    except OSError:  # EIO is how a terminal says that its last user is gone
        return b""


def _shell_status(code: int) -> int:
    return 128 - code if code < 0 else code


def _die(_failure: threading.ExceptHookArgs) -> None:
    """A thread that fails ends all: the host must see an end, not wait for an answer that will not come."""
    traceback.print_exception(_failure.exc_value)
    os._exit(1)


if __name__ == "__main__":
    threading.excepthook = _die
    try:
        Runner(connect()).serve()
    except EOFError:
        sys.exit(0)
