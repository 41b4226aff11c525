"""Network namespaces by path, as `ip netns` and Nomad make them: the calling thread enters one for a while."""

import ctypes
import fcntl
import os
import stat
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import DeviceName, TaskName
from solo5_systemd.network import lease_files

if TYPE_CHECKING:
    from solo5_systemd.network.tap_counters import Traffic

_CLONE_NEWNET = 0x40000000  # linux/sched.h
_NS_GET_NSTYPE = 0xB703  # linux/nsfs.h, _IO(0xb7, 0x3)
_OWN = "/proc/thread-self/ns/net"
_COUNTERS = Path("/proc/thread-self/net/dev")

_libc = ctypes.CDLL(None, use_errno=True)
T = TypeVar("T")


class NetworkNamespace:
    """An open network namespace, which exists at least until `close`."""

    def __init__(self, path: str) -> None:
        """Open a namespace.

        Args:
            path: such as `/run/netns/web`.

        Raises:
            HostError: there is none at this path.
        """
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise _missing(path, error.strerror or "") from error
        try:
            _check(self._fd, path)
        except HostError:
            os.close(self._fd)
            raise

    @classmethod
    def own(cls) -> Self:
        """Open the namespace of the calling thread."""
        return cls(_OWN)

    @property
    def descriptor(self) -> int:
        """The file descriptor."""
        return self._fd

    def close(self) -> None:
        """Close the file descriptor."""
        os.close(self._fd)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Have the calling thread in this namespace for the time of the block. CAP_SYS_ADMIN is needed (setns(2)).

        Sockets, taps and files below /proc/sys/net that the block opens are those of this namespace, and stay so.

        Raises:
            HostError: the namespace cannot be entered.
        """
        before = NetworkNamespace.own()
        try:
            self.enter()
            try:
                yield
            finally:
                try:
                    before.enter()
                except HostError:
                    os.abort()  # a thread that stayed would change the links of another namespace than its own
        finally:
            before.close()

    def enter(self) -> None:
        """Move the calling thread into this namespace; raises as `entered`."""
        if _libc.setns(self._fd, _CLONE_NEWNET):
            reason = os.strerror(ctypes.get_errno())
            raise HostError(f"network namespace {self.path} cannot be entered: {reason}.")


def in_new_namespace(act: Callable[[], T]) -> T:
    """Return the result of a function that runs in a new network namespace, which ends with it unless it is kept.

    It runs in a thread that ends there, so that no other code does.

    Raises:
        OSError: the kernel refused the namespace; and what the function raises.
    """
    from concurrent.futures import ThreadPoolExecutor  # imported here for startup time

    def enter_and_act() -> T:
        if _libc.unshare(_CLONE_NEWNET):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return act()

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(enter_and_act).result()


def read_traffic_elsewhere() -> dict[TaskName, Mapping[DeviceName, "Traffic"]]:
    """Return the counters of NICs in other network namespaces than the caller's, by task and NIC.

    Only root reads them: for others, and of namespaces that are gone, there are none.
    """
    if not any((lease_files.STATE / "namespaces").glob("*")):
        return {}
    from solo5_systemd.network.tap_counters import parse_net_dev  # imported here for startup time

    owners: defaultdict[str, dict[str, tuple[TaskName, DeviceName]]] = defaultdict(dict)
    for record in lease_files.read_lease_records():
        if record.namespace:
            held = record.reservation
            owners[record.namespace] |= {lease.tap: (held.task, lease.nic) for lease in held.leases}
    found: defaultdict[TaskName, dict[DeviceName, Traffic]] = defaultdict(dict)
    for path, of_taps in owners.items():
        with suppress(HostError, OSError), closing(NetworkNamespace(path)) as namespace, namespace.entered():
            for link, counted in parse_net_dev(_COUNTERS.read_text(encoding="utf-8", errors="replace")):
                if link in of_taps:
                    task, nic = of_taps[link]
                    found[task][nic] = counted
    return dict(found)


def _check(fd: int, path: str) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise _missing(path, "it is not a namespace")
    try:
        kind = fcntl.ioctl(fd, _NS_GET_NSTYPE)
    except OSError as error:  # ENOTTY: of another file system than nsfs, such as the mount point of a deleted namespace
        raise _missing(path, "it is not a namespace") from error
    if kind != _CLONE_NEWNET:
        raise _missing(path, "it is a namespace of another kind")


def _missing(path: str, reason: str) -> HostError:
    return HostError(
        f"{path} is no network namespace ({reason}): expected one that exists.",
        "`ip netns list` shows those with a name.",
    )
