"""The kernel's modules that networks need: which are missing."""

import ctypes
import errno
import os
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing

from solo5_systemd.network.modules import BRIDGE, REDIRECTION, TUN, VETH
from solo5_systemd.network.raw_netlink import (
    NETLINK_ROUTE,
    NLM_CREATE,
    NetlinkSocket,
    Request,
    attribute,
    nested,
)
from solo5_systemd.network.veth_taps import redirection

_CLONE_NEWNET = 0x40000000  # linux/sched.h
_LOOPBACK = 1
_NEWLINK, _IFINFOMSG, _IFLA_IFNAME, _IFLA_LINKINFO, _KIND = 16, struct.Struct("=BxHiII"), 3, 18, 1
_TUN = "/dev/net/tun"

_libc = ctypes.CDLL(None, use_errno=True)


def missing_modules(*, redirects: bool = False) -> Sequence[str] | None:
    """Return the modules without which a task has no network; None: this process may not try.

    What needs them is made in a new network namespace, which ends with this call, and all in it. The kernel loads those
    that it has.

    Args:
        redirects: some tasks have a network namespace of their own.
    """
    found: list[str] = []
    refused: list[OSError] = []

    def in_thread() -> None:  # which ends in the new namespace: no other code runs there
        try:
            found.extend(_missing(redirects=redirects))
        except OSError as error:
            refused.append(error)

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    return None if refused else found


def _missing(*, redirects: bool) -> Iterator[str]:
    if _libc.unshare(_CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    with closing(NetlinkSocket(NETLINK_ROUTE)) as route:
        for [kind] in (BRIDGE, VETH) if redirects else (BRIDGE,):
            if route.run([_link(kind)]) == [errno.EOPNOTSUPP]:
                yield kind
        if redirects and any(
            code in (errno.ENOENT, errno.EOPNOTSUPP) for code in route.run(redirection(_LOOPBACK, _LOOPBACK))
        ):
            yield from REDIRECTION
    if _lacks_tun():
        yield from TUN


def _link(kind: str) -> Request:
    info = nested(_IFLA_LINKINFO, attribute(_KIND, kind.encode(), b"\0"))
    name = attribute(_IFLA_IFNAME, kind.encode(), b"\0")
    return (_NEWLINK, NLM_CREATE, _IFINFOMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + name + info)


def _lacks_tun() -> bool:
    try:
        os.close(os.open(_TUN, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error.errno == errno.ENODEV  # a missing node is another fact
    return False
