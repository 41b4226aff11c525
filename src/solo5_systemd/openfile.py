"""Where an open file lies, whatever its path has been made to lead to meanwhile, and names for open files."""

import os
from collections.abc import Sequence
from pathlib import Path, PurePath

from solo5_systemd.errors import HostError, InvalidRequestError


def place(descriptor: int) -> str:
    """The path of an open file, absolute and free of symbolic links (proc(5), /proc/pid/fd).

    Raises:
        HostError: the kernel does not tell.
    """
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError as error:
        raise HostError(f"/proc cannot be read: {error.strerror}.", "Check that it is mounted.") from error


def below(path: str, roots: Sequence[str]) -> bool:
    """Whether a path without symbolic links lies below one of some directories, with or without links."""
    return any(PurePath(path).is_relative_to(os.path.realpath(root)) for root in roots)


def check_place(what: str, descriptor: int, roots: Sequence[str]) -> str:
    """Check that an open file lies below one of some directories.

    It is the open file that is looked at, so that a link which is changed after the check leads nowhere.

    Args:
        what: the file in a reader's words, such as `image '/srv/web.hvt'`.
        descriptor: of the open file.
        roots: the directories, with or without symbolic links; none at all: it may lie anywhere.

    Returns:
        Its path at that moment. A later reading may be of another place: the file can be renamed.

    Raises:
        InvalidRequestError: it lies elsewhere.
        HostError: the kernel does not tell.
    """
    path = place(descriptor)
    if roots and not below(path, roots):
        there = "" if repr(path) in what else f" leads to {path!r}, which"
        raise InvalidRequestError(
            f"{what}{there} may not be used: expected a file below {' or '.join(roots)}.",
            "Links are followed before that is checked.",
        )
    return path


def name_descriptor(descriptor: int, path: Path) -> None:
    """Give an open file a name.

    Raises:
        FileExistsError: the name is taken.
        OSError: the kernel refused.
    """
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # With a directory's descriptor it is linkat(2) that is called, and the link of proc(5) that is followed.
        os.link(f"/proc/self/fd/{descriptor}", path.name, dst_dir_fd=directory, follow_symlinks=True)
    finally:
        os.close(directory)
