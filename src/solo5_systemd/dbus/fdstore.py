"""Notifications to systemd, and its file descriptor store: sd_notify(3), sd_listen_fds(3).

Imports the standard library and `base/` only, so that a missing dependency can be reported.
"""

import array
import logging
import os
import select
import socket
from collections.abc import Mapping, Sequence

from solo5_systemd.base.descriptors import out_of_select

LISTEN_FDS_START = 3
"""The first descriptor passed (SD_LISTEN_FDS_START)."""

TOGETHER_MAX = 250
"""Descriptors that can be stored under one name: a message of sockets has 253 at most (SCM_MAX_FD of net/scm.h)."""

_log = logging.getLogger(__name__)


def store(name: str, fds: Sequence[int]) -> None:
    """Store at most TOGETHER_MAX descriptors under one name. No effect without $NOTIFY_SOCKET.

    systemd gets one descriptor in their place: a socket that has them in its queue (docs/decisions/published-ports.md).
    FDPOLL=0: it stays stored after POLLHUP, which the socket has from the beginning.
    """
    if not os.environ.get("NOTIFY_SOCKET"):
        return
    carrier, sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with carrier, sender:
        try:
            socket.send_fds(sender, [b"\0"], list(fds))
        except OSError as error:  # ETOOMANYREFS: more of them in all queues than RLIMIT_NOFILE
            _log.warning("descriptors %s not kept over a restart: %s", name, error.strerror)
            return
        notify(f"FDSTORE=1\nFDNAME={name}\nFDPOLL=0", carrier.fileno())


def remove(name: str) -> None:
    """Remove the descriptors of this name; systemd closes them. No effect without $NOTIFY_SOCKET."""
    notify(f"FDSTOREREMOVE=1\nFDNAME={name}")


def barrier(timeout_s: float) -> bool:
    """Wait until systemd has processed all earlier notifications (sd_notify_barrier(3)), such as removals.

    Returns:
        False after a timeout.
    """
    if not os.environ.get("NOTIFY_SOCKET"):
        return True
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    with os.fdopen(ours):
        with os.fdopen(theirs, "w"):
            notify("BARRIER=1", theirs)
        hung_up = select.poll()
        hung_up.register(ours, 0)
        return bool(hung_up.poll(timeout_s * 1000))


def restored() -> Mapping[str, Sequence[int]]:
    """Return copies of the stored descriptors by name, now the caller's; of two with the same name, the later ones.

    Their numbers are those of `out_of_select`: all that the process opens afterwards has a low number.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return {}
    names = os.environ.get("LISTEN_FDNAMES", "").split(":")
    count = int(os.environ.get("LISTEN_FDS", "0"))
    carriers = dict(zip(names, range(LISTEN_FDS_START, LISTEN_FDS_START + count), strict=False))
    stored = {name: carried(fd) for name, fd in carriers.items()}
    for fd in range(LISTEN_FDS_START, LISTEN_FDS_START + count):
        os.close(fd)
    return stored


def carried(carrier: int) -> Sequence[int]:
    """Return copies of the descriptors in the queue of a stored socket."""
    fds = array.array("i")
    room = socket.CMSG_SPACE(TOGETHER_MAX * fds.itemsize)
    with socket.socket(fileno=os.dup(carrier)) as queue:
        try:  # socket.recv_fds() ignores its flags
            _, ancillary, _, _ = queue.recvmsg(1, room, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:
            return ()
    for _, _, data in ancillary:
        fds.frombytes(data)
    return [out_of_select(fd) for fd in fds]


def notify(message: str, *fds: int) -> None:
    """Send a message of sd_notify(3), with descriptors. No effect without $NOTIFY_SOCKET."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(f"\0{address[1:]}" if address.startswith("@") else address)
        if fds:
            socket.send_fds(sender, [message.encode()], list(fds))
        else:
            sender.send(message.encode())
