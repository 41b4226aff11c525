"""What is kept of a declaration in /run/solo5/declared/NAME until its task has ended, for the starts of the task.

Apart from the generator, which writes it: each start of a declared task imports this.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from solo5_systemd.base import declared_units, locks
from solo5_systemd.base.declared_units import REFUSED, SOURCES, UPDATE, declaration_directory, is_ours
from solo5_systemd.base.errors import HostError, InvalidRequestError, host_errors, unquoted
from solo5_systemd.base.locks import TIMEOUT_S, closing, lock_file
from solo5_systemd.base.names import (
    INVOCATION_LINK,
    UNITS,
    WAITING,
    TaskName,
    awaited_target,
    prepare_service,
    template_of,
)
from solo5_systemd.settings.files import ETC

if TYPE_CHECKING:
    from solo5_systemd.declared.syntax import Source

SYSTEM = Path("/run/systemd/system")
REMOVED = "removed"
UNCLEARED = "uncleared"
"""This file is there from the beginning of a start until all is cleared up: solo5-prepare@NAME clears up once more."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A declaration as of the last daemon-reload, with what its unit file has of tender and NICs.

    Attributes:
        nics_assumed: the image could not be read; the unit file is for NICs, and fit for an image without them.
    """

    sources: "Sequence[Source]"
    tender: str
    nics: bool
    nics_assumed: bool = False

    def text(self) -> str:
        """Return the content of the file `SOURCES`."""
        sources = [{**vars(each), "content": each.content.decode("latin-1")} for each in self.sources]
        return json.dumps({**vars(self), "sources": sources})

    def fits(self, tender: str, *, nics: bool) -> bool:
        """Return whether the unit file is fit for a start with another tender, or of another image."""
        return self.tender == tender and (self.nics_assumed or self.nics == nics)


def kept_declaration(task: TaskName) -> Kept:
    """Return a declaration as it was at the last daemon-reload; raises HostError if it cannot be read."""
    from solo5_systemd.declared.syntax import Source  # imported here for startup time: no end needs it

    path = Path(declaration_directory(task)) / SOURCES
    try:
        found = json.loads(path.read_bytes())
        sources = [Source(**{**each, "content": each["content"].encode("latin-1")}) for each in found["sources"]]
        return Kept(**{**found, "sources": sources})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HostError(f"{path} cannot be read: {error}.", "Run: systemctl daemon-reload") from error


@contextmanager
def unseen(sources: "Sequence[Source]") -> Iterator[None]:
    """Leave the values of a declaration out of an InvalidRequestError, if not every user may read all of its files."""
    try:
        yield
    except InvalidRequestError as error:
        if all(each.is_public for each in sources):
            raise
        raise unquoted(sources[0].path, error.sentence) from error


def is_active(*units: str, ended: str = "") -> bool:
    """Return whether PID 1 has a run of one of these units, of templates of an instance, besides the ended one."""
    links = tuple(INVOCATION_LINK + (unit.rpartition(".")[0] if "@." in unit else unit) for unit in units)
    with suppress(OSError):
        found = set(os.listdir(UNITS)) - {f"{INVOCATION_LINK}{ended}"}  # noqa: PTH208 - for strings
        return any(link.startswith(links) for link in found)
    return False


def is_cleared(task: TaskName) -> bool:
    """Enter that an ended task is cleared up; return False instead if its declaration was removed while it ran."""
    with locked():
        if Path(declaration_directory(task), REMOVED).exists():
            return False
        Path(declared_units.DIRECTORY, task, UNCLEARED).unlink(missing_ok=True)
        return True


def remove_if_gone(task: TaskName) -> None:
    """Remove the files of a task that has ended and whose preparation may be active, if its declaration is gone.

    Not during an update: its end needs them, and calls this again.
    """
    with locked():
        kept = declaration_directory(task)
        if not Path(kept, REMOVED).exists() or Path(declared_units.DIRECTORY, task, UPDATE).exists():
            return
        remove_files(task)
        name = template_of(task)
        units = (f"{name}.service", f"solo5-prepare@{name}.service")
        if Path(kept).name == name and not is_active(*units, ended=prepare_service(task)):  # other instances may run
            remove_files(name)


def remove_files(name: str) -> None:
    """Remove all that the generator has written for a declaration, and what its starts have made."""
    import shutil  # imported here for startup time: few ends remove anything

    for unit in (f"{name}.service", f"{name}.socket"):
        if is_ours(SYSTEM / unit):  # another program may have put a unit of this name there
            (SYSTEM / unit).unlink()
    (SYSTEM / awaited_target(TaskName(name))).unlink(missing_ok=True)
    shutil.rmtree(SYSTEM / f"{prepare_service(TaskName(name))}.d", ignore_errors=True)
    shutil.rmtree(f"{declared_units.DIRECTORY}/{name}", ignore_errors=True)
    end_waiting(name)


def end_waiting(name: str) -> None:
    """Remove the FIFO of a socket unit without a file, which PID 1 keeps active until solo5-networkd then stops it."""
    with suppress(OSError):
        Path(WAITING, name).unlink(missing_ok=True)


def locked(timeout_s: float = TIMEOUT_S) -> AbstractContextManager[int]:
    """Lock the directories of declared tasks: their files may be removed at a task's end and written at once.

    Each user can open these, and only root the directory of the lock file. Raises LockedError after the timeout.
    """
    lock = locks.RUN / "declared"
    with host_errors(f"{lock} cannot be locked"):
        Path(declared_units.DIRECTORY).mkdir(mode=0o755, parents=True, exist_ok=True)
        return closing(lock_file(lock, timeout_s=timeout_s))


def removed_sentence(task: TaskName) -> str:
    """Return why a task whose declaration was removed cannot be started."""
    return f"{ETC}/{task}.unikernel was removed: expected it for a start. Write it, then run: systemctl daemon-reload"


def kept_refusal(task: TaskName) -> str:
    """Return why a task that was running at the last daemon-reload cannot be started again; empty: it can."""
    kept = Path(declaration_directory(task))
    if not kept.exists():
        return removed_sentence(task)
    try:
        return (kept / REFUSED).read_text(encoding="utf-8")
    except OSError:
        return ""
