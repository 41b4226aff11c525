"""solo5-networkd as a process that is forked from one which has imported it: hundreds of tests start it.

The imports take several times as long as what most tests have it do. Each process calls the service's entry point with
its own words, environment and network namespace. Programs of a test's own, and what a bus activates, start anew.
"""

import functools
import json
import os
import select
import socket
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO, NoReturn

from tests.contract.netns import HERE, enter
from tests.contract.placed import place
from tests.support.forked import begun, serve

import solo5_systemd

PACKAGES = ("base", "bus", "dbus", "journal", "network", "networkd", "settings")


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
    return begun("tests.contract.forked", Path(__file__).parents[2], Path(solo5_systemd.__file__).parents[1])


def _execute(words: list[str], environment: dict[str, str], namespace: int, stderr: int) -> NoReturn:
    from solo5_systemd.dbus.process import run_module

    enter(namespace)
    os.close(namespace)
    os.dup2(stderr, 2)
    os.close(stderr)
    os.environ.clear()
    os.environ.update(environment)
    place(words)
    sys.argv = ["solo5-networkd"]
    sys.exit(run_module("solo5_systemd.networkd.main"))


if __name__ == "__main__":
    serve(PACKAGES.__contains__, _execute, 3)
