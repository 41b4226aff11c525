"""Network namespaces by path, as `ip netns` and Nomad make them: the calling thread enters one for a while."""

import ctypes
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from solo5_systemd.errors import HostError

_CLONE_NEWNET = 0x40000000  # linux/sched.h
_NS_GET_NSTYPE = 0xB703  # linux/nsfs.h, _IO(0xb7, 0x3)
_NSFS_MAGIC_LINK = "/proc/thread-self/ns/net"

_libc = ctypes.CDLL(None, use_errno=True)


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
        return cls(_NSFS_MAGIC_LINK)

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
            self._enter()
            try:
                yield
            finally:
                try:
                    before._enter()
                except HostError:
                    os.abort()  # a thread that stayed would change the links of another namespace than its own
        finally:
            before.close()

    def _enter(self) -> None:
        if _libc.setns(self._fd, _CLONE_NEWNET):
            reason = os.strerror(ctypes.get_errno())
            raise HostError(f"network namespace {self.path} cannot be entered: {reason}.")


def check_namespace(path: str) -> None:
    """Check that a path leads to a network namespace.

    Raises:
        HostError: it does not.
    """
    NetworkNamespace(path).close()


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
