"""solo5-networkd as a process that is forked from one which has imported it: hundreds of tests start it.

The imports take several times as long as what most tests have it do. Each process calls the service's entry point with
its own words, environment and network namespace. Programs of a test's own, and what a bus activates, start anew.
"""

import atexit
import functools
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO, NoReturn

from tests.contract.netns import HERE, enter
from tests.contract.placed import place

import solo5_systemd

PACKAGES = ("base", "bus", "dbus", "journal", "network", "networkd", "settings")
LARGEST = 1 << 17
"""Bytes of a request: the words and the environment."""


class Forked:
    """A process of the service in the network namespace of this thread, used as a `subprocess.Popen`."""

    def __init__(self, words: list[str], environment: dict[str, str], stderr: BinaryIO) -> None:
        reader, writer = os.pipe()
        with HERE.open() as namespace:
            request = json.dumps([words, environment]).encode()
            socket.send_fds(_server(), [request], [namespace.fileno(), stderr.fileno(), writer])
        os.close(writer)
        self._answer = os.fdopen(reader, "rb", buffering=0)
        self.pid = int(self._answer.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status; None: it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float) -> int:
        """Wait for the end, and return the exit status."""
        if self.returncode is None:
            if not select.select([self._answer], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("solo5-networkd", timeout)
            self.returncode = int(self._answer.readline())
            self._answer.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


@functools.cache
def _server() -> socket.socket:
    """Start the server, which ends when the last end of its socket is closed: with this process, at the latest."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "tests.contract.forked", str(its.fileno())]
    paths = (Path(__file__).parents[2], Path(solo5_systemd.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": ":".join(map(str, paths))}
    server = subprocess.Popen(command, env=environment, pass_fds=[its.fileno()])
    its.close()

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


def _serve(control: socket.socket) -> None:
    for module in pkgutil.walk_packages(solo5_systemd.__path__, "solo5_systemd."):
        if module.name.split(".")[1] in PACKAGES and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, LARGEST, 3)
        if not request:
            return
        if os.fork() == 0:
            control.close()
            _keep(json.loads(request), descriptors)
        for each in descriptors:
            os.close(each)


def _keep(request: tuple[list[str], dict[str, str]], descriptors: list[int]) -> NoReturn:
    """Fork the service; write its number and, when it has ended, its exit status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    namespace, stderr, answer = descriptors
    enter(namespace)
    os.close(namespace)
    process = os.fork()
    if process == 0:
        os.close(answer)
        _execute(*request, stderr)
    os.write(answer, b"%d\n" % process)
    _, status = os.waitpid(process, 0)
    os.write(answer, b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _execute(words: list[str], environment: dict[str, str], stderr: int) -> NoReturn:
    from solo5_systemd.dbus.process import run_module

    os.dup2(stderr, 2)
    os.close(stderr)
    os.environ.clear()
    os.environ.update(environment)
    place(words)
    sys.argv = ["solo5-networkd"]
    sys.exit(run_module("solo5_systemd.networkd.main"))


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
