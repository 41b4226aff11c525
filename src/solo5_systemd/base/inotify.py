"""Notices of removed files, and of new ones, by inotify(7)."""

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from solo5_systemd.base.locks import closing_on_error
from solo5_systemd.base.mounts import checked, libc

IN_CREATE = 0x100
IN_DELETE = 0x200
IN_DELETE_SELF = 0x400
IN_Q_OVERFLOW = 0x4000
IN_DONT_FOLLOW = 0x2000000
"""Flags of inotify(7), from linux/inotify.h."""

_EVENT = struct.Struct("iIII")
_READ_SIZE = 1 << 16


class Removals:
    """Calls back once when a file has been removed, or another one has been renamed over it.

    The kernel reports the removal of the watched inode itself, so that no event of another file wakes this process. One
    descriptor serves all files. It is closed when the event loop reads the kernel's notice of the end of the last watch
    (IN_IGNORED): a wait that is renewed at once keeps it, since its close takes 2 to 16 ms.
    """

    def __init__(self) -> None:
        self._descriptor = -1
        self._callbacks: dict[int, set[Callable[[], None]]] = {}

    def watch(self, path: str, removed: Callable[[], None]) -> int:
        """Watch a file; a symbolic link is not followed. Return the number of the watch, for `unwatch`.

        Raises:
            OSError: there is no such file, or a limit of inotify is reached (/proc/sys/fs/inotify).
        """
        if self._descriptor < 0:
            self._descriptor = _inotify()
            asyncio.get_running_loop().add_reader(self._descriptor, self._readable)
        try:
            watch = _add_watch(self._descriptor, path, IN_DELETE_SELF | IN_DONT_FOLLOW)
        except OSError:
            self._close_if_unused()
            raise
        self._callbacks.setdefault(watch, set()).add(removed)
        return watch

    def unwatch(self, watch: int, removed: Callable[[], None]) -> None:
        """Remove a callback. Without effect after the removal of its file."""
        callbacks = self._callbacks.get(watch, set())
        callbacks.discard(removed)
        if watch in self._callbacks and not callbacks:
            del self._callbacks[watch]
            libc().inotify_rm_watch(self._descriptor, watch)  # fails if the file has been removed meanwhile

    def _close_if_unused(self) -> None:
        if not self._callbacks and self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _readable(self) -> None:
        for watch, mask, _ in _events(os.read(self._descriptor, _READ_SIZE)):
            if mask & IN_Q_OVERFLOW:  # any file may have been removed
                gone = list(self._callbacks.values())
                self._callbacks.clear()
            else:
                gone = [self._callbacks.pop(watch, set())] if mask & IN_DELETE_SELF else []
            for callbacks in gone:
                for removed in callbacks:
                    removed()
        self._close_if_unused()


class RemovedEntries:
    """The names that are removed from a directory; a rename over an entry is no removal. One watch serves all names.

    Args:
        added: watch names that are added as well.

    Raises:
        OSError: there is no such directory, or a limit of inotify is reached (/proc/sys/fs/inotify).
    """

    def __init__(self, directory: Path, *, added: bool = False) -> None:
        with closing_on_error(_inotify()) as self._descriptor:
            _add_watch(self._descriptor, str(directory), IN_DELETE | IN_CREATE if added else IN_DELETE)

    def fileno(self) -> int:
        """Return a descriptor that is readable when names have been removed."""
        return self._descriptor

    def read(self) -> frozenset[str] | None:
        """Return the names that were removed since the last call; None: events were lost."""
        names: set[str] = set()
        while True:
            try:
                data = os.read(self._descriptor, _READ_SIZE)
            except BlockingIOError:
                return frozenset(names)
            for _, mask, name in _events(data):
                if mask & IN_Q_OVERFLOW:
                    return None
                names.add(name)

    def close(self) -> None:
        """Remove the watch."""
        os.close(self._descriptor)


def _events(data: bytes) -> Iterator[tuple[int, int, str]]:
    """Yield watch, mask and name of each event; only events of a directory's entries have a name."""
    position = 0
    while position < len(data):
        watch, mask, _, length = _EVENT.unpack_from(data, position)
        position += _EVENT.size + length
        yield watch, mask, os.fsdecode(data[position - length : position].rstrip(b"\0"))


def _inotify() -> int:
    return checked(libc().inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))


def _add_watch(descriptor: int, path: str, mask: int) -> int:
    return checked(libc().inotify_add_watch(descriptor, path.encode(), ctypes.c_uint32(mask)))
