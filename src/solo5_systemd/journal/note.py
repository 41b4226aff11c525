"""A note of our own in the journal: what nobody else will know after the end of a task.

The protocol is systemd.io/JOURNAL_NATIVE_PROTOCOL: a datagram of `FIELD=value` lines. Guests and tenders cannot send
one: they have their streams, and run as another user than root.
"""

import socket
from collections.abc import Mapping

from solo5_systemd.errors import HostError
from solo5_systemd.unit.state import UnitState

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
