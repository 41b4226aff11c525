"""The end of what was said in one run of a task: by its guest, its tender, PID 1, and us.

Read in this process: a journalctl for each would cost a listing of ended tasks a process for each of them.
"""

from contextlib import closing

from solo5_systemd.journal.export import Stream
from solo5_systemd.journal.journald import HUNG
from solo5_systemd.journal.lines import Line
from solo5_systemd.journal.reader import CONSOLES, JournalReader
from solo5_systemd.procfs import boot_id
from solo5_systemd.unit.exit_messages import ExitMessages, UnitMessage
from solo5_systemd.unit.state import UnitState

COUNT = 20
"""Lines of the console that are looked at, and remarks of PID 1's, of which one run has fewer."""

BY_ROOT = "_UID=0"


def last_words(state: UnitState) -> ExitMessages:
    """What the journal has of this run's end.

    Raises:
        HostError: the journal cannot be read.
    """
    console = _last(state, COUNT, *CONSOLES, f"_SYSTEMD_UNIT={state.unit}", namespace=state.log_namespace)
    return ExitMessages(
        guest=[_text(line) for line in console if line.stream is Stream.STDOUT],
        tender=[_text(line) for line in console if line.stream is Stream.STDERR],
        console=[_text(line) for line in console],
        systemd=_remarks(state),
        hung=bool(_last(state, 1, f"MESSAGE_ID={HUNG}", f"SOLO5_TASK={state.task}", BY_ROOT)),
    )


def _remarks(state: UnitState) -> list[UnitMessage]:
    with closing(JournalReader((f"UNIT={state.unit}", "_PID=1", _this_boot()))) as reader:
        found = reader.last_with_ids(COUNT)
    return [UnitMessage(_text(line), identity) for line, identity in reversed(found) if _is_of(line, state)]


def _last(state: UnitState, count: int, *matches: str, namespace: str = "") -> list[Line]:
    """Lines since the run began, oldest first: journald does not put the invocation on every last one."""
    with closing(JournalReader((*matches, _this_boot()), namespace)) as reader:
        lines = reader.last(count)
    return [line for line in reversed(lines) if _is_of(line, state)]


def _this_boot() -> str:
    """Return the match of this boot, in journald's form."""
    return f"_BOOT_ID={boot_id().replace('-', '')}"


def _is_of(line: Line, state: UnitState) -> bool:
    """By the clock that nobody sets, where it is known: the other one may have been set back during the run."""
    return line.place.monotonic >= state.main_start if state.main_start else line.realtime >= state.started


def _text(line: Line) -> str:
    return line.data.decode("utf-8", "replace").rstrip("\n")
