"""A task's own network namespace: made and removed by callers, since solo5-networkd mounts nothing for the host.

A bind mount below /run/netns keeps it (as `ip netns add` does), as long as the task's unit, which names its path. What
is in it, solo5-networkd makes at each attach.

The alias of its loopback link marks it, set before it is mounted: a namespace of another program with the same path is
neither used nor removed.
"""

import os
import stat
from contextlib import closing, suppress
from pathlib import Path

from solo5_systemd.base.errors import HostError, TakenError
from solo5_systemd.base.mounts import bind_mount, detach
from solo5_systemd.network import rtnetlink as rt
from solo5_systemd.network.namespaces import NetworkNamespace, in_new_namespace
from solo5_systemd.network.raw_netlink import NETLINK_ROUTE, NLM_ACK, NetlinkSocket, attribute

_OWN = "/proc/thread-self/ns/net"
_SYSCTLS = (
    # Before there is a link: none gets an address.
    *(("ipv6/conf/all/disable_ipv6", "1"), ("ipv6/conf/default/disable_ipv6", "1")),
    # A macvlan reassembles the fragments of a multicast packet: in no memory. The lower limit comes first.
    *(("ipv4/ipfrag_low_thresh", "0"), ("ipv4/ipfrag_high_thresh", "0")),
)

_LOOPBACK = 1  # LOOPBACK_IFINDEX of include/net/flow.h


def make(path: str) -> None:
    """Make an empty network namespace at a path, unless there is one.

    Raises:
        TakenError: it belongs to another program.
        HostError: the kernel or the file system refused.
    """
    if os.path.lexists(path) and not is_own(path):
        raise TakenError(
            f"{path} belongs to another program: expected none, or the network namespace of an earlier start.",
            f"Remove it (`ip netns delete {Path(path).name}`), or give the task another name.",
        )
    with suppress(HostError), closing(NetworkNamespace(path)):
        return
    try:
        in_new_namespace(lambda: _make(path))
    except OSError as error:
        raise HostError(f"network namespace {path} cannot be made: {error.strerror}.") from error


def _make(path: str) -> None:
    Path(path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0))
    for name, value in _SYSCTLS:
        with suppress(OSError):  # a kernel without IPv6
            Path(f"/proc/sys/net/{name}").write_text(value, encoding="ascii")
    with closing(NetlinkSocket(NETLINK_ROUTE)) as route:
        route.execute([(rt.SETLINK, 0, rt.ifinfo(_LOOPBACK, attribute(rt.IFLA_IFALIAS, _mark(path))))])
    bind_mount(_OWN, path)


def _mark(path: str) -> bytes:
    return f"solo5 task namespace {Path(path).name}".encode()


def is_own(path: str) -> bool:
    """Return whether a path has a namespace of `make`, or the empty file that a killed `make` has left."""
    try:
        if not is_mounted(path):
            found = Path(path).lstat()
            return stat.S_ISREG(found.st_mode) and not found.st_size
        with (
            closing(NetworkNamespace(path)) as namespace,
            namespace.entered(),
            closing(NetlinkSocket(NETLINK_ROUTE)) as route,
        ):
            [(_, link)] = route.request(rt.GETLINK, NLM_ACK, rt.ifinfo(_LOOPBACK))
            return rt.link_attributes(link).get(rt.IFLA_IFALIAS, b"").rstrip(b"\0") == _mark(path)
    except (HostError, OSError):
        return False


def remove(path: str) -> None:
    """Remove the namespace at a path if it is one of `make`; idempotent.

    The kernel deletes its links with its last process.

    Raises:
        HostError: the kernel or the file system refused.
    """
    try:
        with suppress(FileNotFoundError):
            while is_own(path):
                if not is_mounted(path):
                    Path(path).unlink()
                    return
                detach(path)
    except OSError as error:
        raise HostError(f"network namespace {path} cannot be removed: {error.strerror}.") from error


def is_mounted(path: str) -> bool:
    """Return whether something is mounted at a path below /run/netns, which `ip netns` may have bound to itself.

    A soft reboot of the host leaves the mount points of tasks that it ended.
    """
    try:
        return Path(path).lstat().st_dev != Path("/run").stat().st_dev
    except FileNotFoundError:
        return False
