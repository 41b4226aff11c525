"""systemd's file descriptor store, for restarts: sd_pid_notify_with_fds(3), sd_listen_fds(3)."""

import fcntl
import os
import select
import socket
from collections.abc import Mapping
from contextlib import suppress

LISTEN_FDS_START = 3
"""The first descriptor passed (SD_LISTEN_FDS_START)."""

FD_SETSIZE = 1024
"""select(2) of libnftables aborts the process where the number of its socket is as high (fortified FD_SET)."""


def store(name: str, fd: int) -> None:
    """Store a descriptor with FDPOLL=0: it stays stored after POLLHUP. No effect without $NOTIFY_SOCKET."""
    _notify(f"FDSTORE=1\nFDNAME={name}\nFDPOLL=0", fd)


def remove(name: str) -> None:
    """Remove the descriptors of this name; systemd closes them. No effect without $NOTIFY_SOCKET."""
    _notify(f"FDSTOREREMOVE=1\nFDNAME={name}")


def barrier(timeout_s: float) -> bool:
    """Wait until systemd has processed all earlier notifications (sd_notify_barrier(3)), such as removals.

    Returns:
        False after a timeout.
    """
    if not os.environ.get("NOTIFY_SOCKET"):
        return True
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    try:
        try:
            _notify("BARRIER=1", theirs)
        finally:
            os.close(theirs)
        hung_up = select.poll()
        hung_up.register(ours, 0)
        return bool(hung_up.poll(timeout_s * 1000))
    finally:
        os.close(ours)


def restored() -> Mapping[str, int]:
    """Return the stored descriptors by name, now the caller's; of two with the same name, the later one.

    Their numbers are those of `out_of_select`: all that the process opens afterwards has a low number.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return {}
    names = os.environ.get("LISTEN_FDNAMES", "").split(":")
    count = int(os.environ.get("LISTEN_FDS", "0"))
    stored: dict[str, int] = {}
    for fd, name in zip(range(LISTEN_FDS_START, LISTEN_FDS_START + count), names, strict=True):
        if name in stored:
            os.close(stored[name])
        stored[name] = out_of_select(fd)
    return stored


def out_of_select(fd: int) -> int:
    """Return the descriptor with another number, from `FD_SETSIZE` on, and not inheritable.

    It keeps its number where RLIMIT_NOFILE allows no such one.
    """
    with suppress(OSError):
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FD_SETSIZE)
        os.close(fd)
        return moved
    os.set_inheritable(fd, False)
    return fd


def _notify(message: str, *fds: int) -> None:
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.connect(f"\0{address[1:]}" if address.startswith("@") else address)
        if fds:
            socket.send_fds(notify, [message.encode()], list(fds))
        else:
            notify.send(message.encode())
