"""The kernel's modules that networks need: which are missing."""

import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing

from solo5_systemd.network.announcements import AnnouncedPackets
from solo5_systemd.network.modules import BRIDGE, MACVLAN, TUN
from solo5_systemd.network.namespaces import in_new_namespace
from solo5_systemd.network.raw_netlink import (
    NETLINK_ROUTE,
    NLM_CREATE,
    NetlinkSocket,
    Request,
    attribute,
    nested,
)

_NEWLINK, _IFINFOMSG, _IFLA_IFNAME, _IFLA_LINKINFO, _KIND = 16, struct.Struct("=BxHiII"), 3, 18, 1
_TUN = "/dev/net/tun"


def missing_modules() -> Sequence[str] | None:
    """Return the modules without which a task has no network; None: this process may not try.

    What needs them is made in a new network namespace, which ends with this call, and all in it. The kernel loads those
    that it has.
    """
    try:
        return in_new_namespace(lambda: list(_missing()))
    except OSError:
        return None


def lacks_log() -> bool:
    """Return whether the kernel lacks nfnetlink_log, without which no task sleeps; False: this process may not try."""
    try:
        in_new_namespace(lambda: AnnouncedPackets().close())
    except OSError as error:
        return error.errno == errno.EINVAL
    return False


def _missing() -> Iterator[str]:
    with closing(NetlinkSocket(NETLINK_ROUTE)) as route:
        for kind in (BRIDGE, MACVLAN):  # a macvlan without a lower link is EINVAL
            if route.run([_link(kind)]) == [errno.EOPNOTSUPP]:
                yield kind
    if _lacks_tun():
        yield TUN


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
