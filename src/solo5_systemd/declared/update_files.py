"""The files of updates: the request and its progress in /run, the image that an update has replaced, and the drop-in.

/run/solo5/declared/NAME/update.json        the request; there is one as long as an update is under way
/run/solo5/declared/NAME/update.phase       how far it is
/run/solo5/declared/NAME/update.previous    the image and the drop-in that it replaces
/run/solo5/declared/NAME/update.log         its steps, one JSON document a line
/etc/solo5/NAME.unikernel.d/50-update.conf  Image= of the last update
/var/lib/solo5/previous/NAME/IMAGE          a copy of the image that the last update has replaced
/var/lib/solo5/previous/NAME.json           its path and its SHA-256
"""

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from solo5_systemd.base import declared_units
from solo5_systemd.base.atomic_file import replace_file
from solo5_systemd.base.declared_units import DROP_IN, UPDATE
from solo5_systemd.base.decode import Fields, json_document
from solo5_systemd.base.errors import (
    InvalidRequestError,
    NotFoundError,
    SettingsError,
    Solo5Error,
    TakenError,
    host_errors,
)
from solo5_systemd.base.names import TaskName, is_instance, template_of
from solo5_systemd.base.own_files import check_own, read_own
from solo5_systemd.base.paths import READ_UNTRUSTED
from solo5_systemd.dbus.process import NOTICE, log_about
from solo5_systemd.declared.declaration import SUFFIX
from solo5_systemd.declared.syntax import FILE_MAX_BYTES
from solo5_systemd.declared.update_request import UpdateRequest
from solo5_systemd.settings.files import ETC
from solo5_systemd.settings.records import document, record

PREVIOUS = Path("/var/lib/solo5/previous")
_UNIT_FILES = "/run/systemd/system"

_DECLARED = "[X-Declared]"
"""The section of the drop-in with the image of the declaration in the place of which an update has put another one."""


class Phase(StrEnum):
    """How far an update is; what an interrupted one has left is ended accordingly."""

    BESIDE = "beside"
    """The new guest runs beside the old one; either may have the ports."""

    SWITCHING = "switching"
    """The task itself is started with the new image; the guest beside it, if there is one, has the ports."""

    DRAINING = "draining"
    """The task runs the new image, and the ports are moved back to it, or were."""


@dataclass(frozen=True, kw_only=True)
class Previous:
    """The image that an update has replaced, and the text of the drop-in that named it; empty: there was none."""

    path: str
    sha256: str
    copy: str
    drop_in: str = ""

    @property
    def present(self) -> str:
        """Return the path of a file that still has the content."""
        return self.path if sha256(self.path) == self.sha256 else self.copy


def sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file in hexadecimal; empty if it cannot be read, or is no regular file."""
    with suppress(OSError), os.fdopen(os.open(path, READ_UNTRUSTED), "rb") as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return hashlib.file_digest(file, "sha256").hexdigest()
    return ""


class UpdateFiles:
    """The files of a task's updates, and what is reported of one to the journal of the task's unit."""

    def __init__(self, name: TaskName) -> None:
        own = Path(declared_units.DIRECTORY, name)
        self._name = name
        self._image = own / "image"
        self._request = own / UPDATE
        self._phase = own / "update.phase"
        self._kept = own / "update.previous"
        self._log = own / "update.log"
        self.drop_in = ETC / f"{name}{SUFFIX}.d" / DROP_IN
        self._copies = PREVIOUS / name
        self._record = PREVIOUS / f"{name}.json"

    def write_request(self, **given: Any) -> None:
        """Write what is requested for solo5-update@NAME; raises TakenError if an update is under way, or HostError."""
        whole = document(UpdateRequest(**given), complete=True)
        text = json.dumps({key: whole[key] for key in given})
        with host_errors(f"{self._request} cannot be written"):
            try:
                descriptor = os.open(self._request, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                raise TakenError(
                    f"an update of task {self._name} is under way.",
                    f"See: journalctl -u {self._name}; to end it: systemctl stop solo5-update@{self._name}",
                ) from None
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
        self._log.unlink(missing_ok=True)  # not before: that of an update under way is being read

    def request(self, declared: UpdateRequest) -> UpdateRequest:
        """Return what is requested, over what is declared; raises Solo5Error where it cannot be read."""
        if not self.under_way:
            return declared
        with host_errors(f"{self._request} cannot be read"):
            given = json_document(self._request.read_bytes(), str(self._request))
        if not isinstance(given, dict):
            raise InvalidRequestError(f"{self._request} is {given!r:.80}: expected an object of JSON.")
        return record(UpdateRequest, Fields(document(declared) | given, str(self._request)))

    @property
    def under_way(self) -> bool:
        """Whether there is a request."""
        return self._request.exists()

    def remove_request(self) -> None:
        """Remove the request, so that another one can be written."""
        self._request.unlink(missing_ok=True)

    def end(self) -> None:
        """Remove the request and what belongs to it: the update is over."""
        for path in (self._phase, self._kept, self._request):  # the request last: another update may begin without it
            path.unlink(missing_ok=True)

    @property
    def phase(self) -> Phase | None:
        """How far the update is; None: nothing was changed yet."""
        with suppress(OSError, ValueError):
            return Phase(self._phase.read_text(encoding="ascii"))
        return None

    @phase.setter
    def phase(self, phase: Phase) -> None:
        replace_file(self._phase, phase)

    def settle(self) -> None:
        """Record that the task is as before, or updated: nothing of an update is left."""
        self._phase.unlink(missing_ok=True)
        # Its daemon-reload was while NAME.next had a unit file, for which PID 1 would look at the next update: it reads
        # the names again once a directory has changed.
        os.utime(_UNIT_FILES)

    def step(self, text: str) -> None:
        """Report a step that was taken."""
        log_about(declared_units.declared_service(self._name), f"update: {text}", priority=NOTICE)
        self.log(text)

    def failed(self, error: Solo5Error) -> None:
        """Report the end of an update that failed."""
        log_about(declared_units.declared_service(self._name), f"update: {error}")
        self.log(str(error), end=error.exit_status)

    def log(self, text: str, *, end: int | None = None) -> None:
        """Append a step, or with `end` the exit status, to what `solo5ctl update` shows."""
        line = json.dumps({"text": text} | ({} if end is None else {"end": end}))
        try:
            descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:  # the declaration was removed, and its task has ended
            return
        with os.fdopen(descriptor, "a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def steps(self) -> list[tuple[str, int | None]]:
        """Return all steps so far, the last one with the exit status once the update is over."""
        try:
            lines = self._log.read_text(encoding="utf-8").splitlines()
        except OSError:
            return []
        documents = [json.loads(line) for line in lines]
        return [(str(each["text"]), each.get("end")) for each in documents]

    @property
    def running_image(self) -> Path:
        """The image that the task runs, in the image store."""
        return self._image.resolve()

    def keep(self, path: str) -> None:
        """Copy the image that the task runs, which was at `path`, and record it and the drop-in, for `unset_image`."""
        running = self.running_image
        digest = sha256(running)
        copy = self._copies / f"{digest}{Path(path).suffix}"
        kept = Previous(path=path, sha256=digest, copy=str(copy), drop_in=self._drop_in_text())
        with host_errors(f"image {running} cannot be copied to {copy}"):
            self._copies.mkdir(mode=0o700, parents=True, exist_ok=True)
            if sha256(copy) != digest:  # an earlier update may have made this copy
                new = copy.with_name(f".{copy.name}.new")
                shutil.copyfile(running, new)
                with new.open("rb") as file:
                    os.fsync(file.fileno())
                new.replace(copy)
            replace_file(self._kept, json.dumps(document(kept)))

    def kept(self) -> Previous | None:
        """Return the image that `keep` has recorded in this update; None without one."""
        return _previous(self._kept)

    @property
    def switched(self) -> bool:
        """Whether the task runs another image than the one that `keep` has recorded."""
        replaced = self.kept()
        return replaced is not None and sha256(self.running_image) != replaced.sha256

    def previous(self) -> Previous:
        """Return the image that the last update has replaced; raises NotFoundError without one."""
        found = _previous(self._record)
        if found is None:
            raise NotFoundError(
                f"task {self._name} has no earlier image: no update has replaced one.",
                f"`solo5ctl update {self._name} IMAGE` keeps the present one.",
            )
        if sha256(found.present) != found.sha256:
            raise NotFoundError(f"the earlier image of task {self._name}, {found.copy}, is damaged or was removed.")
        return found

    def remember(self) -> None:
        """Make the recorded image the one that a rollback returns to; remove copies of others but the present one."""
        replaced, present = self.kept(), sha256(self.running_image)
        if replaced is None or replaced.sha256 == present:  # an update with the same image has replaced none
            return
        replace_file(self._record, json.dumps(document(replaced)), durable=True)
        for copy in self._copies.iterdir():
            if not copy.name.startswith((replaced.sha256, present)):
                copy.unlink(missing_ok=True)

    def set_image(self, path: str, declared: str, *, lasting: bool) -> None:
        """Have the declaration name another image, by a drop-in; a daemon-reload makes it known. Raises Solo5Error.

        Args:
            declared: path of the image without the drop-in.
            lasting: `takes_declared` only once the declared image is another one.
        """
        text = f"""\
# Written by `solo5ctl update`; to undo that update: solo5ctl rollback {self._name}
# `systemctl reload {self._name}` takes the declared image once that is not the following one any more.
{_DECLARED}
Image={declared}
SHA256={sha256(declared) if lasting else ""}
[Unikernel]
Image={path.replace("%", "%%")}
"""
        with host_errors(f"{self.drop_in} cannot be written"):
            self._write_drop_in(text)

    def takes_declared(self, declared: str) -> bool:
        """Return whether the declared image is another one than when the drop-in was written, by path or content."""
        lines = self._drop_in_text().partition(f"{_DECLARED}\n")[2].splitlines()[:2]
        return bool(lines) and lines != [f"Image={declared}", f"SHA256={sha256(declared)}"]

    def remove_drop_in(self) -> None:
        """Have the declaration name its own image."""
        with suppress(OSError, SettingsError):  # such as ENOTEMPTY: the operator has other drop-ins there
            check_own(self.drop_in.parent)
            self.drop_in.unlink(missing_ok=True)
            self.drop_in.parent.rmdir()

    def unset_image(self) -> None:
        """Make the drop-in what it was when `keep` was called."""
        with suppress(OSError, SettingsError):
            before = self.kept()
            if before and before.drop_in:
                self._write_drop_in(before.drop_in)
            elif before:  # else nothing has called `keep`, and nothing has changed the drop-in
                self.remove_drop_in()

    def _write_drop_in(self, text: str) -> None:
        with suppress(FileExistsError):
            self.drop_in.parent.mkdir(parents=True)
            # UMask= of the update; errors quote no value of files that not every user may read.
            self.drop_in.parent.chmod(0o755)
        check_own(self.drop_in.parent)
        replace_file(self.drop_in, text, mode=0o644, durable=True)

    def _drop_in_text(self) -> str:
        with suppress(SettingsError):  # there is none until an update changes the image
            return read_own(self.drop_in, FILE_MAX_BYTES)[0].decode()
        return ""


def collect_previous(*, dry_run: bool) -> Sequence[str]:
    """Remove the images that are kept of tasks without a declaration, or only list them; return a line for each."""
    kept = sorted({TaskName(entry.name.removesuffix(".json")) for entry in PREVIOUS.glob("*")})

    def is_declared(name: TaskName) -> bool:
        files = [ETC / f"{each}{SUFFIX}" for each in ((name, template_of(name)) if is_instance(name) else (name,))]
        return declared_units.has_declaration(name) or any(map(os.path.lexists, files))

    lost = [name for name in kept if not is_declared(name)]
    for name in () if dry_run else lost:
        shutil.rmtree(PREVIOUS / name, ignore_errors=True)
        (PREVIOUS / f"{name}.json").unlink(missing_ok=True)
    return [f"previous image of task {name}: its declaration is gone" for name in lost]


def _previous(path: Path) -> Previous | None:
    with suppress(OSError, Solo5Error):
        return record(Previous, Fields(json_document(path.read_bytes(), str(path))))
    return None
