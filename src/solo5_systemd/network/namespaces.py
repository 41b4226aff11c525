"""Network namespaces: entered by a thread for a while, and those of tasks, which are made and removed here.

A task's own is made by callers, since solo5-networkd mounts nothing for the host. A bind mount below /run/netns keeps
it (as `ip netns add` does), as long as the task's unit, which names its path. What is in it, solo5-networkd makes at
each attach. The alias of its loopback link marks it, set before it is mounted: a namespace of another program with the
same path is neither used nor removed.
"""

import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from solo5_systemd.base.descriptors import out_of_select
from solo5_systemd.base.errors import HostError, TakenError, host_errors
from solo5_systemd.base.mounts import bind_mount, checked, detach, libc
from solo5_systemd.base.names import DeviceName, TaskName
from solo5_systemd.network import netlink as nl

if TYPE_CHECKING:
    from solo5_systemd.network.tap_counters import Traffic

_CLONE_NEWNET = 0x40000000  # linux/sched.h
_NS_GET_NSTYPE = 0xB703  # linux/nsfs.h, _IO(0xb7, 0x3)
_OWN = "/proc/thread-self/ns/net"
_COUNTERS = Path("/proc/thread-self/net/dev")

T = TypeVar("T")


class NetworkNamespace:
    """An open network namespace, which exists at least until `close`."""

    def __init__(self, path: str = _OWN) -> None:
        """Open the namespace at a path; by default that of the calling thread. Raises HostError if there is none."""
        self.path = path
        try:
            opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO there would block
        except OSError as error:
            reason = error.strerror
        else:
            self.descriptor = out_of_select(opened)
            with suppress(OSError):  # ENOTTY: of another file system, such as the mount point of a deleted namespace
                is_file = stat.S_ISREG(os.fstat(self.descriptor).st_mode)
                if is_file and fcntl.ioctl(self.descriptor, _NS_GET_NSTYPE) == _CLONE_NEWNET:
                    return
            os.close(self.descriptor)
            reason = "it is something else"
        raise HostError(
            f"{path} is no network namespace ({reason}).",
            "`ip netns list` shows those with a name.",
        )

    @property
    def is_at_path(self) -> bool:
        """Whether its path leads to it still."""
        with suppress(OSError):
            return os.path.samestat(os.stat(self.path), os.fstat(self.descriptor))  # noqa: PTH116 - no Path
        return False

    def close(self) -> None:
        """Close the file descriptor."""
        os.close(self.descriptor)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Have the calling thread in this namespace for the time of the block. CAP_SYS_ADMIN is needed (setns(2)).

        Sockets, taps and files below /proc/sys/net that the block opens are those of this namespace, and stay so.

        Raises:
            HostError: the namespace cannot be entered.
        """
        with closing(NetworkNamespace()) as before:
            self.enter()
            try:
                yield
            finally:
                try:
                    before.enter()
                except HostError:
                    os.abort()  # a thread that stayed would change the links of another namespace than its own

    def enter(self) -> None:
        """Move the calling thread into this namespace; raises as `entered`."""
        with host_errors(f"network namespace {self.path} cannot be entered"):
            checked(libc().setns(self.descriptor, _CLONE_NEWNET))


def in_new_namespace(act: Callable[[], T]) -> T:
    """Return the result of a function that runs in a new network namespace, which ends with it unless it is kept.

    It runs in a thread that ends there, so that no other code does.

    Raises:
        OSError: the kernel refused the namespace; and what the function raises.
    """
    from concurrent.futures import ThreadPoolExecutor  # imported here for startup time

    def enter_and_act() -> T:
        checked(libc().unshare(_CLONE_NEWNET))
        return act()

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(enter_and_act).result()


def read_traffic_elsewhere() -> dict[TaskName, Mapping[DeviceName, "Traffic"]]:
    """Return the counters of NICs in other network namespaces than the caller's, by task and NIC.

    Only root reads them: for others, and of namespaces that are gone, there are none.
    """
    from solo5_systemd.network import lease_files  # imported here for startup time

    if not any((lease_files.STATE / "namespaces").glob("*")):
        return {}
    from solo5_systemd.network.tap_counters import parse_net_dev

    found: dict[TaskName, Mapping[DeviceName, Traffic]] = {}
    counted: dict[str, Mapping[str, Traffic]] = {}  # by namespace, each read once: the tasks of a group share one
    for record in lease_files.read_lease_records():
        held, path = record.reservation, record.namespace
        if path and path not in counted:
            counted[path] = {}
            with suppress(HostError, OSError), closing(NetworkNamespace(path)) as its, its.entered():
                counted[path] = dict(parse_net_dev(_COUNTERS.read_text(encoding="utf-8", errors="replace")))
        if of_links := counted.get(path):
            found[held.task] = {each.nic: of_links[each.tap] for each in held.leases if each.tap in of_links}
    return found


# -- of tasks ----------------------------------------------------------------------------------------------------------

_SYSCTLS = (
    # Before there is a link: none gets an address.
    *(("ipv6/conf/all/disable_ipv6", "1"), ("ipv6/conf/default/disable_ipv6", "1")),
    # A macvlan reassembles the fragments of a multicast packet: in no memory. The lower limit comes first.
    *(("ipv4/ipfrag_low_thresh", "0"), ("ipv4/ipfrag_high_thresh", "0")),
)

_LOOPBACK = 1  # LOOPBACK_IFINDEX of include/net/flow.h


def make_task_namespace(path: str) -> None:
    """Make an empty network namespace at a path, unless there is one.

    Raises TakenError for one of another program, HostError if the kernel or the file system refuses.
    """
    if os.path.lexists(path) and not is_task_namespace(path):
        raise TakenError(
            f"{path} belongs to another program.",
            f"Remove it (`ip netns delete {Path(path).name}`), or give the task another name.",
        )
    with suppress(HostError), closing(NetworkNamespace(path)):
        return
    with host_errors(f"network namespace {path} cannot be made"):
        in_new_namespace(lambda: _make(path))


def _make(path: str) -> None:
    Path(path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with suppress(FileExistsError):  # of a call that was killed before the mount
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0))
    for name, value in _SYSCTLS:
        with suppress(OSError):  # a kernel without IPv6
            Path(f"/proc/sys/net/{name}").write_text(value, encoding="ascii")
    with closing(nl.NetlinkSocket()) as route:
        route.execute([(nl.SETLINK, 0, nl.ifinfo(_LOOPBACK, nl.attribute(nl.IFLA_IFALIAS, _mark(path))))])
    bind_mount(_OWN, path)


def _mark(path: str) -> bytes:
    return f"solo5 task namespace {Path(path).name}".encode()


def is_task_namespace(path: str) -> bool:
    """Return whether a path has a namespace of `make_task_namespace`, or the empty file that a killed one has left."""
    try:
        if not is_mounted(path):
            found = Path(path).lstat()
            return stat.S_ISREG(found.st_mode) and not found.st_size
        with (
            closing(NetworkNamespace(path)) as namespace,
            namespace.entered(),
            closing(nl.NetlinkSocket()) as route,
        ):
            [(_, link)] = route.request(nl.GETLINK, nl.NLM_ACK, nl.ifinfo(_LOOPBACK))
            return nl.link_attributes(link).get(nl.IFLA_IFALIAS, b"").rstrip(b"\0") == _mark(path)
    except (HostError, OSError):
        return False


def remove_task_namespace(path: str) -> None:
    """Remove a task's namespace at a path; idempotent. Its links end with its last process. Raises HostError."""
    with host_errors(f"network namespace {path} cannot be removed"), suppress(FileNotFoundError):
        while is_task_namespace(path):  # first what is mounted, then the empty file below it
            if not is_mounted(path):
                Path(path).unlink()
                return
            detach(path)


def is_mounted(path: str) -> bool:
    """Return whether something is mounted at a path below /run/netns, which `ip netns` may have bound to itself.

    A soft reboot of the host leaves the mount points of tasks that it ended.
    """
    try:
        return os.lstat(path).st_dev != os.stat("/run").st_dev  # noqa: PTH116 - no Path, as in lease_files
    except FileNotFoundError:
        return False
