"""Descriptors that systemd keeps for a service over its restarts: sd_pid_notify_with_fds(3), sd_listen_fds(3)."""

import os
import select
import socket
from collections.abc import Mapping

FIRST = 3
"""The number of the first descriptor that is handed back."""


def store(name: str, fd: int) -> None:
    """Have systemd keep a descriptor, also when nobody is at its other end; nothing happens without systemd."""
    _notify(f"FDSTORE=1\nFDNAME={name}\nFDPOLL=0", fd)


def forget(name: str) -> None:
    """Have systemd close those of this name."""
    _notify(f"FDSTOREREMOVE=1\nFDNAME={name}")


def barrier(seconds: float) -> bool:
    """Wait until systemd has done all that it was notified of, such as closing what was forgotten (sd_notify(3)).

    Returns:
        False where that took longer.
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
        return bool(hung_up.poll(seconds * 1000))
    finally:
        os.close(ours)


def restored() -> Mapping[str, int]:
    """What was kept, by name; of two with one name the later. The descriptors belong to the caller."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return {}
    names = os.environ.get("LISTEN_FDNAMES", "").split(":")
    count = int(os.environ.get("LISTEN_FDS", "0"))
    kept: dict[str, int] = {}
    for fd, name in zip(range(FIRST, FIRST + count), names, strict=True):
        os.set_inheritable(fd, False)
        if name in kept:
            os.close(kept[name])
        kept[name] = fd
    return kept


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
