"""Read the files of an archive, and write it to a file in memory.

Directories are walked by descriptors, and no symbolic link is followed below a root: what a path resolves to cannot
change between a check and the read.

Which archives of a running task are older than their files: a guest keeps the archive of its start.

The lock file of a task has the SHA-256 of its archives, and how to read their files again.
"""

import ctypes
import errno
import hashlib
import os
import stat
import subprocess
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path, PurePath
from tarfile import DIRTYPE, USTAR_FORMAT, TarFile, TarInfo

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import HostError, InvalidRequestError, NotFoundError, Solo5Error, host_errors
from solo5_systemd.base.locks import closing
from solo5_systemd.base.paths import PLACE, READ_UNTRUSTED, changers_in, kind_of, open_path, version_of, walk, way_of
from solo5_systemd.base.sanitize import MAX_NAME, MAX_QUOTE, bounded
from solo5_systemd.settings.records import record
from solo5_systemd.storage.archive import DEPTH_MAX, ENTRIES_MAX, check_entry, size_of
from solo5_systemd.storage.locks import Record
from solo5_systemd.storage.model import ArchiveFormat, ArchiveRequest, DiskRequest
from solo5_systemd.storage.owner import read_title

CREDENTIALS = tuple(Path(each) for each in ("/etc/credstore", "/run/credstore", "/usr/lib/credstore"))
ENCRYPTED = tuple(path.with_name("credstore.encrypted") for path in CREDENTIALS)
"""Where systemd searches the credentials that a unit names (systemd.exec(5), LoadCredential=)."""

DECRYPT = "/usr/bin/systemd-creds"
DECRYPT_TIMEOUT_S = 30.0
"""A key in a TPM may take seconds."""

_PR_SET_DUMPABLE = 4
"""prctl(2), from linux/prctl.h."""

Visit = Callable[[TarInfo, int], object]
"""Called with an entry and a descriptor of its file or directory, which is open for reading."""


def tar_info(name: str, size: int = 0, *, is_directory: bool = False) -> TarInfo:
    """Return the header of a file or directory: owner root, time 0; raises InvalidRequestError for too long a name."""
    info = TarInfo(name)
    info.size = size
    info.mode, info.type = (0o755, DIRTYPE) if is_directory else (0o644, info.type)
    try:
        info.tobuf(USTAR_FORMAT, "utf-8", "surrogateescape")
    except ValueError as error:
        raise InvalidRequestError(
            f"{bounded(name, MAX_NAME)!r} is too long a name for a tar archive: expected at most 100 bytes, or "
            "155 of directories and 100 of the file."
        ) from error
    return info


def scan(request: DiskRequest) -> Sequence[TarInfo]:
    """Return the entries of an archive, in order, without reading their content.

    Raises:
        Solo5Error: a file is missing, outside of the roots or of a kind that is not archived, or there is too much.
    """
    with host_errors(f"disk {request.disk}: its files cannot be read"):
        return _Visitor(request, lambda _entry, _source: None).visit_all(None)


def write_archive(request: DiskRequest, target: int) -> str:
    """Write an archive to an empty file in memory, given by its descriptor.

    Returns:
        The SHA-256 of all bytes, in hexadecimal digits.

    Raises:
        Solo5Error: as `scan`; also if a file changes meanwhile.
        OSError: a directory cannot be read, or the file cannot be written.
    """
    # No core dump from now on: it would have the content of archives. The kernel passes one to the program of
    # kernel.core_pattern whatever the limit of core files is. A program that a child executes can dump core (prctl(2)).
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    with open(target, "r+b", closefd=False) as file:
        # It is not closed, since that would fill it up to 20 blocks.
        tar = TarFile(mode="w", fileobj=file, format=USTAR_FORMAT, encoding="utf-8")

        def add(entry: TarInfo, source: int) -> None:
            content = None if entry.isdir() else open(source, "rb", closefd=False)  # noqa: SIM115 - stays open
            if visitor.archive.format is ArchiveFormat.TAR:
                tar.addfile(entry, content)
            elif content is not None:
                file.write(content.read(entry.size))

        visitor = _Visitor(request, add)
        file.write(bytes(size_of(request, [each.size for each in visitor.visit_all(target)]) - file.tell()))
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Visitor:
    """Visits the entries of an archive in the order of their names, within its limits."""

    def __init__(self, request: DiskRequest, act: Visit) -> None:
        self.archive = request.archive or ArchiveRequest()
        self._request = request
        self._act = act
        self._entries: list[TarInfo] = []
        self._total = 0

    def visit_all(self, target: int | None) -> Sequence[TarInfo]:
        """Visit the credential, or all members, and return the entries.

        Args:
            target: a credential is decrypted to a file beside this one, in memory, too; None: it is not decrypted.
        """
        if name := self.archive.credential:
            file, is_encrypted = _credential(name)
            source = _decrypted(name, file, target) if is_encrypted and target is not None else _opened(str(file))
            self._visit_file(name, source)
        for name, place in sorted(self.archive.members, key=lambda member: member[0].split("/")):
            path = PurePath(place)
            found, changers = _open_member(self._request, path)
            shown = name or ("" if stat.S_ISDIR(os.fstat(found).st_mode) else path.name)
            below = (PurePath(excluded) for excluded in self.archive.excluded)
            left_out = {_below(name, str(it.relative_to(path))) for it in below if it.is_relative_to(path)}
            self._walk(shown, found, DEPTH_MAX, changers, left_out)
        if self.archive.format is ArchiveFormat.RAW and (len(self._entries) != 1 or not self._total):
            raise InvalidRequestError(
                f"disk {self._request.disk}: format raw has {len(self._entries)} entries with {self._total} bytes: "
                "expected one file that is not empty."
            )
        return self._entries

    def _visit(self, entry: TarInfo, source: int) -> None:
        self._entries.append(entry)
        self._total += entry.size
        check_entry(self._request, len(self._entries), self._total)
        self._act(entry, source)

    def _walk(
        self, name: str, found: int, depth: int, changers: frozenset[int] | None, left_out: Container[str]
    ) -> None:
        """Visit what is at a descriptor (O_PATH), which is closed.

        Args:
            name: in the archive; empty: the directory whose content is at the top of it.
            changers: users other than root that can change what is there; None: the files are those of its roots.
            left_out: names in the archive that are left out of directories.
        """
        what = f"disk {self._request.disk}: {_shown(name)}"
        with closing(found):
            status = os.fstat(found)
            mode = status.st_mode
            if stat.S_ISREG(mode):
                if changers and changers != {status.st_uid} and not mode & stat.S_IROTH:
                    raise InvalidRequestError(
                        f"{what} is a file of user {status.st_uid} that not every user may read, in a directory that "
                        "another user can change: expected a file of that user.",
                        "Move it to a directory that only root can change.",
                    )
                self._visit_file(name, _opened(f"/proc/self/fd/{found}"))
                return
            if not stat.S_ISDIR(mode):
                raise InvalidRequestError(f"{what} is {kind_of(status)}: expected files and directories only.")
            if not depth:
                raise InvalidRequestError(f"{what} has more than {DEPTH_MAX} levels of directories: expected fewer.")
            with closing(os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as listed:
                if name:
                    self._visit(tar_info(name, is_directory=True), listed)
                with os.scandir(listed) as entries:  # of which there may be any number
                    names = [entry.name for entry in islice(entries, ENTRIES_MAX + 1)]
                check_entry(self._request, len(names), 0)
                below = None if changers is None else changers | changers_in(status)
                for each in sorted(names):
                    if (inside := _below(name, each)) not in left_out:
                        self._walk(inside, os.open(each, PLACE, dir_fd=listed), depth - 1, below, left_out)

    def _visit_file(self, name: str, source: int) -> None:
        """Visit an open file, which is closed; it must not change meanwhile."""
        what = f"disk {self._request.disk}: {_shown(name)}"
        with closing(source):
            before = os.fstat(source)
            if before.st_nlink > 1:
                raise InvalidRequestError(
                    f"{what} has {before.st_nlink} names: expected one, since a hard link may be the file of another "
                    "user."
                )
            if self._request.holder and read_title(source, before) not in ("", self._request.holder):
                raise InvalidRequestError(
                    f"{what} is a disk of another job or volume, which was moved: expected a file of this one."
                )
            is_short = False
            try:
                self._visit(tar_info(name, before.st_size), source)
            except OSError as error:
                if error.errno is not None:
                    raise
                is_short = True  # tarfile has reached the end before the size
            if is_short or version_of(before) != version_of(os.fstat(source)):
                raise HostError(
                    f"{what} has changed while it was read: expected a file at rest.", "Start the task again."
                )


def _below(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name


def _open_member(request: DiskRequest, path: PurePath) -> tuple[int, frozenset[int] | None]:
    """Open a member with O_PATH: no symbolic link below a root, and none at the end of a path without roots.

    And return the users other than root that can change what is there; None: below a root.
    """
    what = f"disk {request.disk}: {_shown(str(path))}"
    try:
        if request.roots:
            return _open_beneath(path, request.roots), None
        parent, place = open_path(what, str(path.parent), ())
        with closing(parent):
            way = way_of(str(path.parent))
            if way is None or way.place != Path(place) or way.of_links:
                raise InvalidRequestError(
                    f"{what} is behind a symbolic link that a user other than root can change: expected a path without "
                    "it.",
                    f"It resolves to {bounded(f'{place}/{path.name}', MAX_QUOTE)} now.",
                )
            return os.open(path.name, PLACE, dir_fd=parent), way.changers | changers_in(os.fstat(parent))
    except OSError as error:
        if request.roots and error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES):
            raise InvalidRequestError(
                f"{what} cannot be used: expected a file below {' or '.join(request.roots)}.",
                "Symbolic links are not followed.",
            ) from error
        if error.errno == errno.ENOENT:
            raise NotFoundError(f"{what} does not exist.") from error
        raise HostError(f"{what} cannot be opened: {error.strerror}.") from error


def _open_beneath(path: PurePath, roots: Sequence[str]) -> int:
    """Open a path below one of the roots component by component, following no symbolic link.

    A root is no link either: a task's `local` is in a directory that every user may write. Links above it are followed.
    """
    for root in map(PurePath, roots):
        if path.is_relative_to(root) and ".." not in path.parts:
            return walk(f"{os.path.realpath(root.parent)}/{path.relative_to(root.parent)}", _refuse_link)[0]
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _refuse_link(_at: str, status: os.stat_result, *_: object) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _opened(path: str) -> int:
    with host_errors(f"{path!r} cannot be read"):
        return os.open(path, READ_UNTRUSTED)


def _credential(name: str) -> tuple[Path, bool]:
    """Return the file of a system credential, and whether it is encrypted."""
    for directories, is_encrypted in ((CREDENTIALS, False), (ENCRYPTED, True)):
        for directory in directories:
            path = directory / name
            with suppress(OSError):
                if stat.S_ISREG(path.lstat().st_mode):
                    return path, is_encrypted
    raise NotFoundError(
        f"no credential is named {name!r}: expected a file in {' or '.join(map(str, (*CREDENTIALS, *ENCRYPTED)))}.",
        f"Write one: systemd-creds encrypt --name={name} FILE {ENCRYPTED[0]}/{name}",
    )


def _decrypted(name: str, path: Path, target: int) -> int:
    """Return a descriptor of a file without a name, beside `target`, with the decrypted credential."""
    place = Path(f"/proc/self/fd/{target}").readlink().parent
    file = os.open(place, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        done = subprocess.run(
            [DECRYPT, "decrypt", f"--name={name}", str(path), "-"],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.PIPE,
            check=False,
            timeout=DECRYPT_TIMEOUT_S,
        )
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise HostError(
                f"credential {name!r} cannot be decrypted: {bounded(lines[-1] if lines else 'no reason', MAX_NAME)}."
            )
        # A second description: its offset is 0, as of a file that was opened.
        return os.open(f"/proc/self/fd/{file}", READ_UNTRUSTED)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"credential {name!r} cannot be decrypted: {error}.") from error
    finally:
        os.close(file)


def _shown(name: str) -> str:
    return repr(bounded(name, MAX_NAME))


def outdated(held: Record) -> Mapping[str, bool]:
    """Return whether the files of each archive in the record of a task's lock file have another SHA-256 now.

    Files that cannot be archived have another one, too. Archives of credentials are absent.
    """
    starts = {disk["disk"]: disk.get("sha256") for disk in held.disks}
    found: dict[str, bool] = {}
    for each in held.archives:
        try:
            request, now = record(DiskRequest, Fields(each)), ""
        except InvalidRequestError:  # of another version
            continue
        with suppress(Solo5Error, OSError), closing(os.memfd_create("archive")) as nowhere:
            now = write_archive(request, nowhere)
        found[request.disk] = now != starts[request.disk]
    return found
