"""The consoles of tasks in the journal: streams of new ones, the lines of a run, and why it ended or did not start.

`Storage=none` and `MaxLevelStore=` of journald.conf(5) drop consoles silently: `storage_problem`. The reader is
imported where it is used, for startup time: most commands do not read the journal.
"""

import os
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from solo5_systemd.base.declared_units import declared_task, stderr_lines, task_of
from solo5_systemd.base.dependencies import advice
from solo5_systemd.base.errors import HostError, host_errors
from solo5_systemd.base.event_loop import off_the_loop, on_a_loop
from solo5_systemd.base.journal_entry import IDLE_END, namespace_path, write_entry
from solo5_systemd.base.names import INVOCATION_LINK, UNITS, TaskName, journald_of
from solo5_systemd.base.paths import boot_id, open_in_thread
from solo5_systemd.task.log_fields import FACILITY, STDOUT_PRIORITY
from solo5_systemd.unit.state import UnitState

if TYPE_CHECKING:
    from solo5_systemd.journal.lines import Line
    from solo5_systemd.unit.failure_messages import ExitMessages

STDOUT_SOCKET = "/run/systemd/journal/stdout"
"""The stream socket of the host's journald."""

CONNECT_TIMEOUT_S = 5.0
"""For connect(2) to a journald that hangs: its backlog is limited, and connections beyond it block."""

HUNG_MESSAGE_ID = "364a830e83d0497ea6d69f2978b23047"
"""MESSAGE_ID= of the entry that a tender hangs and is killed."""

MAX_LINES = 20
"""Console lines to read of a run that has ended, and messages of PID 1; one run has fewer of these."""

FAILURE_LINES = 10
"""Lines to read of a unit that failed to start: of PID 1, and of the unit's processes."""

_WARNING = 4
_OF_ROOT = "_UID=0"
_WRITER = TaskName("solo5-systemd")

_storing: dict[str, str] = {}
"""The run of each journald that has stored a line; its configuration is that of its start."""


class Journal:
    """The journal, for the consoles of tasks; an empty namespace is the host's journal. Most reads need no event loop.

    Attributes:
        namespace: returns that of the consoles of new tasks.
    """

    def __init__(self, namespace: Callable[[], str]) -> None:
        self.namespace = namespace

    async def open_stream(self, unit: str, priority: int, namespace: str) -> int:
        """Open a journal stream in a thread; a journald that hangs would block the event loop."""
        return await open_in_thread(lambda: open_stream(str(task_of(unit) or unit), unit, priority, namespace))

    async def lines(
        self, state: UnitState, *, until: Callable[[], bool] | None = None, last: int | None = None
    ) -> AsyncGenerator["Line", None]:
        """Yield the console lines of one run, oldest first; without PID 1's messages about the unit.

        Args:
            until: wait for new lines until this is true, then yield those that are left. None: do not wait.
            last: begin with so many lines from the end; None: with the first one.
        """
        from solo5_systemd.journal.reader import BATCH_LINES, JournalReader, batches

        # Not by _SYSTEMD_INVOCATION_ID=: journald looks that up when it processes a line, and the last lines of a unit
        # that has just ended may be without it. So the lines of a run are those since its start.
        matches = (f"_SYSTEMD_UNIT={state.unit}", "_TRANSPORT=stdout")
        with closing(JournalReader(matches, state.log_namespace)) as journal:
            if until is not None:
                journal.watch()
                if os.geteuid() != 0 and not journal.has_files:
                    return  # no permission: there is nothing to wait for
            if last is None:
                journal.seek_realtime(state.started)
            else:
                journal.seek_last(last)
            async with aclosing(batches(journal, BATCH_LINES, until)) as found:
                async for batch in found:
                    for line in batch:
                        if line.realtime >= state.started:  # the last lines may begin in an earlier run
                            yield line

    async def failure_messages(self, unit: str, namespace: str) -> Sequence[str]:
        """Return PID 1's messages about a unit that failed to start, then lines of its processes; each oldest first.

        `namespace`: of the processes; PID 1 writes to the host's journal.
        """
        from solo5_systemd.unit.failure_messages import GENERIC_MESSAGE_IDS

        def read() -> list[str]:
            by_systemd = _last_of_boot(FAILURE_LINES, f"UNIT={unit}", "_PID=1")
            found = [line for line, message_id in by_systemd if message_id not in GENERIC_MESSAGE_IDS]
            of_unit = (f"_SYSTEMD_UNIT={unit}", "_TRANSPORT=stdout")
            found += [line for line, _ in _last_of_boot(FAILURE_LINES, *of_unit, namespace=namespace)]
            return [_text(line).strip() for line in found]

        await self.sync(task_of(unit) or TaskName(unit), namespace)
        return await off_the_loop(read)

    async def exit_messages(self, state: UnitState) -> "ExitMessages":
        """Return the exit messages of a run; empty ones if the journal cannot be read."""
        from solo5_systemd.unit.failure_messages import ExitMessages

        with suppress(HostError):
            return await off_the_loop(lambda: read_exit_messages(state))
        return ExitMessages()

    async def log_hung(self, state: UnitState) -> None:
        """Log that the tender of a task hangs and is killed: the outcome is derived from this entry later.

        Guests and tenders cannot forge it (_UID=0 is matched). From OBJECT_PID=, journald derives the unit. Raises
        HostError where journald cannot be reached.
        """
        fields = {
            "MESSAGE": f"{state.unit}: Killing hung tender: main thread exited, others still running (zombie leader)",
            "MESSAGE_ID": HUNG_MESSAGE_ID,
            "PRIORITY": _WARNING,
            "SYSLOG_IDENTIFIER": "solo5-systemd",
            "OBJECT_PID": state.main_pid,
            "SOLO5_TASK": state.task,
        }
        write_entry(fields)

    async def sync(self, task: TaskName, namespace: str) -> None:
        """Wait until journald has written all lines that a task wrote before."""
        from solo5_systemd.journal.sync import synchronize

        await on_a_loop(synchronize(task, namespace))


def open_stream(identifier: str, unit: str, priority: int, namespace: str = "") -> int:
    """Open a stream to journald, as sd_journal_stream_fd(3), which the caller closes; raises HostError.

    systemd connects stdout and stderr of a unit to one stream if both go to the journal, and their lines cannot be
    distinguished afterwards. A second stream for stderr separates the tender's messages from the guest's console.

    The header lines are: identifier, unit (accepted from root only), facility and priority as one number, and four
    switches, all off: priority prefixes in the text, forwarding to syslog, to kmsg, to the console.
    """
    path = namespace_path(STDOUT_SOCKET, namespace)
    hint = f"See: systemctl status {journald_of(namespace)}" if namespace else advice(STDOUT_SOCKET)
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection,
        host_errors(f"journald cannot be reached at {path}", hint),
    ):
        connection.settimeout(CONNECT_TIMEOUT_S)
        connection.connect(path)
        connection.shutdown(socket.SHUT_RD)
        connection.sendall(f"{identifier}\n{unit}\n{FACILITY << 3 | priority}\n0\n0\n0\n0\n".encode())
        connection.setblocking(True)  # a tender does not handle EAGAIN
        return connection.detach()


async def storage_problem(namespace: str = "") -> str:
    """Write a line as a guest does, read it back, and return why that fails; empty: consoles are stored.

    Each instance of journald is checked once, as long as it stores lines. Requires root.
    """
    from solo5_systemd.journal.reader import JournalReader
    from solo5_systemd.journal.sync import synchronize

    journald = journald_of(namespace)
    run = ""
    with suppress(OSError):  # it is started by the first line
        run = str(Path(UNITS, f"{INVOCATION_LINK}{journald}").readlink())
    if run and _storing.get(journald) == run:
        return ""
    text = f"Checking whether consoles are stored: {os.urandom(8).hex()}"
    try:
        stream = await open_in_thread(lambda: open_stream(_WRITER, "", STDOUT_PRIORITY, namespace))
        try:
            os.write(stream, f"{text}\n".encode())
        finally:
            os.close(stream)
        await synchronize(_WRITER, namespace)
        with closing(JournalReader((f"MESSAGE={text}",), namespace)) as journal:
            is_stored = bool(journal.last(1))
    except HostError as error:
        return str(error)
    if not is_stored:
        file = f"/etc/systemd/journald{f'@{namespace}' if namespace else ''}.conf"
        return (
            f"{journald} stores no lines of level info, which consoles have: expected neither Storage=none nor "
            f"MaxLevelStore= below info in {file}. See: systemd-analyze cat-config {file.removeprefix('/etc/')}"
        )
    _storing[journald] = run
    return ""


def read_exit_messages(state: UnitState) -> "ExitMessages":
    """Return the exit messages of a run; raises HostError where the journal cannot be read."""
    from solo5_systemd.journal.lines import Stream
    from solo5_systemd.journal.reader import CONSOLE_MATCHES
    from solo5_systemd.unit.failure_messages import ExitMessages, UnitMessage

    def last(count: int, *matches: str, namespace: str = "") -> "list[tuple[Line, str]]":
        """Return the last lines since the run's start; see `Journal.lines`."""
        lines = _last_of_boot(count, *matches, namespace=namespace)
        if state.main_start:  # CLOCK_MONOTONIC: the other one may have been set back during the run
            return [each for each in lines if each[0].position.monotonic >= state.main_start]
        return [each for each in lines if each[0].realtime >= state.started]

    of_unit = (*CONSOLE_MATCHES, f"_SYSTEMD_UNIT={state.unit}")
    console = [line for line, _ in last(MAX_LINES, *of_unit, namespace=state.log_namespace)]
    guest = [_text(line) for line in console if line.stream is Stream.STDOUT]
    tender = [_text(line) for line in console if line.stream is Stream.STDERR]
    if declared_task(state.unit) is not None:  # they are in the journal only once the task's preparation has stopped
        tender = stderr_lines(state.task)[-MAX_LINES:]
    by_systemd = last(MAX_LINES, f"UNIT={state.unit}", "_PID=1")
    return ExitMessages(
        guest=guest,
        tender=tender,
        console=[_text(line) for line in console] if len(console) > len(guest) else [*guest, *tender],
        systemd=[UnitMessage(_text(line), message_id) for line, message_id in by_systemd],
        hung=bool(last(1, f"MESSAGE_ID={HUNG_MESSAGE_ID}", f"SOLO5_TASK={state.task}", _OF_ROOT)),
        idle=bool(last(1, f"MESSAGE_ID={IDLE_END}", f"OBJECT_SYSTEMD_UNIT={state.unit}", _OF_ROOT)),
    )


def _last_of_boot(count: int, *matches: str, namespace: str = "") -> "list[tuple[Line, str]]":
    """Return the last lines of this boot that match, oldest first, each with its MESSAGE_ID=."""
    from solo5_systemd.journal.reader import JournalReader

    boot = f"_BOOT_ID={boot_id().replace('-', '')}"  # as journald writes it
    with closing(JournalReader((*matches, boot), namespace)) as reader:
        return reader.last(count)[::-1]


def _text(line: "Line") -> str:
    return line.data.decode("utf-8", "replace").rstrip("\n")
