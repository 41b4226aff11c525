"""solo5-networkd, some of whose system calls fail, or whose kernel lacks a module.

The file of a plan has a kind of calls, one of FAULTS, the number of them that succeed before one that fails, and `+`
behind it if all later ones fail, too. Each call counts it down. Without the file, none fails.
"""

import builtins
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import nftables

from solo5_systemd.base.errors import HostError
from solo5_systemd.network.namespaces import NetworkNamespace
from solo5_systemd.network.netlink import NETLINK_NETFILTER, NETLINK_ROUTE, NetlinkSocket, Request

FAULTS = {
    "rtnetlink": errno.ENOBUFS,
    "dump": errno.ENOBUFS,
    "nfnetlink": errno.ENOMEM,
    "nftables": errno.EPERM,
    "ioctl": errno.EMFILE,
    "sysctl": errno.EROFS,
    "setns": errno.EACCES,
    "file": errno.ENOSPC,
}
"""The kinds of calls, each with its error: messages that change links, those that list them, those about elements, …"""

RENAMED = {
    "bridge": (b"bridge\0", b"bri*ge\0"),
    "macvlan": (b"macvlan\0", b"mac*lan\0"),
}
"""By module, the kind in messages of rtnetlink that is renamed: the kernel's error is that for one that it lacks."""

_KIND = struct.Struct("=4xH")  # of struct nlmsghdr
_IOCTLS = (0x400454CA, 0x400454CB, 0x400454CC, 0x8946)  # TUNSETIFF, TUNSETPERSIST, TUNSETOWNER, SIOCETHTOOL


class Faults:
    """The calls that fail."""

    def __init__(self, plan: Path) -> None:
        self._plan = plan

    def due(self, kind: str) -> bool:
        """Count a call of a kind; return whether it fails."""
        try:
            with self._plan.open("r+") as file:  # the test may remove it meanwhile
                planned, text = file.read().split()
                if planned != kind:
                    return False
                left = int(text.rstrip("+"))
                file.seek(0)
                file.write(f"{kind} {left - 1}{'+' if '+' in text else ''}".ljust(24))
        except FileNotFoundError:
            return False
        return left == 0 or (left < 0 and "+" in text)

    def check(self, kind: str) -> None:
        """Count a call of a kind; raise its error if it fails."""
        if self.due(kind):
            code = FAULTS[kind]
            raise OSError(code, os.strerror(code))


def patch(plan: Path) -> None:
    """Have calls of this process fail."""
    faults = Faults(plan)
    _patch_messages(faults)
    _patch(nftables.Nftables, "cmd", lambda cmd: lambda self, text: _transaction(faults, cmd, self, text))
    _patch(fcntl, "ioctl", lambda ioctl: lambda fd, request, *rest: _ioctl(faults, ioctl, fd, request, *rest))
    _patch(builtins, "open", lambda open_: lambda path, *rest, **more: _open(faults, open_, path, *rest, **more))
    _patch(NetworkNamespace, "enter", lambda enter: lambda self: _enter(faults, enter, self))
    _patch(os, "replace", lambda replace: lambda source, target: _replace(faults, replace, source, target))


def remove(module: str, set_attribute: Callable[[Any, str, Any], None] = setattr) -> None:
    """Have this process find a kernel without a module."""

    def send(original: Any) -> Any:
        def replaced(self: socket.socket, data: bytes, *rest: Any) -> int:
            if self.family == socket.AF_NETLINK:
                data = _without(module, self.proto, bytes(data))
            return int(original(self, data, *rest))

        return replaced

    for name in ("send", "sendto"):
        set_attribute(socket.socket, name, send(getattr(socket.socket, name)))
    open_, cmd = os.open, nftables.Nftables.cmd

    def opened(path: Any, *rest: Any, **more: Any) -> int:
        if module == "tun" and path == "/dev/net/tun":
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))  # misc_open of drivers/char/misc.c
        return open_(path, *rest, **more)

    def transaction(self: Any, text: str) -> Any:
        if module == "nf_tables":  # nfnetlink_rcv_batch of net/netfilter/nfnetlink.c
            return 1, "", "Error: Could not process rule: Operation not supported\n"
        if module == "nft_connlimit" and "ct count" in text:  # nf_tables_expr_parse of net/netfilter/nf_tables_api.c
            return 1, "", "Error: Could not process rule: No such file or directory\n"
        return cmd(self, text)

    set_attribute(os, "open", opened)
    set_attribute(nftables.Nftables, "cmd", transaction)


def _without(module: str, protocol: int, data: bytes) -> bytes:
    """Return messages that request what no module has in the place of what a module has."""
    if protocol == NETLINK_ROUTE and module in RENAMED:
        return data.replace(*RENAMED[module])
    if protocol == NETLINK_NETFILTER and module == "nf_tables":
        return data[:5] + b"\x3c" + data[6:]  # the first message's subsystem
    return data


def _patch(owner: Any, name: str, of: Callable[[Any], Any]) -> None:
    setattr(owner, name, of(getattr(owner, name)))


def _patch_messages(faults: Faults) -> None:
    """Have messages fail: those of the project's sockets one by one, as the kernel refuses them."""
    run = NetlinkSocket.run
    one_by_one: list[NetlinkSocket] = []

    def run_some(self: NetlinkSocket, requests: Sequence[Request]) -> Sequence[int]:
        codes: list[int] = []
        for request in requests:
            kind = _kind(self.proto, request[0])
            if faults.due(kind):
                codes.append(FAULTS[kind])
                continue
            one_by_one.append(self)
            try:
                codes += run(self, [request])
            finally:
                one_by_one.pop()
        return codes

    def send(original: Any) -> Any:
        def replaced(self: socket.socket, data: bytes, *rest: Any) -> int:
            if self.family == socket.AF_NETLINK and not one_by_one:
                faults.check(_kind(self.proto, *_KIND.unpack_from(data)))
            return int(original(self, data, *rest))

        return replaced

    _patch(NetlinkSocket, "run", lambda _: run_some)
    for name in ("send", "sendto"):
        _patch(socket.socket, name, send)


def _kind(protocol: int, message: int) -> str:
    """Return the kind of a message; of those of rtnetlink, one of four gets objects (linux/rtnetlink.h)."""
    if protocol == NETLINK_ROUTE:
        return "dump" if message % 4 == 2 else "rtnetlink"
    return "nfnetlink" if protocol == NETLINK_NETFILTER else ""


def _transaction(faults: Faults, cmd: Any, self: Any, text: str) -> Any:
    if text.startswith("list") or not faults.due("nftables"):
        return cmd(self, text)
    return 1, "", "Error: Could not process rule: Operation not permitted\n"


def _ioctl(faults: Faults, ioctl: Any, fd: Any, request: int, *rest: Any) -> Any:
    if request in _IOCTLS:
        faults.check("ioctl")
    return ioctl(fd, request, *rest)


def _open(faults: Faults, open_: Any, path: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
    if mode == "w" and str(path).startswith("/proc/sys/"):
        faults.check("sysctl")
    return open_(path, mode, *rest, **more)


def _enter(faults: Faults, enter: Any, self: NetworkNamespace) -> None:
    if not self.path.startswith("/proc/thread-self") and faults.due("setns"):
        code = FAULTS["setns"]
        raise HostError(f"network namespace {self.path} cannot be entered: {os.strerror(code)}.")
    enter(self)


def _replace(faults: Faults, replace: Any, source: str, target: str | Path) -> Any:
    if os.path.basename(source).startswith("."):  # noqa: PTH119 - of `replace_file`
        faults.check("file")
    return replace(source, target)
