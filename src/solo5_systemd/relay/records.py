"""The records' files: one for each task, replaced whole."""

import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from solo5_systemd.errors import HostError, Solo5Error
from solo5_systemd.names import TaskName
from solo5_systemd.relay.record import Record, document, parse

STATE = Path("/run/solo5/relay")

_log = logging.getLogger(__name__)


class Records:
    """A directory of records."""

    def __init__(self, directory: Path = STATE) -> None:
        self._directory = directory

    def load(self) -> Iterator[Record]:
        """All that can be read; what cannot is of no use to anybody, and is removed."""
        for path in sorted(self._directory.glob("*.json")):
            try:
                yield parse(json.loads(path.read_bytes()))
            except (OSError, ValueError, Solo5Error) as error:
                _log.warning("%s cannot be read (%s): it is removed, and its task's console ends here.", path, error)
                with suppress(OSError):
                    path.unlink()

    def save(self, record: Record) -> None:
        """Replace the task's record.

        Raises:
            HostError: it cannot be written.
        """
        path = self._path(record.task)
        new = path.with_name(f"{path.name}.new")
        try:
            new.write_text(json.dumps(document(record)))
            new.replace(path)
        except OSError as error:
            raise HostError(f"{path} cannot be written: {error.strerror}.", f"See: df {path.parent}") from error

    def remove(self, task: TaskName) -> None:
        self._path(task).unlink(missing_ok=True)

    def has(self, task: TaskName) -> bool:
        return self._path(task).exists()

    def _path(self, task: TaskName) -> Path:
        return self._directory / f"{task}.json"
