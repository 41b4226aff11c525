"""The console lines of one run in the journal.

They are selected by the unit and the run's start, not by _SYSTEMD_INVOCATION_ID=: journald looks that up when it
processes a line, and the last lines of a unit that has just ended may be without it.
"""

from collections.abc import Iterator
from contextlib import closing

from solo5_systemd.journal import reader
from solo5_systemd.journal.lines import Line
from solo5_systemd.unit.state import UnitState

BATCH_LINES = 100


def run_reader(state: UnitState) -> reader.JournalReader:
    """Return a reader of the console lines of a unit, without PID 1's messages about it; the caller closes it."""
    return reader.JournalReader((f"_SYSTEMD_UNIT={state.unit}", "_TRANSPORT=stdout"), state.log_namespace)


def seek(journal: reader.JournalReader, state: UnitState, last: int | None) -> None:
    """Go to the first line of a run, or to the one that `last` lines begin with."""
    if last is None:
        journal.seek_realtime(state.started)
    else:
        journal.seek_last(last)


def run_lines(state: UnitState, last: int | None = None) -> Iterator[Line]:
    """Yield the console lines of a run that are in the journal, oldest first; with `last`, that many at most.

    Raises:
        HostError: the journal cannot be read.
    """
    with closing(run_reader(state)) as journal:
        seek(journal, state, last)
        while lines := journal.read_batch(BATCH_LINES):
            yield from (line for line in lines if line.realtime >= state.started)
            if len(lines) < BATCH_LINES:
                return
