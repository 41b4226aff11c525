"""A stream into the journal of our own making.

systemd connects a unit's stdout and stderr by one stream when both go to the journal, and nothing tells the lines
apart afterwards. Handing the unit a stream of its own for stderr keeps the tender's words apart from the guest's.
"""

import socket
from collections.abc import Mapping

from solo5_systemd.errors import HostError
from solo5_systemd.names import journald_of
from solo5_systemd.unit.log_fields import FACILITY
from solo5_systemd.unit.state import UnitState

# Where the journald of a journal namespace is reached (LogNamespace= of systemd.exec(5)); empty: the host's.


def socket_of(path: str, namespace: str) -> str:
    """Return the path of a namespace's socket, given that of the host's journald."""
    return path.replace("/systemd/journal/", f"/systemd/journal.{namespace}/", 1) if namespace else path


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


# A note of our own in the journal: what nobody else will know after the end of a task.
#
# The protocol is systemd.io/JOURNAL_NATIVE_PROTOCOL: a datagram of `FIELD=value` lines. Guests and tenders cannot send
# one: they have their streams, and run as another user than root.

NATIVE_SOCKET = "/run/systemd/journal/socket"

HUNG = "364a830e83d0497ea6d69f2978b23047"
"""MESSAGE_ID= of the note that a tender was found hung, and is killed."""

WARNING = 4


def note_hung(state: UnitState) -> None:
    """Write down that this task's tender is killed because it hangs; `journalctl -u UNIT` shows it.

    OBJECT_PID= has journald add the unit that the process is in.

    Raises:
        HostError: journald cannot be reached.
    """
    write(
        {
            "MESSAGE": f"{state.unit}: The tender hangs, its main thread dead (zombie leader): it is killed.",
            "MESSAGE_ID": HUNG,
            "PRIORITY": WARNING,
            "SYSLOG_IDENTIFIER": "solo5-systemd",
            "OBJECT_PID": state.main_pid,
            "SOLO5_TASK": state.task,
        },
        NATIVE_SOCKET,
    )


def write(fields: Mapping[str, object], path: str) -> None:
    """Write one entry to journald's native socket at `path`; no value may have a newline.

    Raises:
        HostError: journald cannot be reached, or its queue is full.
    """
    datagram = "".join(f"{name}={value}\n" for name, value in fields.items())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as journal:
        try:
            journal.sendto(datagram.encode(), path)
        except OSError as error:
            raise HostError(f"the journal cannot be reached at {path}: {error.strerror or error}.") from error
