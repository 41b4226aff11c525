"""Files that appear with their content: replaced by rename(2), or created by linkat(2) from a file without a name.

A concurrent reader gets the old or the new content, and so does a reader after a killed writer.
"""

import os
from contextlib import suppress
from pathlib import Path

from solo5_systemd.base.locks import closing


def replace_file(
    path: Path | str, content: str | bytes, *, mode: int = 0o600, several_writers: bool = False, durable: bool = False
) -> None:
    """Create or replace a file atomically, by a temporary file beside it whose name starts with a dot.

    Args:
        path: in a directory that exists.
        content: text is written as UTF-8.
        mode: of the file, independent of the umask.
        several_writers: give the temporary file a random name. Otherwise it has the same name each time, so that the
            next write removes what a killed writer has left.
        durable: fsync(2) the file and its directory: the content is on stable storage on return.

    Raises:
        OSError: the file cannot be written; the temporary file is removed.
    """
    # Text, no Path: each part of one is interned, in a table that grows with all that there ever were.
    directory, name = os.path.split(path)
    new = f"{directory}/.{name}{f'.{os.urandom(8).hex()}' if several_writers else ''}.new"
    # O_EXCL: in a directory of another user, the name could be a symbolic link of theirs.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(new, flags, 0o600)
    except FileExistsError:
        if several_writers:  # no earlier write has left a file with a random name
            raise
        os.unlink(new)  # noqa: PTH108 - a text
        descriptor = os.open(new, flags, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
            file.flush()
            os.fchmod(descriptor, mode)
            if durable:
                os.fsync(descriptor)
        os.replace(new, path)  # noqa: PTH105
    except BaseException:
        with suppress(OSError):
            os.unlink(new)  # noqa: PTH108
        raise
    if durable:
        sync_directory(directory)


def sync_directory(directory: Path | str) -> None:
    """Write a directory's entries to stable storage (fsync(2))."""
    with closing(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
        os.fsync(descriptor)


def open_unnamed(directory: Path, mode: int) -> int:
    """Open a new file without a name, for reading and writing: it vanishes with its descriptor unless it gets a name.

    It can get one in the directory later; from its mode, the umask is taken.
    """
    return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, mode)


def link_unnamed(descriptor: int, path: Path) -> None:
    """Give an open file a name, and never replace another file.

    Raises:
        FileExistsError: the path exists.
        OSError: another error of linkat(2).
    """
    with closing(os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as directory:
        # With dst_dir_fd, os.link calls linkat(2) with AT_SYMLINK_FOLLOW, which resolves the link in /proc/self/fd.
        os.link(f"/proc/self/fd/{descriptor}", path.name, dst_dir_fd=directory, follow_symlinks=True)
