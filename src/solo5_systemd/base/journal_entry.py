"""Entries of journald's native protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL)."""

import socket
from collections.abc import Mapping

from solo5_systemd.base.errors import host_errors

NATIVE_SOCKET = "/run/systemd/journal/socket"
"""The datagram socket of the host's journald."""

IDLE_END = "4033d3696eeb4b798013fa1cf68f0a89"
"""MESSAGE_ID= of the entry that solo5-networkd has ended an idle task."""


def write_entry(fields: Mapping[str, object], namespace: str = "") -> None:
    """Send one entry to the journald of a journal namespace.

    Args:
        fields: a newline in a value is sent as a space.
        namespace: empty: the host's journal.

    Raises:
        HostError: journald cannot be reached, or its queue is full.
    """
    datagram = "".join(f"{name}={str(value).replace(chr(10), ' ')}\n" for name, value in fields.items())
    path = namespace_path(NATIVE_SOCKET, namespace)
    kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    with socket.socket(socket.AF_UNIX, kind) as journal, host_errors(f"journald cannot be reached at {path}"):
        journal.sendto(datagram.encode(), path)


def namespace_path(path: str, namespace: str) -> str:
    """Return the path of a socket of journald for a journal namespace (LogNamespace= of systemd.exec(5)).

    Args:
        path: of the socket of the host's journald.
        namespace: empty: the host's journal.
    """
    return path.replace("/systemd/journal/", f"/systemd/journal.{namespace}/", 1) if namespace else path
