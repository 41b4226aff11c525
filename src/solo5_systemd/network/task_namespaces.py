"""A task's own network namespace: made and removed by callers, since solo5-networkd mounts nothing for the host.

A bind mount below /run/netns keeps it (as `ip netns add` does), as long as the task's unit, which names its path. What
is in it, solo5-networkd makes at each attach.
"""

import ctypes
import os
import threading
from contextlib import closing, suppress
from pathlib import Path

from solo5_systemd.errors import HostError
from solo5_systemd.files.mounts import bind_mount, detach
from solo5_systemd.network.namespaces import NetworkNamespace

_CLONE_NEWNET = 0x40000000  # linux/sched.h
_OWN = "/proc/thread-self/ns/net"
_WITHOUT_IPV6 = ("all", "default")

_libc = ctypes.CDLL(None, use_errno=True)


def make(path: str) -> None:
    """Make an empty network namespace at a path, unless there is one.

    Raises:
        HostError: the kernel or the file system refused.
    """
    with suppress(HostError), closing(NetworkNamespace(path)):
        return
    failed: list[OSError] = []

    def in_thread() -> None:  # which ends in the new namespace: no other code runs there
        try:
            _make(path)
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    if failed:
        raise HostError(
            f"network namespace {path} cannot be made: {failed[0].strerror}.",
            "Set task_namespace = false in the settings of the task's network to start it without.",
        ) from failed[0]


def _make(path: str) -> None:
    Path(path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0))
    if _libc.unshare(_CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    for links in _WITHOUT_IPV6:  # before there is a link: none gets an address
        with suppress(OSError):  # a kernel without IPv6
            Path(f"/proc/sys/net/ipv6/conf/{links}/disable_ipv6").write_text("1", encoding="ascii")
    bind_mount(_OWN, path)


def remove(path: str) -> None:
    """Remove the namespace at a path; idempotent. The kernel deletes its links with its last process.

    Raises:
        HostError: the kernel or the file system refused.
    """
    try:
        with suppress(FileNotFoundError):
            while _is_mounted(path):
                detach(path)
            Path(path).unlink()
    except OSError as error:
        raise HostError(f"network namespace {path} cannot be removed: {error.strerror}.") from error


def _is_mounted(path: str) -> bool:
    """Return whether something is mounted at a path below /run/netns, which `ip netns` may have bound to itself."""
    return Path(path).lstat().st_dev != Path("/run").stat().st_dev
