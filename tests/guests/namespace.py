"""A network namespace with taps, and sockets at their other end."""

import ctypes
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CLONE_NEWNET = 0x40000000


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@dataclass(frozen=True, kw_only=True)
class Namespace:
    name: str

    def ip(self, *words: str) -> None:
        ip("-n", self.name, *words)

    def tap(self, name: str, address: str | None = None, *, up: bool = True) -> None:
        self.ip("tuntap", "add", name, "mode", "tap")
        if address:
            self.ip("address", "add", address, "dev", name)
        if up:
            self.ip("link", "set", name, "up")

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Sockets made in here belong to the namespace, and stay in it."""
        libc = ctypes.CDLL(None, use_errno=True)
        with Path("/proc/thread-self/ns/net").open() as home, Path("/run/netns", self.name).open() as there:
            assert libc.setns(there.fileno(), CLONE_NEWNET) == 0
            try:
                yield
            finally:
                assert libc.setns(home.fileno(), CLONE_NEWNET) == 0
