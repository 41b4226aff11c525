"""The relay's state, which survives its restart, in its files: a page for each task.

A file in /run/solo5/relay is created atomically, and then overwritten in place.
"""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from solo5_systemd.base.atomic_file import replace_file
from solo5_systemd.base.decode import Fields, json_document
from solo5_systemd.base.errors import InvalidRequestError, Solo5Error, host_errors
from solo5_systemd.base.names import TaskName, log_namespace
from solo5_systemd.journal.lines import Stream
from solo5_systemd.relay.line_queue import StreamPosition
from solo5_systemd.settings.records import document, record, text

STATE_DIRECTORY = Path("/run/solo5/relay")

PAGE_SIZE = 4096
"""Bytes of a file, of which names and cursors fill half. It is written twice per chunk of lines. SIGKILL does not
interrupt a write within one page of a tmpfs: the kernel checks for a fatal signal before each page, not within one."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Delivery(StreamPosition):
    """How far a stream was delivered: everything before this position is in the FIFO.

    `staged`: the position behind the last byte of the staging pipe; None: the pipe's content is to be discarded.
    """

    staged: StreamPosition | None = None


@dataclass(frozen=True, kw_only=True)
class ConsoleState:
    """The state of one task's console.

    Attributes:
        since: the time from which lines are forwarded, in µs since the epoch (CLOCK_REALTIME); `began`: since boot.
        number: identifies the descriptors in systemd's fd store, and is unique among the consoles; 0: none are stored.
        ended: the console is closed when all lines are delivered.
    """

    task: TaskName
    unit: str
    since: int
    began: int
    number: int = 0
    ended: bool = False
    namespace: Annotated[str, text(log_namespace)] = ""
    progress: Mapping[Stream, Delivery]


class StateFiles:
    """The state files in a directory; those that were saved are kept open."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open: dict[TaskName, int] = {}

    def load(self) -> Iterator[ConsoleState]:
        """Yield the state of all consoles; files that cannot be parsed are removed, with a warning."""
        for path in sorted(self._directory.glob("*.json")):
            try:
                state = record(ConsoleState, Fields(json_document(path.read_bytes(), "the file")))
                if {*state.progress} != {*Stream}:
                    raise InvalidRequestError(f"progress has {len(state.progress)} of {len(Stream)} streams.")
            except (OSError, Solo5Error) as error:
                _log.warning("removing unreadable state file %s (%s), console is not forwarded any more", path, error)
                with suppress(OSError):
                    path.unlink()
            else:
                yield state

    def save(self, state: ConsoleState) -> None:
        """Create or overwrite the file of a console; raises HostError."""
        path = self._path(state.task)
        page = json.dumps(document(state)).encode().ljust(PAGE_SIZE - 1) + b"\n"
        with host_errors(f"{path} cannot be written", f"See: df {path.parent}"):
            if state.task not in self._open:
                replace_file(path, page, mode=0o644)
                self._open[state.task] = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            else:
                os.pwrite(self._open[state.task], page, 0)

    def remove(self, task: TaskName) -> None:
        """Remove the file of a task, if there is one."""
        self._path(task).unlink(missing_ok=True)
        if task in self._open:
            os.close(self._open.pop(task))

    def close(self) -> None:
        """Close the descriptors; the files stay."""
        while self._open:
            os.close(self._open.popitem()[1])

    def _path(self, task: TaskName) -> Path:
        return self._directory / f"{task}.json"
