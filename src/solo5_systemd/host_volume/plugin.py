"""The operations of `solo5-disk`: create the disk image of a volume, and delete a volume that no task uses.

    DHV_VOLUMES_DIR/ID/disk.img         the disk image of a volume, in a directory of root
    /var/lib/solo5/volumes/ID           the path of that directory, from the creation of the image until its deletion

Nomad creates each volume again whenever the agent starts. By the second file, an image that is missing then, such as on
a file system that is not mounted yet, is an error: a blank disk in its place would look like lost data.
"""

import errno
import json
import os
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from solo5_systemd.base.atomic_file import replace_file, sync_directory
from solo5_systemd.base.errors import HostError, InvalidRequestError, Solo5Error, TakenError
from solo5_systemd.base.locks import closing, lock_directory
from solo5_systemd.base.names import DeviceName
from solo5_systemd.base.paths import identity
from solo5_systemd.host_volume.request import CreateRequest, create_request, delete_request
from solo5_systemd.settings.files import read_settings
from solo5_systemd.storage.locks import ENDED_TIMEOUT_S, lock, remove_names
from solo5_systemd.storage.model import VOLUME_IMAGE, Disk
from solo5_systemd.storage.new_file import create_file, zeros
from solo5_systemd.storage.owner import holder_of_volume, read_title
from solo5_systemd.storage.quotas import DiskClaims
from solo5_systemd.users.registry import Registry

STATE = Path("/var/lib/solo5/volumes")

FILES_MAX = 100_000
"""Files of a volume that is deleted: each is locked by a name in /run, whose file system has some 800,000 inodes."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def run(operation: str, environment: Mapping[str, str] = os.environ) -> int:
    """Run `create` or `delete`, and return the exit status; the agent logs stderr, and prints `error` of stdout."""
    try:
        if operation == "create":
            request = create_request(environment)
            answer: Mapping[str, object] = {"path": request.directory, "bytes": create(request)}
        elif operation == "delete":
            delete(*delete_request(environment))
            answer = {}
        else:
            raise InvalidRequestError(f"operation {operation!r} is unknown: expected fingerprint, create or delete.")
    except Solo5Error as error:
        print(f"solo5-disk: {error}", file=sys.stderr)
        print(json.dumps({"error": str(error)}))
        return 1
    print(json.dumps(answer))
    return 0


def create(request: CreateRequest) -> int:
    """Create the disk image of a volume; one that exists is kept, and grows to the requested size.

    Quotas and limits are read for an image that is made or grows only: invalid settings take no volume away when the
    agent starts. Returns the size of the image, in bytes.

    Raises:
        InvalidRequestError: the image is larger than requested, or no regular file.
        HostError: the volume was created earlier and has no image now, a quota would be exceeded, or an error of the
            file system; SettingsError: the settings with the quotas are invalid.
    """
    directory = Path(request.directory)
    with _exclusive(request.name, directory) as record:
        created = record.read_text().strip() if record.exists() else ""  # where it is; empty: it is new
        if created not in ("", str(directory)):
            raise HostError(
                f"volume {request.name} was created as {created}: expected {directory}, where the agent has volumes.",
                f"Set host_volumes_dir of the agent back, or move the directory and write its path into {record}.",
            )
        claims = DiskClaims(read_settings, Registry().copies, (directory.parent,))
        if created:
            return _create_image(request, directory, claims, is_new=False)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            size = _create_image(request, directory, claims, is_new=True)
        except BaseException:
            with suppress(OSError):  # it has files that are not of this call
                directory.rmdir()
            raise
        sync_directory(directory.parent)
        replace_file(record, str(directory), durable=True)  # last: what a killed call leaves is taken over by the next
        return size


def delete(name: str, volume: str) -> None:
    """Delete a volume with all files in it, if it exists; raises TakenError if a task has one of them as a disk."""
    directory = Path(volume)
    with _exclusive(name, directory) as record:
        if directory.is_symlink():
            raise HostError(
                f"volume {name}: {directory} is a symbolic link: expected a directory.",
                f"Remove the link, and its target: rm {directory}",
            )
        if directory.is_dir():
            disks = tuple(islice(_disks(directory), FILES_MAX + 1))
            if len(disks) > FILES_MAX:
                raise _not_removed(name, directory, f"more than {FILES_MAX} files to be locked")
            with closing(_lock(name, disks)):
                shutil.rmtree(directory)
                remove_names(disks)
        record.unlink(missing_ok=True)


@contextmanager
def _exclusive(name: str, directory: Path) -> Iterator[Path]:
    """Lock the records of volumes, since Nomad calls plugins concurrently; yield the path of this one's."""
    try:
        STATE.mkdir(mode=0o700, parents=True, exist_ok=True)
        with closing(lock_directory(STATE)):
            yield STATE / directory.name
    except (OSError, RecursionError) as error:
        if not isinstance(error, OSError) or error.errno == errno.EMFILE:  # of os.fwalk() and shutil.rmtree()
            what = "too many directories within each other to be removed"
            raise _not_removed(name, directory, what) from error
        raise HostError(f"volume {name}: {error.filename or directory} cannot be used: {error.strerror}.") from error


def _not_removed(name: str, directory: Path, what: str) -> HostError:
    return HostError(
        f"volume {name}: {directory} has {what}.",
        f"Stop its jobs, run rm -r {directory}, and delete the volume again.",
    )


# --- create ------------------------------------------------------------------------------------------------------


def _create_image(request: CreateRequest, directory: Path, claims: DiskClaims, *, is_new: bool) -> int:
    path, what = directory / VOLUME_IMAGE, f"volume {request.name}"
    fill = zeros(request.size, preallocate=request.preallocate)
    try:  # O_NONBLOCK: another user of the volume may have put a FIFO there
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        if not is_new:
            raise HostError(
                f"volume {request.name} has lost its disk image {path}: expected the file that was created with it.",
                "Mount its file system and restart the agent; without the data: nomad volume delete -type host ID",
            ) from error
        size = request.size
        with (
            closing(os.open(directory, _DIRECTORY)) as place,
            claims.admitted(str(path), size, size, what, request.tenant),
        ):
            create_file(place, VOLUME_IMAGE, fill)
        return size
    except OSError as error:
        raise _no_image(request, path, os.strerror(error.errno or 0)) from error
    try:
        status = os.fstat(descriptor)
        # A hard link may be a file outside of the volume, too.
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise _no_image(request, path, "it has another type, or a hard link")
        if read_title(descriptor, status) not in ("", holder_of_volume(directory)):
            raise _no_image(request, path, "it is the disk of another job or volume, which was moved")
        if request.size_max is not None and status.st_size > request.size_max:
            raise InvalidRequestError(
                f"volume {request.name}: {path} has {status.st_size} bytes: expected at most capacity_max "
                f"{request.size_max}, since a disk is not made smaller."
            )
        if status.st_size < request.size:
            more = request.size - status.st_size
            with claims.admitted(str(path), request.size, more, what, request.tenant):
                fill(descriptor)  # a running guest has the old size until its next start
                os.fsync(descriptor)
        return max(status.st_size, request.size)
    finally:
        os.close(descriptor)


def _no_image(request: CreateRequest, path: Path, reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"volume {request.name}: {path} is no disk image ({reason}): expected a regular file with one name."
    )


# --- delete ------------------------------------------------------------------------------------------------------


def _disks(directory: Path) -> Iterator[Disk]:
    """Yield every regular file below a directory, once, as a disk to lock. Symbolic links are not followed."""
    seen: set[tuple[int, int]] = set()
    for root, _, names, descriptor in os.fwalk(directory):
        for name in names:
            status = os.lstat(name, dir_fd=descriptor)
            # `lock` refuses two disks that are one file.
            if stat.S_ISREG(status.st_mode) and identity(status) not in seen:
                seen.add(identity(status))
                yield Disk(disk=DeviceName("volume"), path=str(Path(root, name)), identity=identity(status))


def _lock(name: str, disks: tuple[Disk, ...]) -> int:
    """Lock the disks; a file that is attached to a loop device is in use as well: a task may have that device."""
    try:
        return lock(disks, unused=True, timeout_s=ENDED_TIMEOUT_S)
    except TakenError as error:
        raise TakenError(f"volume {name}: {error.sentence.partition(': ')[2]}", error.hint) from error
