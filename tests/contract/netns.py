"""Network namespaces for the test process."""

import ctypes
import fcntl
import json
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1  # linux/sockios.h, if.h
HERE = Path("/proc/thread-self/ns/net")

BRIDGE_NF = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
BRIDGE_NF6 = BRIDGE_NF.with_name("bridge-nf-call-ip6tables")
HOST6, CLIENT6 = "2001:db8:f::1", "2001:db8:f::2"
"""Of the host, and of its neighbour `wan`."""


def run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def sent_again() -> int:
    """Return how many requests for a connection have been sent again in this thread's network namespace."""
    return int(run("nstat", "-asz", "TcpExtTCPSynRetrans").split()[-2])


@contextmanager
def private_namespace() -> Iterator[None]:
    """Run this thread and its children in a new network namespace with `lo` only."""
    with HERE.open() as home:
        _call("unshare", _CLONE_NEWNET)
        try:
            with socket.socket() as any_socket:
                fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))
            yield
        finally:
            enter(home.fileno())


def holder() -> "subprocess.Popen[bytes]":
    """Start a process that has a network namespace of its own, until the end of its input."""
    made = subprocess.Popen(["unshare", "-n", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert made.stdin is not None
    assert made.stdout is not None
    made.stdin.write(b"\n")
    made.stdin.flush()
    made.stdout.readline()  # cat runs, so that its namespace is there
    return made


class Outside:
    """A neighbour of the host: 192.0.2.2, connected to the host's 192.0.2.1 by a veth of its own."""

    def __init__(self, link: str = "veth", host: str = "192.0.2.1", address: str = "192.0.2.2") -> None:
        self.link, self.host, self.address = link, host, address
        self._holder = holder()
        pid = str(self._holder.pid)
        run("ip", "link", "add", f"{link}-in", "up", "type", "veth", "peer", "name", f"{link}-out", "netns", pid)
        run("ip", "address", "add", f"{self.host}/24", "dev", f"{link}-in")
        self.ip("link", "set", f"{link}-out", "up")
        self.ip("address", "add", f"{self.address}/24", "dev", f"{link}-out")

    @property
    def path(self) -> str:
        """The path of the neighbour's namespace."""
        return f"/proc/{self._holder.pid}/ns/net"

    def ip(self, *words: str) -> str:
        """Run ip(8) in the neighbour's namespace."""
        return run("nsenter", "-t", str(self._holder.pid), "-n", "ip", *words)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Enter the namespace: sockets made inside belong to the neighbour."""
        with entered(self.path):
            yield

    def close(self, renamed: str = "") -> None:
        run("ip", "link", "del", renamed or f"{self.link}-in")
        self._holder.communicate()


@contextmanager
def entered(path: str) -> Iterator[None]:
    """Run this thread in another network namespace."""
    with HERE.open() as home, Path(path).open() as there:
        enter(there.fileno())
        try:
            yield
        finally:
            enter(home.fileno())


def enter(namespace: int) -> None:
    """Have this thread be in another network namespace from now on."""
    _call("setns", namespace, _CLONE_NEWNET)


def _call(function: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    assert getattr(libc, function)(*arguments) == 0, f"{function}: errno {ctypes.get_errno()}"


def link(name: str, task: str = "") -> dict[str, Any]:
    """Return the JSON of `ip link show`, in the network namespace of a task; empty for a missing link."""
    where = ("-n", f"solo5-{task}") if task else ()
    found = subprocess.run(["ip", *where, "-j", "-d", "link", "show", name], capture_output=True, check=False)
    return json.loads(found.stdout)[0] if found.returncode == 0 else {}


def counted(family: str, name: str) -> dict[str, int]:
    """Return the packets that each element of a set of the service has counted."""
    listed = json.loads(run("nft", "-j", "list", "set", family, "solo5", name))["nftables"]
    elements = [each["elem"] for item in listed for each in item.get("set", {}).get("elem", ())]
    return {each["val"]: each["counter"]["packets"] for each in elements}


def received(name: str, task: str = "") -> int:
    """Return how many packets a link has received, in the network namespace of a task."""
    where = ("-n", f"solo5-{task}") if task else ()
    [found] = json.loads(run("ip", *where, "-s", "-j", "link", "show", name))
    return int(found["stats64"]["rx"]["packets"])
