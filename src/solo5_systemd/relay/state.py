"""What the relay keeps of a task in /run, to go on from after its own restart."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from solo5_systemd.decode import Fields
from solo5_systemd.journal.export import Stream
from solo5_systemd.names import TaskName, log_namespace, task_name

VERSION = 3
_EVER = (1 << 63) - 1


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A place in a stream: behind the line of this cursor (the beginning where empty), and these bytes of the next."""

    cursor: str = ""
    written: int = 0


NOTHING = Progress()


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """How far a stream has come.

    Attributes:
        sure: up to here the FIFO has everything.
        staged: up to here what is in the staging pipe leads. None: whatever is in it does not count.
    """

    sure: Progress = NOTHING
    staged: Progress | None = None


@dataclass(frozen=True, kw_only=True)
class Record:
    """One task: the lines of `unit` from `since` (microseconds since the epoch) on, and how far each stream is.

    Attributes:
        began: the same in microseconds since boot; zero where an earlier version did not say.
        number: what its descriptors are kept under; no other record has it, and zero is none.
        ended: no more lines will come, and the console is to be closed when all are delivered.
        namespace: of the journal that has the lines; empty: the host's.
    """

    task: TaskName
    unit: str
    since: int
    began: int = 0
    streams: Mapping[Stream, Delivery]
    number: int = 0
    ended: bool = False
    namespace: str = ""


def document(record: Record) -> dict[str, object]:
    return {
        "version": VERSION,
        "task": record.task,
        "unit": record.unit,
        "since": record.since,
        "began": record.began,
        "number": record.number,
        "ended": record.ended,
        **({"namespace": record.namespace} if record.namespace else {}),
        "progress": {stream.value: _delivered(delivery) for stream, delivery in record.streams.items()},
    }


def _delivered(delivery: Delivery) -> dict[str, object]:
    staged = {} if delivery.staged is None else {"staged": asdict(delivery.staged)}
    return {**asdict(delivery.sure), **staged}


def parse(value: object) -> Record:
    """Read a document; version 1 knew neither `staged` nor `ended`, version 2 neither `number` nor `began`.

    Raises:
        InvalidRequestError: it is not one of ours.
    """
    fields = Fields(value)
    fields.integer("version", low=1, high=VERSION)
    progress = fields.table("progress")
    return Record(
        task=fields.parsed("task", task_name),
        unit=fields.text("unit"),
        since=fields.integer("since", low=0, high=_EVER),
        began=fields.integer("began", low=0, high=_EVER) if fields.has("began") else 0,
        streams={stream: _delivery(progress.table(stream.value)) for stream in Stream},
        number=fields.integer("number", low=0, high=_EVER) if fields.has("number") else 0,
        ended=fields.boolean("ended", default=False),
        namespace=fields.parsed("namespace", log_namespace, ""),
    )


def _delivery(fields: Fields) -> Delivery:
    staged = _progress(fields.table("staged")) if fields.has("staged") else None
    return Delivery(sure=_progress(fields), staged=staged)


def _progress(fields: Fields) -> Progress:
    return Progress(cursor=fields.text("cursor"), written=fields.integer("written", low=0, high=_EVER))
