"""The state of the relay that survives its restart, and its JSON form."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.names import TaskName, log_namespace, task_name
from solo5_systemd.journal.lines import Stream

VERSION = 1
_INT64_MAX = (1 << 63) - 1


@dataclass(frozen=True, kw_only=True)
class StreamPosition:
    """A byte position in a stream.

    Attributes:
        cursor: of the last line before the position; empty: the position is in the first line.
        written: offset in the next line, in bytes.
    """

    cursor: str = ""
    written: int = 0


START = StreamPosition()


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """How far a stream was delivered.

    Attributes:
        confirmed: everything before this position is in the FIFO.
        staged: the position behind the last byte of the staging pipe. None: the pipe's content is to be discarded.
    """

    confirmed: StreamPosition = START
    staged: StreamPosition | None = None


@dataclass(frozen=True, kw_only=True)
class ConsoleState:
    """The state of one task's console.

    Attributes:
        since: the time from which lines are forwarded, in µs since the epoch (CLOCK_REALTIME).
        since_monotonic: the same in µs since boot (CLOCK_MONOTONIC).
        number: identifies the descriptors in systemd's fd store. It is unique among the consoles.
        ended: the task has ended; the console is closed when all lines are delivered.
        namespace: the journal namespace of the unit; empty: the host's journal.
    """

    task: TaskName
    unit: str
    since: int
    since_monotonic: int = 0
    streams: Mapping[Stream, Delivery]
    number: int = 0
    ended: bool = False
    namespace: str = ""


def document(state: ConsoleState) -> dict[str, object]:
    """Return the JSON form of a console's state."""
    return {
        "version": VERSION,
        "task": state.task,
        "unit": state.unit,
        "since": state.since,
        "began": state.since_monotonic,
        "number": state.number,
        "ended": state.ended,
        **({"namespace": state.namespace} if state.namespace else {}),
        "progress": {stream.value: _delivery_json(delivery) for stream, delivery in state.streams.items()},
    }


def _delivery_json(delivery: Delivery) -> dict[str, object]:
    staged = {} if delivery.staged is None else {"staged": asdict(delivery.staged)}
    return {**asdict(delivery.confirmed), **staged}


def parse(value: object) -> ConsoleState:
    """Parse the JSON form.

    Raises:
        InvalidRequestError: malformed, or of another version.
    """
    fields = Fields(value)
    fields.integer("version", low=VERSION, high=VERSION)
    progress = fields.table("progress")
    return ConsoleState(
        task=fields.parsed("task", task_name),
        unit=fields.text("unit"),
        since=fields.integer("since", low=0, high=_INT64_MAX),
        since_monotonic=fields.integer("began", low=0, high=_INT64_MAX),
        streams={stream: _parse_delivery(progress.table(stream.value)) for stream in Stream},
        number=fields.integer("number", low=1, high=_INT64_MAX),
        ended=fields.boolean("ended"),
        namespace=fields.parsed("namespace", log_namespace, ""),
    )


def _parse_delivery(fields: Fields) -> Delivery:
    staged = _parse_position(fields.table("staged")) if fields.has("staged") else None
    return Delivery(confirmed=_parse_position(fields), staged=staged)


def _parse_position(fields: Fields) -> StreamPosition:
    return StreamPosition(cursor=fields.text("cursor"), written=fields.integer("written", low=0, high=_INT64_MAX))
