"""The socket's private directory. A later plugin removes the directories of plugins that were killed."""

import fcntl
import grp
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from solo5_systemd.errors import HostError

SOCKET_PATH_MAX = 107
"""Bytes of a socket's path (unix(7))."""

_PREFIX = "plugin-"
_NAME = "socket"


@contextmanager
def socket_path(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield a path for the socket, in a new directory that is removed at the end of the block.

    The directory is below PLUGIN_UNIX_SOCKET_DIR, or else in the directory for temporary files. It is locked (flock(2))
    while the process lives, so an unlocked one is that of a killed plugin. systemd-tmpfiles skips locked ones, too.

    Raises:
        HostError: no directory can be made there, the path would be too long, or PLUGIN_UNIX_SOCKET_GROUP is unknown.
    """
    parent = Path(environment.get("PLUGIN_UNIX_SOCKET_DIR") or tempfile.gettempdir())
    _remove_stale(parent)
    directory, lock = _locked_directory(parent)
    try:
        path = directory / _NAME
        if len(os.fsencode(path)) > SOCKET_PATH_MAX:
            raise HostError(
                f"the socket's path {path} is longer than the {SOCKET_PATH_MAX} bytes that Linux allows.",
                "Set TMPDIR, or PLUGIN_UNIX_SOCKET_DIR, to a shorter directory.",
            )
        yield path
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def grant_group(path: Path, environment: Mapping[str, str]) -> None:
    """Give the group of PLUGIN_UNIX_SOCKET_GROUP access to the socket (go-plugin's server.go).

    Raises:
        HostError: there is no such group, or chown(2) is not permitted.
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


def _remove_stale(parent: Path) -> None:
    """Remove the directories of killed plugins."""
    # Only those with a socket: a plugin that is just starting has not locked its new directory yet.
    for socket in parent.glob(f"{_PREFIX}*/{_NAME}"):
        with suppress(OSError):
            _remove_unlocked(socket.parent)


def _remove_unlocked(directory: Path) -> None:
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(lock).st_uid == os.getuid():  # the directory for temporary files is shared with other users
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory)
    finally:
        os.close(lock)
