"""What the relay keeps of a task in /run, to go on from after its own restart."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from solo5_systemd.decode import Fields
from solo5_systemd.journal.export import Stream
from solo5_systemd.names import TaskName, task_name

VERSION = 1
_EVER = (1 << 63) - 1


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a stream has come: to the line of this cursor (none where empty), and these bytes of the next one."""

    cursor: str = ""
    written: int = 0


@dataclass(frozen=True, kw_only=True)
class Record:
    """One task: the lines of `unit` from `since` (microseconds since the epoch) on, and how far each stream is."""

    task: TaskName
    unit: str
    since: int
    progress: Mapping[Stream, Progress]


def document(record: Record) -> dict[str, object]:
    return {
        "version": VERSION,
        "task": record.task,
        "unit": record.unit,
        "since": record.since,
        "progress": {stream.value: asdict(progress) for stream, progress in record.progress.items()},
    }


def parse(value: object) -> Record:
    """Read a document.

    Raises:
        InvalidRequestError: it is not one of ours.
    """
    fields = Fields(value)
    fields.integer("version", low=VERSION, high=VERSION)
    progress = fields.table("progress")
    return Record(
        task=fields.parsed("task", task_name),
        unit=fields.text("unit"),
        since=fields.integer("since", low=0, high=_EVER),
        progress={stream: _progress(progress.table(stream.value)) for stream in Stream},
    )


def _progress(fields: Fields) -> Progress:
    return Progress(cursor=fields.text("cursor"), written=fields.integer("written", low=0, high=_EVER))
