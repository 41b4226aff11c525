"""Reads why a run has ended, or why a unit failed to start: the last lines of guest, tender and PID 1."""

from contextlib import closing

from solo5_systemd.base.declared_units import declared_task, stderr_lines
from solo5_systemd.base.journal_entry import IDLE_END
from solo5_systemd.journal.journald import HUNG_MESSAGE_ID
from solo5_systemd.journal.lines import Line, Stream
from solo5_systemd.journal.reader import CONSOLE_MATCHES, JournalReader, this_boot
from solo5_systemd.unit.exit_messages import ExitMessages, UnitMessage
from solo5_systemd.unit.state import UnitState

MAX_LINES = 20
"""Console lines to read, and messages of PID 1; one run has fewer of these."""

ROOT_MATCH = "_UID=0"


def read_exit_messages(state: UnitState) -> ExitMessages:
    """Return the exit messages of a run.

    Raises:
        HostError: the journal cannot be read.
    """
    console = _last(state, MAX_LINES, *CONSOLE_MATCHES, f"_SYSTEMD_UNIT={state.unit}", namespace=state.log_namespace)
    guest = [_text(line) for line in console if line.stream is Stream.STDOUT]
    tender = [_text(line) for line in console if line.stream is Stream.STDERR]
    if declared_task(state.unit) is not None:  # they are in the journal only once the task's preparation has stopped
        tender = stderr_lines(state.task)[-MAX_LINES:]
    return ExitMessages(
        guest=guest,
        tender=tender,
        console=[_text(line) for line in console] if len(console) > len(guest) else [*guest, *tender],
        systemd=_unit_messages(state),
        hung=bool(_last(state, 1, f"MESSAGE_ID={HUNG_MESSAGE_ID}", f"SOLO5_TASK={state.task}", ROOT_MATCH)),
        idle=bool(_last(state, 1, f"MESSAGE_ID={IDLE_END}", f"OBJECT_SYSTEMD_UNIT={state.unit}", ROOT_MATCH)),
    )


def _unit_messages(state: UnitState) -> list[UnitMessage]:
    with closing(JournalReader((f"UNIT={state.unit}", "_PID=1", this_boot()))) as reader:
        found = reader.last_with_ids(MAX_LINES)
    return [UnitMessage(_text(line), identity) for line, identity in reversed(found) if _is_of(line, state)]


def _last(state: UnitState, count: int, *matches: str, namespace: str = "") -> list[Line]:
    """Return the last lines since the run's start, oldest first; see `reader.run_reader`."""
    with closing(JournalReader((*matches, this_boot()), namespace)) as reader:
        lines = reader.last(count)
    return [line for line in reversed(lines) if _is_of(line, state)]


def _is_of(line: Line, state: UnitState) -> bool:
    """Compare by CLOCK_MONOTONIC if it is known: CLOCK_REALTIME may have been set back during the run."""
    return line.position.monotonic >= state.main_start if state.main_start else line.realtime >= state.started


def _text(line: Line) -> str:
    return line.data.decode("utf-8", "replace").rstrip("\n")


FAILURE_LINES = 10
"""Lines to read: of PID 1, and of the unit's processes."""

GENERIC_MESSAGE_IDS = frozenset(
    {
        "7d4958e842da4a758f6c1cdc7b36dcc5",  # SD_MESSAGE_UNIT_STARTING
        "be02cf6855d2428ba40df7e9d022f03d",  # SD_MESSAGE_UNIT_FAILED
        "d9b373ed55a64feb8242e02dbe79a49c",  # SD_MESSAGE_UNIT_FAILURE_RESULT
    }
)
"""Messages of PID 1 about every failed start, which have no reason (`journalctl --catalog`)."""


def read_failure_messages(unit: str, namespace: str) -> list[str]:
    """Return PID 1's messages about a unit, then the lines of the unit's processes; each oldest first.

    Args:
        namespace: the journal namespace of the processes; PID 1 writes to the host's journal.

    Raises:
        HostError: the journal cannot be read.
    """
    with closing(JournalReader((f"UNIT={unit}", "_PID=1", this_boot()))) as journal:
        found = journal.last_with_ids(FAILURE_LINES)
    by_systemd = [line for line, message_id in found if message_id not in GENERIC_MESSAGE_IDS]
    with closing(JournalReader((f"_SYSTEMD_UNIT={unit}", "_TRANSPORT=stdout", this_boot()), namespace)) as journal:
        by_processes = journal.last(FAILURE_LINES)
    return [_text(line).strip() for line in (*reversed(by_systemd), *reversed(by_processes))]
