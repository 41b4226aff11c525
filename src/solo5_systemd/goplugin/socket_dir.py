"""Where the socket is: in a directory that only we can enter, and that a later plugin removes if we could not."""

import fcntl
import grp
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from solo5_systemd.errors import HostError

LONGEST = 107
"""Bytes of a socket's path (unix(7))."""

_PREFIX = "plugin-"
_NAME = "socket"


@contextmanager
def socket_path(environment: Mapping[str, str]) -> Iterator[Path]:
    """A path to listen at, in a fresh directory that is removed in the end.

    The directory is below PLUGIN_UNIX_SOCKET_DIR, or where temporary files are. It is locked while we live: who finds
    one of ours unlocked knows that its owner was killed. (systemd-tmpfiles leaves locked directories alone, too.)

    Raises:
        HostError: no directory can be made there, the path would be too long, or PLUGIN_UNIX_SOCKET_GROUP is unknown.
    """
    parent = Path(environment.get("PLUGIN_UNIX_SOCKET_DIR") or tempfile.gettempdir())
    _sweep(parent)
    directory, lock = _locked_directory(parent)
    try:
        path = directory / _NAME
        if len(os.fsencode(path)) > LONGEST:
            raise HostError(
                f"the socket's path {path} is longer than the {LONGEST} bytes that Linux allows.",
                "Set TMPDIR, or PLUGIN_UNIX_SOCKET_DIR, to a shorter directory.",
            )
        yield path
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def admit_group(path: Path, environment: Mapping[str, str]) -> None:
    """Let the group that the host names connect to the socket at *path* (go-plugin's server.go).

    Raises:
        HostError: there is no such group, or we may not give it anything.
    """
    name = environment.get("PLUGIN_UNIX_SOCKET_GROUP")
    if not name:
        return
    try:
        group = int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
        for entry, mode in ((path, 0o660), (path.parent, 0o710)):
            os.chown(entry, -1, group)
            entry.chmod(mode)
    except (KeyError, OSError) as error:
        raise HostError(f"the socket cannot be given to group {name} (PLUGIN_UNIX_SOCKET_GROUP): {error}.") from error


def _locked_directory(parent: Path) -> tuple[Path, int]:
    try:
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    except OSError as error:
        raise HostError(
            f"no directory for the socket can be made in {parent}: {error.strerror}.",
            "Set TMPDIR, or PLUGIN_UNIX_SOCKET_DIR, to a directory that the plugin can write to.",
        ) from error
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return directory, lock


def _sweep(parent: Path) -> None:
    """Remove what plugins left that were killed. One that has only just made its directory has no socket in it yet."""
    for socket in parent.glob(f"{_PREFIX}*/{_NAME}"):
        with suppress(OSError):
            _remove_unlocked(socket.parent)


def _remove_unlocked(directory: Path) -> None:
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(lock).st_uid == os.getuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory)
    finally:
        os.close(lock)
