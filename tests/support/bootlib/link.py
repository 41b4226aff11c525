"""A link that joins machines: a bridge in a network namespace that only this process has, and what it starts.

The namespaces end with the last process in them, so the bridge and the mounts of a killed ``boot`` end with it, too.
"""

import ctypes
import os
import subprocess

from .errors import MachineError

BRIDGE = "machines"  # which containers join by a veth pair; their own end is host0
_PREFIX = "198.51.100"
_CLONE_NEWNS = 0x00020000
_CLONE_NEWNET = 0x40000000

# Before any service that needs the network; systemd-networkd is left out, since it would manage taps as well.
_SERVICE = """\
[Unit]
Description=Address of this machine on the link to the others
Before=network.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/ip link set host0 up
ExecStart=/usr/bin/ip address add {address}/24 dev host0
"""


def make() -> None:
    """Give this process mount and network namespaces of its own, with an empty bridge.

    Raises:
        MachineError: the kernel refused the namespaces.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS | _CLONE_NEWNET) != 0:  # os.unshare() is there from Python 3.12 on
        raise MachineError(f"no namespaces for several machines: unshare(2): {os.strerror(ctypes.get_errno())}")
    _do("mount", "--make-rprivate", "/")
    _do("ip", "link", "add", BRIDGE, "type", "bridge")
    _do("ip", "link", "set", BRIDGE, "up")


def files(name: str, names: list[str]) -> dict[str, str]:
    """Return the files below /etc of the machine *name*, one of *names*, by their paths."""
    hosts = [f"{address(other, names)} {other}" for other in names]
    return {
        "hostname": f"{name}\n",
        "hosts": "\n".join(["127.0.0.1 localhost", *hosts, ""]),
        "systemd/system/link.service": _SERVICE.format(address=address(name, names)),
    }


def address(name: str, names: list[str]) -> str:
    """Return the address of the machine *name*: its place in *names* is the last byte."""
    return f"{_PREFIX}.{names.index(name) + 1}"


def unplug(name: str) -> None:
    """Cut the machine *name* off: its interface keeps its carrier, and its frames go nowhere."""
    _do("ip", "link", "set", f"vb-{name}", "nomaster")


def plug(name: str) -> None:
    _do("ip", "link", "set", f"vb-{name}", "master", BRIDGE)


def remove(name: str) -> None:
    """Remove the bridge's end of an ended machine's link, which the kernel removes too, but later."""
    subprocess.run(["ip", "link", "delete", f"vb-{name}"], stdin=subprocess.DEVNULL, capture_output=True, check=False)


def _do(*argv: str) -> None:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MachineError(f"{' '.join(argv)}: {done.stderr.strip()}")
