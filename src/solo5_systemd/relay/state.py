"""The state of the relay that survives its restart, as `settings.records` reads and writes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from solo5_systemd.base.names import TaskName, log_namespace
from solo5_systemd.journal.lines import Stream
from solo5_systemd.settings.records import integer, text

VERSION = 1


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
class Delivery(StreamPosition):
    """How far a stream was delivered: everything before this position is in the FIFO.

    Attributes:
        staged: the position behind the last byte of the staging pipe. None: the pipe's content is to be discarded.
    """

    staged: StreamPosition | None = None


@dataclass(frozen=True, kw_only=True)
class ConsoleState:
    """The state of one task's console.

    Attributes:
        since: the time from which lines are forwarded, in µs since the epoch (CLOCK_REALTIME).
        began: the same in µs since boot (CLOCK_MONOTONIC).
        number: identifies the descriptors in systemd's fd store. It is unique among the consoles.
        ended: the task has ended; the console is closed when all lines are delivered.
    """

    version: Annotated[int, integer(VERSION, VERSION)]
    task: TaskName
    unit: str
    since: int
    began: int
    number: Annotated[int, integer(1)]
    ended: bool = False
    namespace: Annotated[str, text(log_namespace)] = ""
    progress: Mapping[Stream, Delivery]
