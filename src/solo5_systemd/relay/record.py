"""What the relay keeps of a task in /run, to go on from after its own restart."""

from collections.abc import Mapping
from dataclasses import dataclass

from solo5_systemd.decode import Fields
from solo5_systemd.journal.export import Stream
from solo5_systemd.names import TaskName, task_name

VERSION = 1
_EVER = (1 << 63) - 1


@dataclass(frozen=True, kw_only=True)
class Record:
    """One task: the lines of `unit` from `since` (microseconds since the epoch) on, delivered up to a cursor each."""

    task: TaskName
    unit: str
    since: int
    delivered: Mapping[Stream, str]


def document(record: Record) -> dict[str, object]:
    return {
        "version": VERSION,
        "task": record.task,
        "unit": record.unit,
        "since": record.since,
        "delivered": {stream.value: cursor for stream, cursor in record.delivered.items()},
    }


def parse(value: object) -> Record:
    """Read a document.

    Raises:
        InvalidRequestError: it is not one of ours.
    """
    fields = Fields(value)
    fields.integer("version", low=VERSION, high=VERSION)
    delivered = fields.table("delivered")
    return Record(
        task=fields.parsed("task", task_name),
        unit=fields.text("unit"),
        since=fields.integer("since", low=0, high=_EVER),
        delivered={stream: delivered.text(stream.value, "") for stream in Stream},
    )
