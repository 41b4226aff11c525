"""A stream into the journal of our own making.

systemd connects a unit's stdout and stderr by one stream when both go to the journal, and nothing tells the lines
apart afterwards. Handing the unit a stream of its own for stderr keeps the tender's words apart from the guest's.
"""

import socket

from solo5_systemd.errors import HostError
from solo5_systemd.journal.namespace import socket_of
from solo5_systemd.names import journald_of
from solo5_systemd.unit.log_fields import FACILITY

STDOUT_SOCKET = "/run/systemd/journal/stdout"
"""Of the host's journald."""

PATIENCE = 5.0
"""Seconds for a journald that is stuck: its socket takes some callers, and lets the others wait."""


def open_stream(identifier: str, unit: str, priority: int, namespace: str = "") -> int:
    """Connect, and say whose lines these will be; the protocol is that of sd_journal_stream_fd(3).

    The lines of the header are: identifier, unit (heeded since we are root), facility and priority as one number, and
    four switches that are all off: priority prefixes in the text, forwarding to syslog, to kmsg, to the console.

    Returns:
        a descriptor that belongs to the caller.

    Raises:
        HostError: journald cannot be reached.
    """
    path = socket_of(STDOUT_SOCKET, namespace)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    connection.settimeout(PATIENCE)
    try:
        connection.connect(path)
        connection.shutdown(socket.SHUT_RD)
        connection.sendall(f"{identifier}\n{unit}\n{FACILITY << 3 | priority}\n0\n0\n0\n0\n".encode())
    except OSError as error:
        connection.close()
        from solo5_systemd.dependencies import advice

        raise HostError(
            f"the journal cannot be reached at {path}: {error.strerror or error}.",
            f"See: systemctl status {journald_of(namespace)}" if namespace else advice(STDOUT_SOCKET),
        ) from error
    connection.setblocking(True)  # for who is given it: a tender does not expect to be asked to wait
    return connection.detach()
