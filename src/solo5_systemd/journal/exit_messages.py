"""Reads the exit messages of a run: the last lines of its guest and tender, and messages of PID 1."""

from contextlib import closing

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
    return ExitMessages(
        guest=[_text(line) for line in console if line.stream is Stream.STDOUT],
        tender=[_text(line) for line in console if line.stream is Stream.STDERR],
        console=[_text(line) for line in console],
        systemd=_unit_messages(state),
        hung=bool(_last(state, 1, f"MESSAGE_ID={HUNG_MESSAGE_ID}", f"SOLO5_TASK={state.task}", ROOT_MATCH)),
    )


def _unit_messages(state: UnitState) -> list[UnitMessage]:
    with closing(JournalReader((f"UNIT={state.unit}", "_PID=1", this_boot()))) as reader:
        found = reader.last_with_ids(MAX_LINES)
    return [UnitMessage(_text(line), identity) for line, identity in reversed(found) if _is_of(line, state)]


def _last(state: UnitState, count: int, *matches: str, namespace: str = "") -> list[Line]:
    """Return the last lines since the run's start, oldest first.

    Not by _SYSTEMD_INVOCATION_ID=: journald looks it up when it processes a line, and the last lines of a unit that has
    just ended may be without it.
    """
    with closing(JournalReader((*matches, this_boot()), namespace)) as reader:
        lines = reader.last(count)
    return [line for line in reversed(lines) if _is_of(line, state)]


def _is_of(line: Line, state: UnitState) -> bool:
    """Compare by CLOCK_MONOTONIC if it is known: CLOCK_REALTIME may have been set back during the run."""
    return line.position.monotonic >= state.main_start if state.main_start else line.realtime >= state.started


def _text(line: Line) -> str:
    return line.data.decode("utf-8", "replace").rstrip("\n")
