"""Writes to journald: streams for the stdout and stderr of units, and entries of the native protocol."""

import socket

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.journal_entry import NATIVE_SOCKET, write_entry
from solo5_systemd.base.names import journald_of
from solo5_systemd.task.log_fields import FACILITY
from solo5_systemd.unit.state import UnitState

STDOUT_SOCKET = "/run/systemd/journal/stdout"
"""The stream socket of the host's journald."""

CONNECT_TIMEOUT_S = 5.0
"""For connect(2) to a journald that hangs: its backlog is limited, and connections beyond it block."""

HUNG_MESSAGE_ID = "364a830e83d0497ea6d69f2978b23047"
"""MESSAGE_ID= of the entry that a tender hangs and is killed."""

WARNING = 4


def namespace_path(path: str, namespace: str) -> str:
    """Return the path of a socket for a journal namespace (LogNamespace= of systemd.exec(5)); empty: the host's."""
    return path.replace("/systemd/journal/", f"/systemd/journal.{namespace}/", 1) if namespace else path


def open_stream(identifier: str, unit: str, priority: int, namespace: str = "") -> int:
    """Open a stream to journald, with the protocol of sd_journal_stream_fd(3).

    systemd connects stdout and stderr of a unit to one stream if both go to the journal, and their lines cannot be
    distinguished afterwards. A second stream for stderr separates the tender's messages from the guest's console.

    The header lines are: identifier, unit (accepted from root only), facility and priority as one number, and four
    switches, all off: priority prefixes in the text, forwarding to syslog, to kmsg, to the console.

    Returns:
        a descriptor, owned by the caller.

    Raises:
        HostError: journald cannot be reached.
    """
    path = namespace_path(STDOUT_SOCKET, namespace)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    connection.settimeout(CONNECT_TIMEOUT_S)
    try:
        connection.connect(path)
        connection.shutdown(socket.SHUT_RD)
        connection.sendall(f"{identifier}\n{unit}\n{FACILITY << 3 | priority}\n0\n0\n0\n0\n".encode())
    except OSError as error:
        connection.close()
        from solo5_systemd.base.dependencies import advice

        raise HostError(
            f"journald cannot be reached at {path}: {error.strerror or error}.",
            f"See: systemctl status {journald_of(namespace)}" if namespace else advice(STDOUT_SOCKET),
        ) from error
    connection.setblocking(True)  # a tender does not handle EAGAIN
    return connection.detach()


def log_hung(state: UnitState) -> None:
    """Log that the tender of a task hangs and is killed: the outcome is derived from this entry later.

    Guests and tenders cannot forge it: they are not root (_UID=0 is matched). From OBJECT_PID=, journald derives the
    unit, so that `journalctl -u UNIT` shows it.

    Raises:
        HostError: journald cannot be reached.
    """
    write_entry(
        {
            "MESSAGE": f"{state.unit}: Killing hung tender: main thread exited, others still running (zombie leader)",
            "MESSAGE_ID": HUNG_MESSAGE_ID,
            "PRIORITY": WARNING,
            "SYSLOG_IDENTIFIER": "solo5-systemd",
            "OBJECT_PID": state.main_pid,
            "SOLO5_TASK": state.task,
        },
        NATIVE_SOCKET,
    )
