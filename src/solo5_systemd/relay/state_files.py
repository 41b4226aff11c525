"""The records' files: one page for each task, made whole and then written over.

A record is written twice for every chunk of lines. A write that stays within a page of a tmpfs is not torn by a kill:
the kernel looks for a fatal signal before each page and not within.
"""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from solo5_systemd.decode import json_document
from solo5_systemd.errors import HostError, InvalidRequestError, Solo5Error
from solo5_systemd.names import TaskName
from solo5_systemd.relay.state import Record, document, parse

STATE = Path("/run/solo5/relay")

PAGE = 4096

_log = logging.getLogger(__name__)


class Records:
    """A directory of records, of which those that were saved are held open."""

    def __init__(self, directory: Path = STATE) -> None:
        self._directory = directory
        self._open: dict[TaskName, int] = {}

    def load(self) -> Iterator[Record]:
        """All that can be read; what cannot is of no use to anybody, and is removed."""
        for path in sorted(self._directory.glob("*.json")):
            try:
                yield parse(json_document(path.read_bytes(), "the file"))
            except (OSError, Solo5Error) as error:
                _log.warning("%s cannot be read (%s): it is removed, and its task's console ends here.", path, error)
                with suppress(OSError):
                    path.unlink()

    def save(self, record: Record) -> None:
        """Make the task's record, or replace it.

        Raises:
            HostError: it cannot be written.
            InvalidRequestError: it is too long.
        """
        page = _page(record)
        try:
            if record.task not in self._open:
                self._open[record.task] = self._made(self._path(record.task), page)
            else:
                os.pwrite(self._open[record.task], page, 0)
        except OSError as error:
            path = self._path(record.task)
            raise HostError(f"{path} cannot be written: {error.strerror}.", f"See: df {path.parent}") from error

    def remove(self, task: TaskName) -> None:
        self._path(task).unlink(missing_ok=True)
        if task in self._open:
            os.close(self._open.pop(task))

    def close(self) -> None:
        """Let go of the files, which stay."""
        while self._open:
            os.close(self._open.popitem()[1])

    @staticmethod
    def _made(path: Path, page: bytes) -> int:
        new = path.with_name(f"{path.name}.new")
        try:
            new.write_bytes(page)
            new.replace(path)
        except OSError:
            with suppress(OSError):
                new.unlink()
            raise
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def _path(self, task: TaskName) -> Path:
        return self._directory / f"{task}.json"


def _page(record: Record) -> bytes:
    text = json.dumps(document(record)).encode()
    if len(text) >= PAGE:
        raise InvalidRequestError(f"what is to be kept of task {record.task} takes {len(text)} bytes: expected a page.")
    return text.ljust(PAGE - 1) + b"\n"
