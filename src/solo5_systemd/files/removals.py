"""Notices of removed files, by inotify(7)."""

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable, Iterator
from functools import cache

IN_DELETE_SELF = 0x400
IN_Q_OVERFLOW = 0x4000
IN_DONT_FOLLOW = 0x2000000
"""Flags of inotify(7), from linux/inotify.h."""

_EVENT = struct.Struct("iIII")
_READ_SIZE = 1 << 16


class Removals:
    """Calls back once when a file has been removed, or another one has been renamed over it.

    The kernel reports the removal of the watched inode itself, so that no event of another file wakes this process. One
    descriptor serves all files; it is open while there is any.
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
            self._open()
        try:
            flags = IN_DELETE_SELF | IN_DONT_FOLLOW
            watch = _checked(_libc().inotify_add_watch(self._descriptor, path.encode(), flags))
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
            _libc().inotify_rm_watch(self._descriptor, watch)  # fails if the file has been removed meanwhile
        self._close_if_unused()

    def _open(self) -> None:
        descriptor = _checked(_libc().inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
        asyncio.get_running_loop().add_reader(descriptor, self._readable)
        self._descriptor = descriptor

    def _close_if_unused(self) -> None:
        if not self._callbacks and self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _readable(self) -> None:
        for watch, mask in _events(os.read(self._descriptor, _READ_SIZE)):
            if mask & IN_Q_OVERFLOW:  # any file may have been removed
                gone = list(self._callbacks.values())
                self._callbacks.clear()
            else:
                gone = [self._callbacks.pop(watch, set())] if mask & IN_DELETE_SELF else []
            for callbacks in gone:
                for removed in callbacks:
                    removed()
        self._close_if_unused()


def _events(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield watch and mask of each event; only events of a directory's entries have a name."""
    position = 0
    while position < len(data):
        watch, mask, _, length = _EVENT.unpack_from(data, position)
        yield watch, mask
        position += _EVENT.size + length


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
