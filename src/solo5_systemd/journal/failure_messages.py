"""Reads from the journal why a unit failed to start."""

from contextlib import closing

from solo5_systemd.journal.lines import Line
from solo5_systemd.journal.reader import JournalReader, this_boot

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
        unit: the unit.
        namespace: the journal namespace of the processes; PID 1 writes to the host's journal.

    Raises:
        HostError: the journal cannot be read.
    """
    with closing(JournalReader((f"UNIT={unit}", "_PID=1", this_boot()))) as journal:
        found = journal.last_with_ids(FAILURE_LINES)
    by_systemd = [line for line, message_id in found if message_id not in GENERIC_MESSAGE_IDS]
    with closing(JournalReader((f"_SYSTEMD_UNIT={unit}", "_TRANSPORT=stdout", this_boot()), namespace)) as journal:
        by_processes = journal.last(FAILURE_LINES)
    return [_text(line) for line in (*reversed(by_systemd), *reversed(by_processes))]


def _text(line: Line) -> str:
    return line.data.decode("utf-8", "replace").strip()
